"""Tests of `conf/monitoring/`."""
