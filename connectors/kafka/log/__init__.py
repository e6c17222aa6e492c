"""A group's DATA as a log: reading it by the reading rule, its identity, its signs of life."""
