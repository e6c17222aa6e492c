"""The checker: names every broken promise in what processes have written."""
