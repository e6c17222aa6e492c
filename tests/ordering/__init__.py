"""Tests of `ordering`."""
