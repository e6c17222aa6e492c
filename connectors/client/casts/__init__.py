"""The casts of a sender, from `broadcast` until they are written."""
