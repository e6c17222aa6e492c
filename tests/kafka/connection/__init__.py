"""Tests of `connectors.kafka.connection`."""
