"""Tests of `ordering.sequencer`."""
