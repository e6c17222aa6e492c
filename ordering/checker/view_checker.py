"""The checker of views: virtual synchrony, as far as the log and the deliveries show it.

A message belongs to the view in force at its seqno. With flush on, that is the view in which it was sent, if five
things hold in the log:

* a record is stamped with the newest view before it;
* a view with a member that stays comes inside a flush;
* all members that stay have sent FLUSH_OK in that flush;
* a member sends nothing between its FLUSH_OK and the end of the flush;
* a member sends nothing after a view that suspects it.

Survivors have the same set in each view if every source gives a seqno the same view.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ordering.base.errors import ProtocolViolation, UsageError
from ordering.base.records import FLUSH_OK, MESSAGE, SETTINGS, START_FLUSH, STOP_FLUSH, VIEW, Data
from ordering.membership.membership import MemberIncarnation
from ordering.membership.settings import Settings
from ordering.participant.events import EventReader, ViewChange


@dataclass(slots=True)
class SeqnoRange:
    """Seqnos `first` … `last` of one source, all of the view `view_id` (as far as the source names them)."""

    first: int
    last: int
    view_id: int


class ViewRuns:
    """The view that a source gives to each seqno, run by run. O(views)."""

    def __init__(self) -> None:
        self.runs: list[SeqnoRange] = []

    def add(self, seqno: int, view_id: int) -> None:
        """Add the next seqno, in increasing order."""
        if self.runs and self.runs[-1].view_id == view_id:
            self.runs[-1].last = seqno
        else:
            self.runs.append(SeqnoRange(seqno, seqno, view_id))

    def differences(self, other: ViewRuns) -> Iterator[int]:
        """Yield the first seqno of each stretch to which the two give different views."""
        mine, theirs = iter(self.runs), iter(other.runs)
        a, b = next(mine, None), next(theirs, None)
        while a is not None and b is not None:
            first = max(a.first, b.first)
            if first <= min(a.last, b.last) and a.view_id != b.view_id:
                yield first
            if a.last <= b.last:
                a = next(mine, None)
            else:
                b = next(theirs, None)


class ViewChecker:
    """The checker of the effective records of one DATA log. `complete`: the log begins at seqno 1."""

    def __init__(self, *, complete: bool) -> None:
        self.runs = ViewRuns()
        self._events = EventReader()
        self._view_id: int | None = 0 if complete else None
        self._settings = Settings()
        self._flush_id: int | None = 0 if complete else None
        """The seqno of the running flush's START_FLUSH, 0 if no flush runs, None if the log does not tell yet."""
        self._answered: set[str] = set()
        self._over: set[MemberIncarnation] = set()
        """The incarnations that are over (`ordering.membership.membership`). O(suspected members)."""

    def next(self, record: Data) -> str:
        """Take the next effective record; return a phrase ("has …") for the promise that it breaks, or ''."""
        self.runs.add(record.seqno, record.view)
        expected = self._view_id if record.kind != VIEW or self._view_id is None else self._view_id + 1
        self._view_id = record.view
        if expected is not None and record.view != expected:
            return "has a record of another view than the one in force"
        if record.sender and (record.sender, record.incarnation) in self._over:
            return "has a record of an incarnation that was over"
        if record.kind == MESSAGE:
            return "has a message of a member behind its FLUSH_OK" if record.sender in self._answered else ""
        try:
            return self._control(record)
        except (ProtocolViolation, UsageError, ValueError):
            return f"has a {record.kind} that can't be read"

    def _control(self, record: Data) -> str:
        if record.kind == SETTINGS:
            self._settings = self._settings.decided(record.payload)
        elif record.kind == FLUSH_OK and self._flush_id in (None, int(record.payload)):
            self._answered.add(record.sender)
        elif record.kind in (START_FLUSH, STOP_FLUSH):
            self._flush_id = record.seqno if record.kind == START_FLUSH else 0
            self._answered.clear()
        before = self._events.view
        self._events.accept(record.kind, record.seqno, record.view, record.sender, record.payload)
        after = self._events.view
        return self._view(before, after) if record.kind == VIEW and after is not None else ""

    def _view(self, before: ViewChange | None, after: ViewChange) -> str:
        going_on = set(after.incarnations).intersection(before.incarnations if before else ())
        stay = {member.address for member in going_on} - set(after.joined)
        if before is not None and (self._settings.flush or self._settings.closed):
            self._over |= {member for member in before.incarnations if member.address in after.suspected}
        flush_id, answered = self._events.flush_id, self._answered
        self._answered = (answered & set(after.members)) | set(after.joined) if flush_id else set()
        if self._settings.flush and stay and not flush_id:
            return "has a view outside of a flush"
        if self._flush_id is None:
            return ""
        if flush_id != self._flush_id:
            return "has a view in another flush than the one in hand"
        if flush_id and not stay <= answered:
            return f"has a view in which {min(stay - answered)} stays, which has not said FLUSH_OK"
        return ""
