"""State transfer: where a joiner's deliveries begin, and how it gets the state before them."""
