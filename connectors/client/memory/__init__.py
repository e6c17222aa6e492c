"""State that outlives a process: positions, incarnation and outbox."""
