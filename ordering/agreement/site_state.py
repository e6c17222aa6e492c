"""The state of a site in the agreement of a group, its events, and its notices to the operator. Plain values.

`ordering.agreement.site` decides; here is also how entries of a site's log hold the state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ordering.agreement.codec import LATER, decode, encode
from ordering.agreement.formation import ProcessIncarnation, first_view
from ordering.agreement.log import Entry, LogRow, OrderedRun, ReadReport, SiteMessage, read_told
from ordering.agreement.messages import Exclude, Installed, NotExcluded, Outside, Stuck
from ordering.agreement.process import SUSPECT_AFTER_MS, ProcessState, member
from ordering.agreement.state import RESEND_AFTER_MS, Send, Tick
from ordering.base.canonical import changed
from ordering.base.errors import ProtocolViolation
from ordering.base.formats import FIRST
from ordering.base.records import Exclusion
from ordering.sequencer.state import MAX_INFLATED_BYTES, SequencerState


class Arrived(NamedTuple):
    """The arrival of FORWARD records: this site has a partition, its own or another's, up to `end`, an offset at home.

    `at` is the offset at which to read on in this site's Kafka; in an own partition it equals `end`. Records below
    `begin` can't be read here. `is_idle`: all of these records are heartbeats, which no member waits for.
    """

    place: str
    end: int
    at: int
    begin: int = 0
    is_idle: bool = False


class Heard(NamedTuple):
    """A record of another site's log: an entry, or the seal of `epoch`. `at`: the offset here at which to read on."""

    site: str
    at: int
    epoch: int
    entry: Entry | None = None


SiteEvent = Arrived | Heard | Tick | Exclude


class OtherLog(NamedTuple):
    """The notice that the next entry of a site's log does not follow the last one: the log was lost, and begun anew."""

    site: str


class Dropped(NamedTuple):
    """The notice that this site lacks the next records of the order: its part of the partition begins behind them."""

    place: str


Notice = Installed | Outside | Stuck | NotExcluded | OtherLog | Dropped
"""A notice to the operator: the view in force, the reason why a site waits, or a site that must not go on."""


class Place(NamedTuple):
    """The offsets of a partition of FORWARD up to which it has arrived here (`end`), was submitted by this site, and is
    ordered. `marks`: see `CopyMark`.
    """

    name: str
    end: int = 0
    submitted: int = 0
    ordered: int = 0
    marks: tuple[CopyMark, ...] = ()


class CopyMark(NamedTuple):
    """A pair of offsets: the records from `end` on at home lie from `at` on here."""

    end: int
    at: int


@dataclass(slots=True)
class Pace:
    """The times of a job's last snapshot, last begin of a run, and last entry (None before the first)."""

    snapped_at_ms: int = 0
    begun_at_ms: int = 0
    said_at_ms: int | None = None


@dataclass(slots=True)
class Unsaid:
    """The content of a site's next entry, which may wait: nothing that anybody waits for has come since the last.

    `told` reports which records of its begun runs the site has read. `urgent` has, for each partition, the offset up to
    which it has more than heartbeats. `before` is the state in the last entry, if this job wrote that in format 2.
    """

    letters: list[SiteMessage] = field(default_factory=list)
    ordered: list[OrderedRun] = field(default_factory=list)
    told: list[ReadReport] = field(default_factory=list)
    urgent: dict[str, int] = field(default_factory=dict)
    before: bytes = b""


class Waiting(NamedTuple):
    """A run of another site that waits for its records."""

    sender: ProcessIncarnation
    message: Send


