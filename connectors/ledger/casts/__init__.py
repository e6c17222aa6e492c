"""The table of casts."""
