"""The tail of DATA, read once for all members of a process; the producers and heartbeats that they share."""
