"""The ledger without a JVM: a plain Python process writes the tables."""
