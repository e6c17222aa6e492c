"""Numbers of seeds: some for `make test`, all for `make soak`."""

from __future__ import annotations

from typing import Any

import pytest


def blocks(first: int, size: int, end: int, *others: object) -> list[Any]:
    """Parameters of a test: `others`, and a range of `size` seeds, from `first` to `end`. The soak has all but one."""
    parameters = []
    for start in range(first, end, size):
        marks = [pytest.mark.soak] if start > first else []
        parameters.append(pytest.param(*others, range(start, min(start + size, end)), marks=marks, id=str(start)))
    return parameters
