"""Tests of `connectors.kafka.transport`."""
