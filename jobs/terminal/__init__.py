"""The frame of each command: options, errors, exit codes, signals, progress, tables."""