@dataclass(slots=True)
class SiteState:
    """The state of a site in the agreement of a group.

    `number` is its last entry's number, and `position` the last ordered one. `snapshot`, which entry `base` has, is the
    sequencer's state after position `sequenced`, and `since` has the runs ordered after that. `ahead` has ordered runs
    with a gap before them. `trail` has its last own entry, and the ones that others may still name. DATA and dead
    letters of all positions up to `complete` are in Kafka; the run that ends at `refused` was the last one with dead
    letters. `told` has the sites' reports on the records of runs; in format 1 a letter has them.
    """

    group: str
    process: ProcessState
    snapshot: bytes
    number: int = 0
    position: int = 0
    sequenced: int = 0
    since: deque[OrderedRun] = field(default_factory=deque)
    ahead: dict[int, OrderedRun] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    logs: dict[str, LogRow] = field(default_factory=dict)
    waiting: list[Waiting] = field(default_factory=list)
    rejected: int = 0
    base: int = 0
    trail: dict[int, bytes] = field(default_factory=dict)
    complete: int = 0
    refused: int = 0
    told: dict[str, ReadReport] = field(default_factory=dict, metadata=LATER)


class Reading(NamedTuple):
    """The reading of a partition of FORWARD: all from `begin` to below `end` was read; records from `needed` on matter.

    `is_cut`: retention has dropped the beginning, and the first record will tell where it begins now. `is_told`: that
    part has the next records of the order, and the operator was told.
    """

    name: str
    begin: int
    end: int
    needed: int
    is_cut: bool = False
    is_told: bool = False


@dataclass(slots=True)
class GroupState:
    """The state of a group in a job, without the sequencer's state, which is at `position`.

    `sent`: the last seqno that was passed to Kafka. `exclusions` are still to be carried out, in this view or a later
    one; `excluded` were carried out in this view. `has_heard`: whether another site was heard since the last run was
    begun; a job that begins need not know. `of_format`: the group's at this site (`ordering.base.formats`).
    """

    site: SiteState
    epoch: int
    position: int
    sent: int
    readings: dict[str, Reading] = field(default_factory=dict)
    exclusions: list[Exclusion] = field(default_factory=list)
    excluded: list[Exclusion] = field(default_factory=list)
    has_heard: bool = False
    pace: Pace = field(default_factory=Pace)
    unsaid: Unsaid = field(default_factory=Unsaid)
    of_format: int = FIRST.number


def first_state(
    group: str,
    site: str,
    sites: Iterable[str],
    *,
    now_ms: int = 0,
    suspect_after_ms: int = SUSPECT_AFTER_MS,
    resend_after_ms: int = RESEND_AFTER_MS,
) -> SiteState:
    """Return the state of a site whose log has no entry yet. All sites must be given the same `sites`."""
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
    """Return the state of a site from its last entries that count, at least from the last one's `base` on.

    Raises ProtocolViolation.
    """
    last = entries[-1]
    at = next((at for at in range(len(entries) - 1, -1, -1) if entries[at].number == last.base), None)
    if at is None or not entries[at].snapshot:
        raise ProtocolViolation(f"entry {last.number} needs the snapshot of {last.base}, which is not there.")
    base = entries[at]
    if last.readable_from == FIRST.number:
        state = decode(SiteState, last.state)
        state.trail[last.number] = last.digest
        state.told = {told.place: told for told in read_told(last.letters)}
    else:
        text = base.state
        for entry in entries[at + 1 :]:
            text = _after(text, entry.state)
        state = decode(SiteState, text)
        state.since = deque([*base.since, *(run for entry in entries[at + 1 :] for run in entry.ordered)])
        state.trail = dict(base.trail) | {entry.number: entry.digest for entry in entries[at:]}
    state.snapshot, state.logs = base.snapshot, {row.site: row for row in last.logs}
    return state


def stated(state: SiteState) -> bytes:
    """Return a state in format 2, without the fields that entries hold by themselves."""
    return encode(replace(state, snapshot=b"", logs={}, since=deque(), trail={}), as_text=True)


def _after(before: bytes, changes: bytes) -> bytes:
    """Return the state behind an entry that has only its changes. Raises ProtocolViolation."""
    try:
        return changed(before, changes, MAX_INFLATED_BYTES)
    except ValueError as error:
        raise ProtocolViolation(f"no changes of a site's state: {error}") from error
