"""How to reach one Kafka cluster, and the sites of a deployment."""
