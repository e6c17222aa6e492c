"""Relays in a plain Python process, without a JVM."""
