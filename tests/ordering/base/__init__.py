"""Tests of `ordering.base`."""
