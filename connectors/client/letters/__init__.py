"""Letters: sending and receiving unicast messages."""
