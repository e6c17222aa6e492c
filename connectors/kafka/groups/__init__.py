"""Which groups a job serves, and which it leaves out for a while."""
