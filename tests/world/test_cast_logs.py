"""`CastChecker` against logs of simulated histories: right ones have no anomaly, and each mutation has its name."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import pytest

from ordering.base.records import VIEW
from ordering.casts.casts import CAUSAL, NO_VIEW, Cast
from ordering.checker.anomalies import CAUSAL_VIOLATION, DIVERGENT, DUPLICATE, FIFO_VIOLATION, GAP, VIEW_VIOLATION
from ordering.membership.membership import MemberIncarnation
from tests.world.cast_logs import Line, LoggedCasts

SEEDS = 12
Mutated = Iterator[list[Line]]


def of_views(lines: Sequence[Line]) -> Iterator[tuple[int, Cast, list[Cast]]]:
    """Return each cast of a view with earlier casts of its sender: its place, and those casts."""
    before: dict[MemberIncarnation, list[Cast]] = {}
    for at, line in enumerate(lines):
        if isinstance(line, Cast) and line.view != NO_VIEW:
            earlier = before.setdefault(line.member, [])
            if earlier:
                yield at, line, list(earlier)
            earlier.append(line)


def one_missing(history: LoggedCasts, life: MemberIncarnation) -> Mutated:
    """A cast between two others of its sender, of the same view or not."""
    lines = history.logs[life]
    for at, cast, _ in of_views(lines):
        if any(isinstance(line, Cast) and line.view and line.member == cast.member for line in lines[at + 1 :]):
            yield lines[:at] + lines[at + 1 :]


def twice(history: LoggedCasts, life: MemberIncarnation) -> Mutated:
    lines = history.logs[life]
    for at, _, _ in of_views(lines):
        yield lines[: at + 1] + lines[at:]


def swapped(history: LoggedCasts, life: MemberIncarnation) -> Mutated:
    lines = history.logs[life]
    for at, cast, earlier in of_views(lines):
        where = lines.index(earlier[-1])
        if earlier[-1].view == cast.view:
            yield [*lines[:where], cast, *lines[where + 1 : at], earlier[-1], *lines[at + 1 :]]


def behind_its_view(history: LoggedCasts, life: MemberIncarnation) -> Mutated:
    lines = history.logs[life]
    for at, cast, _ in of_views(lines):
        views = [n for n, line in enumerate(lines) if n > at and not isinstance(line, Cast) and line.kind == VIEW]
        if views and lines[views[0]].view > cast.view:
            yield [*lines[:at], *lines[at + 1 : views[0] + 1], cast, *lines[views[0] + 1 :]]


def without_the_end(lines: Sequence[Line], at: int, cast: Cast) -> list[Line]:
    """Without this cast, and without all later ones of its sender."""
    return [
        line
        for number, line in enumerate(lines)
        if number < at or not (isinstance(line, Cast) and line.view and line.member == cast.member)
    ]


def fewer_than_others(history: LoggedCasts, life: MemberIncarnation) -> Mutated:
    """The last casts of a sender before a view, which another that goes on has."""
    lines = history.logs[life]
    lives = {record.view: record.members for record in history.data.values() if record.kind == VIEW}
    for at, cast, _ in of_views(lines):
        goes_on = any(not isinstance(line, Cast) and line.view > cast.view for line in lines[at:])
        others = [other for other, log in history.logs.items() if other != life and cast in log]
        if goes_on and any(other in lives.get(cast.view + 1, ()) and entered(history, other, cast) for other in others):
            yield without_the_end(lines, at, cast)


def entered(history: LoggedCasts, other: MemberIncarnation, cast: Cast) -> bool:
    """Whether this process has delivered the next view."""
    return any(not isinstance(line, Cast) and line.view > cast.view for line in history.logs[other])


def never_came(history: LoggedCasts, life: MemberIncarnation) -> Mutated:
    """A cast that another sender's causal cast depends on, and all behind it."""
    lines = history.logs[life]
    for at, cast, _ in of_views(lines):
        bit = 1 << int(cast.payload)
        for line in lines[at + 1 :]:
            if (
                not isinstance(line, Cast)
                or line.order != CAUSAL
                or line.member == cast.member
                or line.view != cast.view
            ):
                continue
            if history.past[int(line.payload)] & bit:
                yield without_the_end(lines, at, cast)
                break


@cache
def history_of(seed: int) -> LoggedCasts:
    """A history, and no anomaly in its logs."""
    history = LoggedCasts(seed)
    assert history.checked(history.logs) == []
    assert history.checked(history.logs, marked=False) == []
    return history


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutation", "name"),
    [
        (one_missing, GAP),
        (twice, DUPLICATE),
        (swapped, FIFO_VIOLATION),
        (behind_its_view, VIEW_VIOLATION),
        (fewer_than_others, DIVERGENT),
        (never_came, CAUSAL_VIOLATION),
    ],
)
def test_each_mutation_of_a_right_log_is_named(
    mutation: Callable[[LoggedCasts, MemberIncarnation], Mutated], name: str
) -> None:
    done = 0
    for seed in range(SEEDS):
        history = history_of(seed)
        for life in history.logs:
            mutated = list(mutation(history, life))
            for lines in random.Random(seed).sample(mutated, min(len(mutated), 3)):
                found = history.checked(history.logs | {life: lines})
                assert name in {anomaly.name for anomaly in found}, (seed, life)
                done += 1
    assert done > SEEDS
