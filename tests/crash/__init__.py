"""The crash tests: real processes, real kills, a real broker; then the checker reads what everybody wrote down.

Each test has a site and a group of its own in the shared broker. A sequencer serves all groups of its site, so the
sequencers of different tests have nothing to do with each other.
"""
