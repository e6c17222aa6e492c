"""Tests of `connectors.kafka`."""
