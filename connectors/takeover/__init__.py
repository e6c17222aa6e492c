"""Takeover and maintenance of a sequencer's groups, for either engine."""
