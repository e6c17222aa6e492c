"""Tests from the pure core in milliseconds to killed processes on a real broker; markers are in pyproject.toml."""
