"""Relays: jobs that carry records from site to site."""
