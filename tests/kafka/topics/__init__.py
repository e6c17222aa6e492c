"""Tests of `connectors.kafka.topics`."""
