"""Tests of `connectors.local`."""
