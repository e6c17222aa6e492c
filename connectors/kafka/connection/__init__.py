"""Connections to a Kafka cluster, and the sites of a deployment."""
