"""Membership: who is in the group, as a function of the log; views, flush, time, forgetting."""
