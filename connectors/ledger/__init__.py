"""The ledger, the Delta table of all DATA: its writers, its lock, its readers, and the state that it tells."""
