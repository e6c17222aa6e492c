"""What a site knows of the agreement of a group, what comes to it and what an operator is told
(`ordering.agreement.site`).

Plain values, and how a site's log tells them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ordering.agreement.codec import LATER, decode, encode
from ordering.agreement.formation import ProcessIncarnation, first_view
from ordering.agreement.log import Entry, LogRow, OrderedRun, OwnEntry, ReadReport, SiteMessage, read_told
from ordering.agreement.messages import Exclude, Installed, NotExcluded, Outside, Stuck
from ordering.agreement.process import SUSPECT_AFTER_MS, ProcessState, member
from ordering.agreement.state import RESEND_AFTER_MS, Send, Tick
from ordering.base.canonical import deflated, inflated
from ordering.base.errors import ProtocolViolation
from ordering.base.formats import FIRST
from ordering.sequencer.sequencer import MAX_INFLATED_BYTES, SequencerState


class Arrived(NamedTuple):
    """FORWARD of a partition, the site's own or another's, stands at this site up to `end`, its offset at home.

    `at` is where to read on in this site's Kafka for what comes next. For what is the site's own it is `end`, too.
    What stood below `begin` can't be read here. `is_idle`: what has come is heartbeats, which no member waits for.
    """

    place: str
    end: int
    at: int
    begin: int = 0
    is_idle: bool = False


class Heard(NamedTuple):
    """A record of another site's log: an entry, or a seal of that epoch. `at` is where to read on here."""

    site: str
    at: int
    epoch: int
    entry: Entry | None = None


SiteEvent = Arrived | Heard | Tick | Exclude


class OtherLog(NamedTuple):
    """What came next in that site's log does not follow what was read of it: the log was lost, and begun anew."""

    site: str


class Dropped(NamedTuple):
    """Records of that partition come next in the order, and what this site has of it begins behind where they stood."""

    place: str


Notice = Installed | Outside | Stuck | NotExcluded | OtherLog | Dropped
"""What an operator may want to know: which view is in force, what a site waits for, and who must not go on."""


class Place(NamedTuple):
    """How far a partition of FORWARD is here (`end`), was submitted by this site, and is ordered; and see
    `CopyMark`.
    """

    name: str
    end: int = 0
    submitted: int = 0
    ordered: int = 0
    marks: tuple[CopyMark, ...] = ()


class CopyMark(NamedTuple):
    """What comes from offset `end` on at home stands from `at` on here."""

    end: int
    at: int


class Pace(NamedTuple):
    """When a job has taken its last snapshot, begun its last run, and written its last entry; None before the first."""

    snapped_at_ms: int = 0
    begun_at_ms: int = 0
    said_at_ms: int | None = None


class Unsaid(NamedTuple):
    """What a site has to say, and may say later: since its last entry, nothing has come that anybody waits for.

    `told` is what it has read of the runs it has begun. `urgent` has, of each partition, up to where there is more than
    heartbeats in it. `before` is the state as the last entry has it, if that is of this job, and of format 2.
    """

    letters: tuple[SiteMessage, ...] = ()
    ordered: tuple[OrderedRun, ...] = ()
    told: tuple[ReadReport, ...] = ()
    urgent: tuple[tuple[str, int], ...] = ()
    before: bytes = b""


_NUMBERS = re.compile(rb"(0|[1-9][0-9]*)")
_AS_TEXT, _AS_NUMBERS = b"=", b"+"
"""How changes are written: as the text that is not in the state before, or as what its numbers are more or less."""

NEW_PACE, NOTHING_UNSAID = Pace(), Unsaid()


class Waiting(NamedTuple):
    """A run of another site that waits for its records."""

    sender: ProcessIncarnation
    message: Send


