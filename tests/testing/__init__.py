"""Tests of the package that applications test with."""
