"""How a command is run and shown: options, errors, exit codes, signals, progress, tables."""
