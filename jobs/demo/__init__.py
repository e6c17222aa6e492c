"""`abcast demo`: the whole pipeline on real input, with a kill in the middle."""
