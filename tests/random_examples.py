"""Numbers of random examples for properties where Hypothesis's 100 are too few or too many."""

from __future__ import annotations

from hypothesis import settings

_OF_HYPOTHESIS = 100


def examples(count: int) -> int:
    """`count`; in `make test-fast`, whose profile has fewer than Hypothesis's 100, as many fewer in proportion."""
    return max(1, count * settings().max_examples // _OF_HYPOTHESIS)
