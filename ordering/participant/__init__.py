"""The participant: a sender's side of the membership protocol, from its JOIN to its exclusion."""
