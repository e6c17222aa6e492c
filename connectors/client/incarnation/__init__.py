"""The incarnations of a sender: how one begins, sends, ends, and what leads to the next."""
