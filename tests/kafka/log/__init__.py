"""Tests of `connectors.kafka.log`."""
