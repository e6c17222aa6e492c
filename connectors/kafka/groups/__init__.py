"""The groups that a job serves, and the ones it suspends for a while."""
