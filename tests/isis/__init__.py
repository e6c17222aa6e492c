"""Tests of `connectors.isis`."""
