"""Logging in to Kafka: the settings of each client library, and the reason for a refusal."""
