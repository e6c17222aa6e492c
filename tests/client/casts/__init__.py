"""Tests of `connectors.client.casts`."""
