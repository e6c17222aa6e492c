"""The incarnations of a sender: how one begins, sends and ends, and how the next one takes over."""
