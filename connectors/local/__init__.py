"""The local machine: a Kafka broker, Java, and the jars that Spark needs."""
