"""The Delta table of all that was ordered: how it is written, locked, read, and asked for a state."""
