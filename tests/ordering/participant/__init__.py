"""Tests of `ordering.participant`."""
