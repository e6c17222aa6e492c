"""Relays as Spark queries."""
