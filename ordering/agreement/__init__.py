"""The ISIS agreement: one order without a sequencer, between processes or between sites."""
