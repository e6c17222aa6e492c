"""Tests of `connectors.client.deliveries`."""
