"""A rule of the design that is broken on purpose for the time of a run. The product can't reach any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch


class Mutation(NamedTuple):
    """A broken rule: its error, the anomaly that it must show (or one of several), and how it is broken."""

    name: str
    why: str
    expected: str | tuple[str, ...]
    patches: tuple[tuple[str, Any], ...] = ()
    """Targets and their replacements. A mapping replaces its keys only."""
    rules: Any = None
    """The actors' own rules, in a world that has such."""
    needs: tuple[str, ...] = ()
    """Features of a history without which the broken rule does not show."""

    def has(self, feature: str) -> bool:
        """Whether histories may have a feature: any if all rules hold, else only features that it needs."""
        return self is NONE or feature in self.needs

    @property
    def anomalies(self) -> frozenset[str]:
        """Return the names of anomalies; one of them must show."""
        return frozenset((self.expected,) if isinstance(self.expected, str) else self.expected)

    @contextmanager
    def broken(self) -> Iterator[None]:
        """Break the rule for the time of a run."""
        with ExitStack() as stack:
            for target, replacement in self.patches:
                is_part = isinstance(replacement, Mapping)
                stack.enter_context(patch.dict(target, replacement) if is_part else patch(target, replacement))
            yield


NONE = Mutation("none", "Every rule holds", ())
