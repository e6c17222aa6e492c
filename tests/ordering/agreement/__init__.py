"""Tests of `ordering.agreement`."""
