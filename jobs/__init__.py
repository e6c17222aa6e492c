"""The commands: `abcast COMMAND`, each also a module that runs alone (`spark-submit jobs/sequence.py`).

A module here reads options, wires `connectors` together and prints; nothing is decided here. Heavy imports are inside
the functions, so that `abcast --help` answers at once.
"""
