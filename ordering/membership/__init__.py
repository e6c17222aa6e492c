"""Membership as a function of the log: views, flush, time, forgetting."""
