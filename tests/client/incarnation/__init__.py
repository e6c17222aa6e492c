"""Tests of `connectors.client.incarnation`."""
