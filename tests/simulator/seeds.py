"""How many seeds the suite runs: `make test` some, `make soak` all."""

from __future__ import annotations

import pytest


def blocks(first: int, size: int, end: int) -> list[object]:
    """Parameters of a test: ranges of `size` seeds, from `first` to `end`. All but one range are for the soak."""
    parameters: list[object] = []
    for start in range(first, end, size):
        marks = [pytest.mark.soak] if start > first else []
        parameters.append(pytest.param(range(start, min(start + size, end)), marks=marks, id=str(start)))
    return parameters
