"""The checker of casts in delivery logs: each member has them in their senders' order, and behind their causes.

Source: Group Communication (docs/sources.md): FIFO and causal order.

The checker first takes the casts with their clocks, the views, and the dependencies of total messages; then each
member's deliveries in their order. For every delivery it notes the casts of each incarnation, and the seqnos, that the
deliveries so far depend on. A delivery that lies within these has come too late.

Invariant. Each pair of deliveries in the wrong order is found, if the log has both. A missing delivery is no anomaly,
since a late joiner begins late, unless the log has casts of the same sender and view on both sides. A cast that no
topic has any more has no clock; only its sender's order is checked.

A log that marks where each run of its reader begins (`begins`) promises more, since a run has no hole:

* The numbers of an incarnation go on from view to view. So a cast that is missing before another is a gap.
* The causes of a cast come before it, or came with a state. So an incarnation that the run knows must have come so far.
* All members that go on from a view to the next have the same casts of it. A reader outside the next view (an observer,
  an excluded member) may have more of an incarnation that the next view lost, but never less (`ordering.casts.causal`).

A run knows how far an incarnation has come if it has delivered a cast of it. It also knows if the incarnation came into
the views after the run's first cast, or in or after the first view with its reader. Before these, a state or a
newcomer's first view may hide casts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ordering.casts import clocks
from ordering.casts.casts import CAUSAL, NO_VIEW, Cast, Depends
from ordering.casts.clocks import Clock, ClockMalformed
from ordering.checker.anomalies import (
    ANOMALIES,
    CAUSAL_VIOLATION,
    DIVERGENT,
    DUPLICATE,
    FIFO_VIOLATION,
    GAP,
    LISTED_SEQNOS,
    VIEW_VIOLATION,
    Anomaly,
)
from ordering.membership.membership import MemberIncarnation


class CastNumbering(NamedTuple):
    """A count of casts of one incarnation: of its casts in views, or of its casts in none."""

    sender: MemberIncarnation
    in_view: bool


@dataclass(slots=True)
class _Run:
    """A run of a reader: its present view, and the last cast of each incarnation."""

    reader: MemberIncarnation | None
    """The reader's incarnation in the views; None for an observer."""
    knows: bool = False
    """Whether the run is past the casts that a state, or a newcomer's first view, may hide."""
    now: int = NO_VIEW
    reached: dict[MemberIncarnation, int] = field(default_factory=dict)


class _End(NamedTuple):
    """The last cast of an incarnation that a run had at the end of a view."""

    member: str
    goes_on: bool
    reached: int


@dataclass(slots=True)
class _Log:
    """A member's deliveries: the last cast of each numbering, and the newest causes of all of them."""

    last: dict[CastNumbering, int] = field(default_factory=dict)
    view: dict[MemberIncarnation, int] = field(default_factory=dict)
    counted_in: dict[MemberIncarnation, int] = field(default_factory=dict)
    """The view of each incarnation's last cast in a view."""
    needed: dict[MemberIncarnation, int] = field(default_factory=dict)
    needed_seqno: int = 0
    run: _Run | None = None
    """The present run; None if the log does not mark where runs begin."""


