"""The commands that read groups and ledgers. Only `abcast members forget` changes anything."""
