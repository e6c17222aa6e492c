"""The process engine."""
