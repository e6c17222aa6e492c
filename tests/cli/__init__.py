"""Tests that run the `abcast` command as users do: as a process of its own."""
