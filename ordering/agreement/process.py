"""The state of an ISIS process through all views (`ordering.agreement.views`), and its beginnings. Plain values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ordering.agreement.codec import LATER, decode, encode
from ordering.agreement.formation import ProcessIncarnation, View
from ordering.agreement.hold_back import Run
from ordering.agreement.messages import NO_BALLOT, Ballot, BallotPromise, NextView, Vote
from ordering.agreement.state import RESEND_AFTER_MS, AgreementState, Placed, begin
from ordering.base.errors import ProtocolViolation

SUSPECT_AFTER_MS = 2_000
"""Longest silence of a member before it is suspected."""

FORMAT = 1
"""The format of stored states."""


class Attempt(NamedTuple):
    """A ballot of the process's own."""

    ballot: Ballot
    since_ms: int
    asked_at_ms: int
    promises: tuple[tuple[int, BallotPromise], ...]
    value: NextView | None = None
    accepted_by: tuple[int, ...] = ()
    is_stuck: bool = False


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The state of a process.

    `agreement` is None while it is in no view; `backlog` then has its own runs above number `own_row`. `settled` is the
    end of the view before. `promised` and `vote` concern the next view, and `attempt` is its own ballot. Times: `heard`
    has each member's last message, `joiners` each incarnation's last request to join, `hears` each member's last report
    of joiners, `told` each process's last copy of the view. `excluded` has the operator's exclusions. `patience_ms` is
    the time at which it opens a ballot, 0 without a reason. `slower` has the processes that suspect later than this
    one, and after how long.
    """

    me: ProcessIncarnation
    view: View
    suspect_after_ms: int = SUSPECT_AFTER_MS
    settled: tuple[Placed, ...] = ()
    agreement: AgreementState | None = None
    promised: Ballot = NO_BALLOT
    vote: Vote | None = None
    attempt: Attempt | None = None
    highest_round: int = 0
    delivered: int = 0
    own_row: int = 0
    backlog: tuple[Run, ...] = ()
    heard: tuple[tuple[ProcessIncarnation, int], ...] = ()
    joiners: tuple[tuple[ProcessIncarnation, int], ...] = ()
    told: tuple[tuple[ProcessIncarnation, int], ...] = ()
    excluded: tuple[ProcessIncarnation, ...] = ()
    now_ms: int = 0
    beat_at_ms: int = 0
    patience_ms: int = 0
    ignored: int = 0
    resend_after_ms: int = RESEND_AFTER_MS
    hears: tuple[tuple[ProcessIncarnation, int, tuple[ProcessIncarnation, ...]], ...] = ()
    slower: tuple[tuple[str, int], ...] = field(default=(), metadata=LATER)

    def to_bytes(self) -> bytes:
        """Return JSON; equal states give equal bytes."""
        return encode((FORMAT,))[:-1] + b"," + encode(self) + b"]"

    @classmethod
    def from_bytes(cls, raw: bytes) -> ProcessState:
        """Return the inverse of `to_bytes`. Raises ProtocolViolation for any other bytes."""
        start = encode((FORMAT,))[:-1] + b","
        if not (raw.startswith(start) and raw.endswith(b"]")):
            raise ProtocolViolation("not a state of an ISIS process that this version can read.")
        return decode(cls, raw[len(start) : -1])


def member(
    me: ProcessIncarnation,
    view: View,
    *,
    now_ms: int = 0,
    suspect_after_ms: int = SUSPECT_AFTER_MS,
    resend_after_ms: int = RESEND_AFTER_MS,
) -> ProcessState:
    """Return a process that begins as a member of a given view, as a site does, whose file names the first members."""
    rows, place = [0] * len(view.members), view.members.index(me)
    return ProcessState(
        me=me,
        view=view,
        suspect_after_ms=suspect_after_ms,
        agreement=begin(view.id, place, rows, delivered=view.base, now_ms=now_ms, resend_after_ms=resend_after_ms),
        delivered=view.base,
        heard=tuple((member, now_ms) for member in view.members),
        now_ms=now_ms,
        resend_after_ms=resend_after_ms,
    )


def awake(state: ProcessState, now_ms: int) -> ProcessState:
    """Return a process that goes on after some time. It suspects nobody for a silence while it was away."""
    now_ms = max(state.now_ms, now_ms)
    return replace(state, now_ms=now_ms, heard=tuple((member, now_ms) for member, _ in state.heard))


def suspecting_after(state: ProcessState, suspect_after_ms: int) -> ProcessState:
    """Return the process with another `suspect_after_ms`. The others may have the old one, until they tell theirs."""
    others = (member.name for member in state.view.members if member != state.me)
    slower = {**dict.fromkeys(others, state.suspect_after_ms), **dict(state.slower)}
    kept = tuple(sorted((name, ms) for name, ms in slower.items() if ms > suspect_after_ms))
    return replace(state, suspect_after_ms=suspect_after_ms, slower=kept)


def fresh(me: ProcessIncarnation, *, now_ms: int = 0, suspect_after_ms: int = SUSPECT_AFTER_MS) -> ProcessState:
    """Return a process that remembers nothing (`ordering.agreement.formation`)."""
    return ProcessState(me, View(0, 0, ()), suspect_after_ms, now_ms=now_ms)
