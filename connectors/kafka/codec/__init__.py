"""Encode and decode the records on Kafka (docs/records.md)."""
