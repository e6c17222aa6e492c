"""How a sequencer takes over its groups and looks after them, with either engine."""
