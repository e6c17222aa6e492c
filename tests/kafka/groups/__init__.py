"""Tests of `connectors.kafka.groups`."""
