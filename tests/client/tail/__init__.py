"""Tests of `connectors.client.tail`."""
