"""The process engine: a sequencer, or a site's part in an agreement, in plain Python. It orders in milliseconds."""
