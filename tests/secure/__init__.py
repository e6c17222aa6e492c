"""On a broker that lets nobody in without a password, and lets nobody do what was not allowed."""
