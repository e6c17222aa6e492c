"""Tests of `ordering.checker`."""
