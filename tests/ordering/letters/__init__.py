"""Tests of `ordering.letters`."""
