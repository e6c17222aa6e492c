"""Tests of `connectors.client`."""
