"""Casts in delivery logs: whether each member had them in their senders' order, and behind all that they depend on.

Source: Group Communication (docs/sources.md): FIFO and causal order.

It knows the casts of the log with their clocks, the views, and what total messages depend on; and then what each member
has delivered, in its order. Going through that once, it notes how far everything delivered so far reaches back: of each
life, up to which cast, and up to which seqno. What comes later and lies within that has come too late.

Invariant. A pair of deliveries in the wrong order is found if the log has both. What a log does not have is no anomaly
(who joins late begins late), unless it has casts of the same sender and view on both sides. A cast that no topic has
any more has no clock, and only its sender's order is checked.

A log with views that tells where each run of its reader begins says more, as nothing is left out within a run. Numbers
of a life go on from one view to the next. All that were delivered in a view were delivered by everybody who has seen
both its ends. And what a cast of a view depends on, within that view, has come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ordering import clocks
from ordering.casts import CAUSAL, NO_VIEW, Cast, Depends
from ordering.checker import (
    ANOMALIES,
    CAUSAL_VIOLATION,
    DIVERGENT,
    DUPLICATE,
    FIFO_VIOLATION,
    GAP,
    LISTED_SEQNOS,
    Anomaly,
)
from ordering.clocks import Clock, ClockMalformed
from ordering.membership import Life


class Numbering(NamedTuple):
    """One count of casts: those of a life in views, or in none."""

    life: Life
    in_view: bool


class _Ends(NamedTuple):
    """The first and the last of a life's casts in a view."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first} to {self.last}" if self.last else "none"


_NONE = _Ends(0, 0)


@dataclass(slots=True)
class _Log:
    """What a member has delivered: the last cast of each numbering, and how far it all reaches back."""

    last: dict[Numbering, int] = field(default_factory=dict)
    view: dict[Life, int] = field(default_factory=dict)
    counted_in: dict[Life, int] = field(default_factory=dict)
    """Of each life, the view of the last one that it cast in a view."""
    needed: dict[Life, int] = field(default_factory=dict)
    needed_seqno: int = 0
    is_told: bool = False
    """Whether the log tells where runs begin."""
    in_run: dict[Life, int] = field(default_factory=dict)
    """The last cast of each life in a view, of those that this run has."""
    open_view: int = NO_VIEW
    """The view that has begun in this run; what was delivered in it is in `of_view`."""
    of_view: dict[Life, _Ends] = field(default_factory=dict)
    lacking: dict[Life, tuple[int, str]] = field(default_factory=dict)
    """Casts that must have come, each with what depends on it."""


