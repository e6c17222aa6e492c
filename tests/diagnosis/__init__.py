"""Tests of `connectors.diagnosis`."""
