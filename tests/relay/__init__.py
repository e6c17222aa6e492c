"""Tests of `connectors.relay`."""
