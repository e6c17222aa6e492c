"""Casts: FIFO and causal order beside the total order, without a seqno."""
