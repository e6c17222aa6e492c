"""State transfer: the start of a joiner's deliveries, and the application's state up to there."""
