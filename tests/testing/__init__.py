"""Tests of what applications test with."""
