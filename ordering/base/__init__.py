"""Records, names and errors: the plain values that every protocol shares."""
