"""Tests of `connectors.client.letters`."""
