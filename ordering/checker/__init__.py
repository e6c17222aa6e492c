"""The checker, which names every broken promise in the records and logs of a group."""
