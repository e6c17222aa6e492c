"""Records as they look on Kafka (docs/records.md)."""
