"""The sequencer on Spark: its job, its shards, and their queries."""
