"""The benchmark of abcast: `make bench`, or `python -m tests.bench --help`.

Everything is measured in one run, on one embedded broker, beside its alternatives. Nothing here fails for being slow:
the table shows the targets next to the figures, and its reader judges.
"""
