"""Tests of `connectors.client.memory`."""