class CastChecker:
    """A checker of casts. Feed it with `view`, `cast` and `total`, then with deliveries, then ask `finish` once."""

    def __init__(self) -> None:
        self._members: dict[int, tuple[MemberIncarnation, ...]] = {}
        self._casts: dict[tuple[MemberIncarnation, int, int], Cast] = {}
        self._totals: dict[int, Depends] = {}
        self._clocks: dict[tuple[MemberIncarnation, int, int], Clock | None] | None = None
        self._logs: dict[str, _Log] = {}
        self._ends: dict[tuple[int, MemberIncarnation], list[_End]] = {}
        self._found: dict[tuple[str, str], list[str]] = {}

    def view(self, view_id: int, members: tuple[MemberIncarnation, ...]) -> None:
        """Take a view of DATA, in its order. `members` is empty if it has no vector (`ordering.casts.merging`)."""
        self._members[view_id] = members

    def total(self, seqno: int, depends: Depends | None) -> None:
        """Take the dependencies of an effective message of DATA."""
        if depends is not None:
            self._totals[seqno] = depends

    def cast(self, cast: Cast) -> None:
        """Take a cast of the log, in the order of its partition, repeats included."""
        self._casts.setdefault((cast.member, cast.view, cast.local_seqno), cast._replace(payload=b"", headers=()))

    def begins(self, member: str, reader: MemberIncarnation | None = None) -> None:
        """Begin a run of the member's reader. `reader`: its incarnation in the views; None for an observer."""
        log = self._logs.setdefault(member, _Log())
        log.run = _Run(reader)
        log.view.clear()  # a hole between two runs is no gap

    def delivered_view(self, member: str, view: int) -> None:
        """Take the member's next delivery, a view."""
        run = self._logs.setdefault(member, _Log()).run
        self._enter(member, run, view)
        if run is not None and not run.knows and run.reader in self._members.get(view, ()):
            run.knows = True
            self._begin_members(run, view)

    def delivered_total(self, member: str, seqno: int, view: int = NO_VIEW) -> None:
        """Take the member's next delivery, a total message."""
        log = self._logs.setdefault(member, _Log())
        self._enter(member, log.run, view)
        if seqno <= log.needed_seqno:
            self._find(CAUSAL_VIOLATION, f"deliveries of {member} have it behind a cast that depends on it", str(seqno))
        depends = self._totals.get(seqno)
        if depends is not None:
            clock = self._read(depends.clock, None, depends.view)
            self._miss(member, log.run, depends.view, clock, str(seqno))
            self._need(log, depends.view, clock)

    def delivered_cast(self, member: str, sender: MemberIncarnation, local_seqno: int, view: int) -> None:
        """Take the member's next delivery, a cast."""
        log = self._logs.setdefault(member, _Log())
        name = f"{sender.address}#{sender.incarnation}.{local_seqno}"
        self._arrive(member, log.run, view, name)
        numbering = CastNumbering(sender, view != NO_VIEW)
        if view != NO_VIEW and self._counts_anew(sender, log.counted_in.get(sender, view), view):
            log.last.pop(numbering, None)
            log.needed.pop(sender, None)
        last = log.last.get(numbering, local_seqno - 1)
        if local_seqno <= last:
            if local_seqno == last:
                self._find(DUPLICATE, f"deliveries of {member} have a cast twice", name)
            else:
                self._find(FIFO_VIOLATION, f"deliveries of {member} break the order of a sender's casts", name)
        elif local_seqno > last + 1 and view != NO_VIEW and log.view.get(sender) == view:
            self._find(GAP, f"deliveries of {member} lack casts of the same view before it", name)
        elif view != NO_VIEW and log.run is not None and local_seqno > log.run.reached.get(sender, local_seqno) + 1:
            self._find(GAP, f"deliveries of {member} lack casts before it, of a sender that was there", name)
        log.last[numbering], log.view[sender] = max(last, local_seqno), view
        if view == NO_VIEW:
            return
        log.counted_in[sender] = view
        if last < local_seqno <= log.needed.get(sender, 0):
            self._find(CAUSAL_VIOLATION, f"deliveries of {member} have it behind what depends on it", name)
        cast = self._casts.get((sender, view, local_seqno))
        if cast is not None and cast.order == CAUSAL:
            log.needed_seqno = max(log.needed_seqno, cast.after)
            clock = self._clock_of(cast)
            self._miss(member, log.run, view, clock, name, but=sender)
            self._need(log, view, clock)
        if log.run is not None:
            log.run.reached[sender] = max(log.run.reached.get(sender, 0), local_seqno)

    def finish(self) -> list[Anomaly]:
        """Return all anomalies, in the order of `ANOMALIES`."""
        self._compare_ends()
        found = sorted(self._found.items(), key=lambda item: ANOMALIES.index(item[0][0]))
        return [Anomaly(name, f"{detail}: {_listed(names)}.", ()) for (name, detail), names in found]

    def _counts_anew(self, sender: MemberIncarnation, before: int, view: int) -> bool:
        """Whether an incarnation's numbers start over: since its view `before`, some view had no vector with it."""
        return view > before + 1 and any(
            sender not in members for between, members in self._members.items() if before < between < view
        )

    def _arrive(self, member: str, run: _Run | None, view: int, name: str) -> None:
        """Let a cast of a view come to the run."""
        if run is None or view == NO_VIEW:
            return
        if view < run.now:
            self._find(VIEW_VIOLATION, f"deliveries of {member} have it behind the view that ended its own", name)
        self._enter(member, run, view)
        run.knows = True

    def _enter(self, member: str, run: _Run | None, view: int) -> None:
        """Move the run to this view. Keep its last casts at the end of each view before."""
        if run is None or view <= run.now:
            return
        ended = range(run.now, min(view, max(self._members, default=0) + 1)) if run.knows else ()
        run.now = view
        for number in ended:
            goes_on = run.reader in self._members.get(number + 1, ())
            for sender in self._members.get(number, ()):
                if sender in run.reached:
                    self._ends.setdefault((number, sender), []).append(_End(member, goes_on, run.reached[sender]))
            self._begin_members(run, number + 1)

    def _begin_members(self, run: _Run, view: int) -> None:
        """Note that the incarnations that are new in this view have cast nothing before it."""
        before = self._members.get(view - 1, () if view == 1 else None)
        if before is not None:
            run.reached |= dict.fromkeys(set(self._members.get(view, ())) - set(before), 0)

    def _miss(
        self,
        member: str,
        run: _Run | None,
        view: int,
        clock: Clock | None,
        name: str,
        but: MemberIncarnation | None = None,
    ) -> None:
        """Find causes that a delivery lacks. `but`: the cast's sender, whose own earlier casts are checked apart."""
        if run is None or run.now != view:
            return
        for sender, number in zip(self._members.get(view, ()), clock or (), strict=False):
            if sender != but and run.reached.get(sender, number) < number:
                self._find(CAUSAL_VIOLATION, f"deliveries of {member} lack what it depends on", name)
                return

    def _compare_ends(self) -> None:
        for (view, sender), ends in sorted(self._ends.items()):
            stays = sender in self._members.get(view + 1, ())
            most = max((end.reached for end in ends if stays or end.goes_on), default=0)
            for end in ends:
                if end.reached < most:
                    detail = f"deliveries of {end.member} lack casts that others had before the next view"
                    self._find(DIVERGENT, detail, f"{sender.address}#{sender.incarnation} in view {view}")

    def _need(self, log: _Log, view: int, clock: Clock | None) -> None:
        for sender, number in zip(self._members.get(view, ()), clock or (), strict=False):
            if number > log.needed.get(sender, 0):
                log.needed[sender] = number

    def _clock_of(self, cast: Cast) -> Clock | None:
        """Return a cast's clock, which builds on its sender's earlier ones in the view. All are read once, in order."""
        if self._clocks is None:
            self._clocks = self._all_clocks(self._casts)
        return self._clocks.get((cast.member, cast.view, cast.local_seqno))

    def _all_clocks(
        self, casts: Mapping[tuple[MemberIncarnation, int, int], Cast]
    ) -> dict[tuple[MemberIncarnation, int, int], Clock | None]:
        found: dict[tuple[MemberIncarnation, int, int], Clock | None] = {}
        last: dict[tuple[MemberIncarnation, int], Clock] = {}
        for key in sorted(casts):
            cast = casts[key]
            if cast.order == CAUSAL:
                clock = found[key] = self._read(cast.clock, last.get(key[:2]), cast.view)
                if clock is not None:
                    last[key[:2]] = clock
        return found

    def _read(self, text: str, base: Clock | None, view: int) -> Clock | None:
        try:
            return clocks.read(text, base, len(self._members.get(view, ())))
        except ClockMalformed:
            return None

    def _find(self, name: str, detail: str, what: str) -> None:
        self._found.setdefault((name, detail), []).append(what)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - LISTED_SEQNOS} more" if len(names) > LISTED_SEQNOS else ""
    return ", ".join(names[:LISTED_SEQNOS]) + more