class CastChecker:
    """Feed it with `view`, `cast` and `total`, then with deliveries, then ask `finish`."""

    def __init__(self, *, one_order: bool = True) -> None:
        """`one_order`: all logs are of sites whose views have one count."""
        self._one_order = one_order
        self._ends: dict[int, dict[str, dict[Life, _Ends]]] = {}
        """Of each view, the casts of each life, as each member that has seen both its ends has it."""
        self._lives: dict[int, tuple[Life, ...]] = {}
        self._casts: dict[tuple[Life, int, int], Cast] = {}
        self._totals: dict[int, Depends] = {}
        self._clocks: dict[tuple[Life, int, int], Clock | None] | None = None
        self._logs: dict[str, _Log] = {}
        self._found: dict[tuple[str, str], list[str]] = {}

    def view(self, view_id: int, lives: tuple[Life, ...]) -> None:
        """A view of DATA, in its order; `lives`: none if it has no vector (`ordering.merging`)."""
        self._lives[view_id] = lives

    def total(self, seqno: int, depends: Depends | None) -> None:
        """What an effective message of DATA depends on."""
        if depends is not None:
            self._totals[seqno] = depends

    def cast(self, cast: Cast) -> None:
        """A cast of the log, in the order of its partition; again, if it stands there again."""
        self._casts.setdefault((cast.life, cast.view, cast.local_seqno), cast._replace(payload=b"", headers=()))

    def begins(self, member: str) -> None:
        """A run of the member begins: up to the next one, its log leaves nothing out."""
        log = self._logs.setdefault(member, _Log())
        log.is_told, log.open_view = True, NO_VIEW
        log.in_run.clear()
        self._note_lacking(member, log)

    def delivered_view(self, member: str, view_id: int) -> None:
        """The member's next delivery is a view."""
        log = self._logs.setdefault(member, _Log())
        if not log.is_told:
            return
        if log.open_view != NO_VIEW and self._lives.get(view_id):  # a group that gives up flush promises less
            self._ends.setdefault(log.open_view, {})[member] = log.of_view
        self._note_lacking(member, log)
        log.open_view, log.of_view = (view_id if self._lives.get(view_id) else NO_VIEW), {}

    def delivered_total(self, member: str, seqno: int) -> None:
        """The member's next delivery is a total message."""
        log = self._logs.setdefault(member, _Log())
        if seqno <= log.needed_seqno:
            self._find(CAUSAL_VIOLATION, f"deliveries of {member} have it behind a cast that depends on it", str(seqno))
        depends = self._totals.get(seqno)
        if depends is not None:
            self._need(log, depends.view, self._read(depends.clock, None, depends.view), str(seqno), None)

    def delivered_cast(self, member: str, life: Life, local_seqno: int, view: int) -> None:
        """The member's next delivery is a cast."""
        log = self._logs.setdefault(member, _Log())
        name = f"{life.address}#{life.incarnation}.{local_seqno}"
        numbering = Numbering(life, view != NO_VIEW)
        if view != NO_VIEW and self._counts_anew(life, log.counted_in.get(life, view), view):
            log.last.pop(numbering, None)
            log.needed.pop(life, None)
            log.in_run.pop(life, None)
        last, view_before = log.last.get(numbering, local_seqno - 1), log.view.get(life)
        if local_seqno <= last:
            if local_seqno == last:
                self._find(DUPLICATE, f"deliveries of {member} have a cast twice", name)
            else:
                self._find(FIFO_VIOLATION, f"deliveries of {member} break the order of a sender's casts", name)
        elif local_seqno > last + 1 and view_before == view != NO_VIEW:
            self._find(GAP, f"deliveries of {member} lack casts of the same view before it", name)
        log.last[numbering], log.view[life] = max(last, local_seqno), view
        if view == NO_VIEW:
            return
        if local_seqno > log.in_run.get(life, local_seqno) + 1 and log.is_told and view_before != view:
            self._find(GAP, f"deliveries of {member} lack casts before it, of a sender that was in both views", name)
        log.counted_in[life] = view
        log.in_run[life] = max(local_seqno, log.in_run.get(life, 0))
        if view == log.open_view:
            log.of_view[life] = _Ends(log.of_view.get(life, _Ends(local_seqno, 0)).first, log.in_run[life])
        if life in log.lacking and log.lacking[life][0] <= local_seqno:
            del log.lacking[life]
        if last < local_seqno <= log.needed.get(life, 0):
            self._find(CAUSAL_VIOLATION, f"deliveries of {member} have it behind what depends on it", name)
        cast = self._casts.get((life, view, local_seqno))
        if cast is not None and cast.order == CAUSAL:
            log.needed_seqno = max(log.needed_seqno, cast.after)
            self._need(log, view, self._clock_of(cast), name, life)

    def finish(self) -> list[Anomaly]:
        """What was found, in the order of `ANOMALIES`."""
        for member, log in self._logs.items():
            self._note_lacking(member, log)
        for view_id, ends in sorted(self._ends.items()) if self._one_order else ():
            (first, of_first), *others = ends.items()
            for member, of_view in others:
                for life in sorted(of_first.keys() | of_view.keys()):
                    one, other = of_first.get(life, _NONE), of_view.get(life, _NONE)
                    if one != other:
                        detail = f"deliveries of {first} and {member} end view {view_id} with other casts of a sender"
                        self._find(DIVERGENT, detail, f"{life.address}#{life.incarnation}: {one}, {other}")
        found = sorted(self._found.items(), key=lambda item: ANOMALIES.index(item[0][0]))
        return [Anomaly(name, f"{detail}: {_listed(names)}.", ()) for (name, detail), names in found]

    def _counts_anew(self, life: Life, before: int, view: int) -> bool:
        """Whether a life that had cast in the view `before` has been in none since then: the group gave up flush."""
        return any(life not in self._lives.get(between, (life,)) for between in range(before + 1, view))

    def _need(self, log: _Log, view: int, clock: Clock | None, name: str, sender: Life | None) -> None:
        for life, number in zip(self._lives.get(view, ()), clock or (), strict=False):
            if number > log.needed.get(life, 0):
                log.needed[life] = number
            is_of_view = view == log.open_view and (life, view, number) in self._casts
            if (
                is_of_view
                and life != sender
                and number > max(log.in_run.get(life, 0), log.lacking.get(life, (0, ""))[0])
            ):
                log.lacking[life] = number, name

    def _note_lacking(self, member: str, log: _Log) -> None:
        for _, name in log.lacking.values():
            self._find(CAUSAL_VIOLATION, f"deliveries of {member} lack what it depends on", name)
        log.lacking.clear()

    def _clock_of(self, cast: Cast) -> Clock | None:
        """Its clock, by those of its sender's causal casts before it in the view: all are read in their order, once."""
        if self._clocks is None:
            self._clocks = self._all_clocks(self._casts)
        return self._clocks.get((cast.life, cast.view, cast.local_seqno))

    def _all_clocks(self, casts: Mapping[tuple[Life, int, int], Cast]) -> dict[tuple[Life, int, int], Clock | None]:
        found: dict[tuple[Life, int, int], Clock | None] = {}
        last: dict[tuple[Life, int], Clock] = {}
        for key in sorted(casts):
            cast = casts[key]
            if cast.order == CAUSAL:
                clock = found[key] = self._read(cast.clock, last.get(key[:2]), cast.view)
                if clock is not None:
                    last[key[:2]] = clock
        return found

    def _read(self, text: str, base: Clock | None, view: int) -> Clock | None:
        try:
            return clocks.read(text, base, len(self._lives.get(view, ())))
        except ClockMalformed:
            return None

    def _find(self, name: str, detail: str, what: str) -> None:
        self._found.setdefault((name, detail), []).append(what)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - LISTED_SEQNOS} more" if len(names) > LISTED_SEQNOS else ""
    return ", ".join(names[:LISTED_SEQNOS]) + more
