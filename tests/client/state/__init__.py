"""Tests of `connectors.client.state`."""
