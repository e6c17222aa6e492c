"""What runs on this machine: a Kafka broker, Java, and the jars that Spark needs."""
