"""The `abcast` command, run as users run it: as a process of its own."""
