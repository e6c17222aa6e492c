"""What a site knows of the agreement of a group, what comes to it and what an operator is told (`ordering.isis_site`).

Plain values, and how a site's log tells them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ordering.errors import ProtocolViolation
from ordering.isis_codec import LATER, decode, encode
from ordering.isis_formation import Life, first_view
from ordering.isis_log import Entry, Letter, LogRow, Ordered, OwnEntry, Told, read_told
from ordering.isis_messages import Exclude, Installed, NotExcluded, Outside, Stuck
from ordering.isis_process import SUSPECT_AFTER_MS, ProcessState, member
from ordering.isis_state import RESEND_AFTER_MS, Send, Tick
from ordering.sequencer import SequencerState


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
    """How far a partition of FORWARD is here (`end`), was submitted by this site, and is ordered; and see `Mark`."""

    name: str
    end: int = 0
    submitted: int = 0
    ordered: int = 0
    marks: tuple[Mark, ...] = ()


class Mark(NamedTuple):
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
    heartbeats in it.
    """

    letters: tuple[Letter, ...] = ()
    ordered: tuple[Ordered, ...] = ()
    told: tuple[Told, ...] = ()
    urgent: tuple[tuple[str, int], ...] = ()


NEW_PACE, NOTHING_UNSAID = Pace(), Unsaid()


class Waiting(NamedTuple):
    """A run of another site that waits for its records."""

    sender: Life
    message: Send


@dataclass(frozen=True, slots=True)
class SiteState:
    """All that a site knows of the agreement of a group.

    `number` is that of its last entry, `position` the last one ordered. `snapshot` is the sequencer's state after the
    position `sequenced` (it stands in entry `base`), and `since` has the runs ordered after that. `ahead` are runs that
    are ordered, and do not follow yet. `trail` are entries of its own, the last one and those that others may name.
    Of all up to the position `complete`, DATA and dead letters stand in Kafka; the run that ends at `refused` was the
    last one to have some. `told` is what sites have said of the records of runs; in an entry it is a letter.
    """

    group: str
    process: ProcessState
    snapshot: bytes
    number: int = 0
    position: int = 0
    sequenced: int = 0
    since: tuple[Ordered, ...] = ()
    ahead: tuple[Ordered, ...] = ()
    places: tuple[Place, ...] = ()
    logs: tuple[LogRow, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    rejected: int = 0
    base: int = 0
    trail: tuple[OwnEntry, ...] = ()
    complete: int = 0
    refused: int = 0
    told: tuple[Told, ...] = field(default=(), metadata=LATER)

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
    view = first_view(Life(name) for name in sites)
    process = member(
        Life(site), view, now_ms=now_ms, suspect_after_ms=suspect_after_ms, resend_after_ms=resend_after_ms
    )
    return SiteState(group, process, SequencerState(group).to_bytes())


def state_of(entries: Sequence[Entry]) -> SiteState:
    """The state of a site whose last entries these are, all that count: at least from the last one's `base` on.

    Raises ProtocolViolation.
    """
    last = entries[-1]
    base = next((entry for entry in reversed(entries) if entry.number == last.base), None)
    if base is None or not base.snapshot:
        raise ProtocolViolation(f"entry {last.number} needs the snapshot of {last.base}, which is not there.")
    state, itself = SiteState.from_bytes(last.state), OwnEntry(last.number, last.digest)
    trail, told = (*state.trail, itself), read_told(last.letters)
    return replace(state, snapshot=base.snapshot, logs=last.logs, trail=trail, told=told)
