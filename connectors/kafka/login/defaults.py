"""Defaults that the command line shows before it loads kafka-python."""

from __future__ import annotations

DEFAULT_BOOTSTRAP_SERVERS = "127.0.0.1:9092"
