"""Tests of `connectors.sequencer`."""
