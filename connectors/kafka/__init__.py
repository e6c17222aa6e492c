"""Everything that speaks to Kafka: connections, topics, records on the wire, and reading a group's DATA."""
