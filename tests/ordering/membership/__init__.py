"""Tests of `ordering.membership`."""
