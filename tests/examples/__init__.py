"""Programs to copy, each run by a test."""