@dataclass(frozen=True, slots=True)
class SiteState:
    """All that a site knows of the agreement of a group.

    `number` is that of its last entry, `position` the last one ordered. `snapshot` is the sequencer's state after the
    position `sequenced` (it stands in entry `base`), and `since` has the runs ordered after that. `ahead` are runs that
    are ordered, and do not follow yet. `trail` are entries of its own, the last one and those that others may name.
    Of all up to the position `complete`, DATA and dead letters stand in Kafka; the run that ends at `refused` was the
    last one to have some. `told` is what sites have said of the records of runs; in format 1 a letter has it.
    """

    group: str
    process: ProcessState
    snapshot: bytes
    number: int = 0
    position: int = 0
    sequenced: int = 0
    since: tuple[OrderedRun, ...] = ()
    ahead: tuple[OrderedRun, ...] = ()
    places: tuple[Place, ...] = ()
    logs: tuple[LogRow, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    rejected: int = 0
    base: int = 0
    trail: tuple[OwnEntry, ...] = ()
    complete: int = 0
    refused: int = 0
    told: tuple[ReadReport, ...] = field(default=(), metadata=LATER)

    def to_bytes(self) -> bytes:
        """The state as JSON, equal states as equal bytes."""
        return encode(self)

    @classmethod
    def from_bytes(cls, raw: bytes) -> SiteState:
        """Inverse of `to_bytes`. Raises ProtocolViolation for anything else."""
        return decode(cls, raw)


def first_state(
    group: str,
    site: str,
    sites: Iterable[str],
    *,
    now_ms: int = 0,
    suspect_after_ms: int = SUSPECT_AFTER_MS,
    resend_after_ms: int = RESEND_AFTER_MS,
) -> SiteState:
    """A site whose log has no entry yet. All must be given the same `sites`."""
    view = first_view(ProcessIncarnation(name) for name in sites)
    process = member(
        ProcessIncarnation(site),
        view,
        now_ms=now_ms,
        suspect_after_ms=suspect_after_ms,
        resend_after_ms=resend_after_ms,
    )
    return SiteState(group, process, SequencerState(group).to_bytes())


def state_of(entries: Sequence[Entry]) -> SiteState:
    """The state of a site whose last entries these are, all that count: at least from the last one's `base` on.

    Raises ProtocolViolation.
    """
    last = entries[-1]
    at = next((at for at in range(len(entries) - 1, -1, -1) if entries[at].number == last.base), None)
    if at is None or not entries[at].snapshot:
        raise ProtocolViolation(f"entry {last.number} needs the snapshot of {last.base}, which is not there.")
    base = entries[at]
    if last.readable_from == FIRST.number:
        state = SiteState.from_bytes(last.state)
        trail = (*state.trail, OwnEntry(last.number, last.digest))
        state = replace(state, trail=trail, told=read_told(last.letters))
    else:
        text, since, trail = base.state, base.since, (*base.trail, OwnEntry(base.number, base.digest))
        for entry in entries[at + 1 :]:
            text = _after(text, entry.state)
            since, trail = (*since, *entry.ordered), (*trail, OwnEntry(entry.number, entry.digest))
        state = replace(SiteState.from_bytes(text), since=since, trail=trail)
    return replace(state, snapshot=base.snapshot, logs=last.logs)


def stated(state: SiteState) -> bytes:
    """A state in format 2, without what entries tell apart."""
    return encode(replace(state, snapshot=b"", logs=(), since=(), trail=()), as_text=True)


def changes(before: bytes, after: bytes) -> bytes:
    """What an entry that is no base says of its state; `before` is that of the entry before it.

    Mostly some numbers are higher, and the text between them is the same: then it is by how much they are.
    """
    old, new = _NUMBERS.split(before), _NUMBERS.split(after)
    if old[::2] != new[::2]:
        return _AS_TEXT + deflated(after, before)
    steps = (int(here) - int(there) for there, here in zip(old[1::2], new[1::2], strict=True))
    return _AS_NUMBERS + deflated(b"".join(map(_varint, steps)), b"")


def _after(before: bytes, changes: bytes) -> bytes:
    """Inverse of `changes`. Raises ProtocolViolation."""
    try:
        if changes.startswith(_AS_TEXT):
            return inflated(changes[1:], MAX_INFLATED_BYTES, before)
        if not changes.startswith(_AS_NUMBERS):
            raise ValueError(f"{changes[:1]!r} is no form")
        words = _NUMBERS.split(before)
        steps = _ints(inflated(changes[1:], MAX_INFLATED_BYTES, b""))
        words[1::2] = [b"%d" % (int(word) + step) for word, step in zip(words[1::2], steps, strict=True)]
        return b"".join(words)
    except ValueError as error:
        raise ProtocolViolation(f"no changes of a site's state: {error}") from error


def _varint(step: int) -> bytes:
    """A number with its sign in its last bit, seven bits a byte, the lowest first."""
    rest, out = (step << 1) ^ (-1 if step < 0 else 0), bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _ints(raw: bytes) -> Iterator[int]:
    """Inverse of `_varint`, for one behind the other."""
    rest = shift = 0
    for byte in raw:
        rest |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield rest >> 1 ^ -(rest & 1)
            rest = shift = 0
    if shift:
        raise ValueError("it is cut off")
