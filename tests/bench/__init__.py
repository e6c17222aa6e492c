"""The benchmark of abcast: `make bench`, or `python -m tests.bench --help`.

Everything is measured in one run, on one embedded broker, beside what it is compared with. Nothing here can fail for
being slow: the table shows the targets next to the figures, and who reads it judges.
"""
