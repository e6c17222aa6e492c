"""Tests of `connectors.kafka.codec`."""
