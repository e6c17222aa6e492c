"""The forms in which the simulated processes decide and read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """A switch for mutations that patch one form only."""

    columns: bool = True
    """Batches are decided by `step` or by `step_columns`, at random; else by `step` only."""
