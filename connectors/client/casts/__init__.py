"""Casts: a sender's messages in fifo and causal order, from `broadcast` until they are written."""
