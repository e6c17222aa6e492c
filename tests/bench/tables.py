"""A table of measured figures, and the aims beside it: for the terminal and for the page."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

Cell = str | int | float
Results = Mapping[str, Any]

NOT_MEASURED = "not measured on this commit"
NOT_RUN = "not run on this commit"


class Aim(NamedTuple):
    """A limit of some values of a section's result; `is_least`: they should not be below it, else not above it."""

    what: str
    is_least: bool
    limit: float
    values: Callable[[Any], Iterable[float]]

    def worst(self, result: Any) -> float | None:
        """Return the value that is farthest on the wrong side; None without values."""
        with unless_missing():
            return (min if self.is_least else max)(self.values(result), default=None)
        return None

    def is_met(self, result: Any) -> bool | None:
        """Whether all values keep the limit; None without values."""
        worst = self.worst(result)
        return None if worst is None else (worst >= self.limit if self.is_least else worst <= self.limit)

    def said(self, result: Any) -> str:
        """Return the aim with the verdict, and with the worst value."""
        worst, met = self.worst(result), self.is_met(result)
        verdict = "" if worst is None else f": {'met' if met else 'missed'} ({figure(worst)})"
        return f"{self.what} {'≥' if self.is_least else '≤'} {figure(self.limit)}{verdict}"


def at_least(what: str, limit: float, values: Callable[[Any], Iterable[float]]) -> Aim:
    """Return the aim that none of the values is below the limit."""
    return Aim(what, True, limit, values)


def at_most(what: str, limit: float, values: Callable[[Any], Iterable[float]]) -> Aim:
    """Return the aim that none of the values is above the limit."""
    return Aim(what, False, limit, values)


class Table(NamedTuple):
    """A table of a section. `rows` takes the section's result; a column's name has its unit."""

    section: str
    caption: str
    columns: tuple[str, ...]
    rows: Callable[[Any], Iterable[tuple[Cell, ...]]]
    aims: tuple[Aim, ...] = ()

    def cells(self, result: Any) -> list[tuple[str, ...]]:
        """Return the rows with their figures; none if the section failed or was not measured."""
        with unless_missing():
            return [tuple(map(figure, row)) for row in self.rows(result)]
        return []


def figure(value: Cell) -> str:
    """Return a number with three digits or all that are before the point."""
    if not isinstance(value, float):
        return value if isinstance(value, str) else f"{value:,}"
    digits = 0 if value.is_integer() or abs(value) >= 99.5 else 1 if abs(value) >= 9.95 else 2
    return f"{value:,.{digits}f}"


def unless_missing() -> contextlib.suppress:
    """Pass over what a run has not measured: a quick one has fewer cases, and a section may fail."""
    return contextlib.suppress(KeyError, IndexError, StopIteration, TypeError)
