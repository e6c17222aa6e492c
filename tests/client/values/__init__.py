"""Tests of `connectors.client.values`."""
