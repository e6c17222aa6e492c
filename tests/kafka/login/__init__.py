"""Tests of `connectors.kafka.login`."""
