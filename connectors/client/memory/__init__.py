"""What outlives a process: its positions, its incarnation, its outbox."""
