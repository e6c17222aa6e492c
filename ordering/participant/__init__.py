"""The participant: a sender's part in its group, from its JOIN to its exclusion."""
