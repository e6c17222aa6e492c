"""Tests of `ordering.casts`."""
