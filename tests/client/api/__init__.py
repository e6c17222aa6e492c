"""Tests of `connectors.client.api`."""
