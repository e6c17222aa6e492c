"""Read one group's EPOCH topic at one site: claims, notes, moves, exclusions, formats, bases, and operators' acts.

* A *claim* is written by each takeover. Its epoch is its offset plus one, above all earlier homes' epochs after a move
  (`Epochs.epoch_of_claim`), so no two claims have the same. The claim's value begins with the *floor*: the end of DATA
  before the claim. A seal is written after its claim, so every record below the floor precedes that seal.
* A *note* says which epoch was in force below some offset of DATA, and the last seqno there. It is a fact about a log
  that only grows, so it stays true.
* A *move* says that the group's home moved. From then on, epochs are above all epochs of the earlier homes.
* A *base* is a state of a copied log (`connectors.kafka.log.log_state`).
* A *handover* asks a standby to replace the sequencer of an epoch. The claim that follows from it is planned.
* An *exclusion* names sites that the others no longer wait for. A *format* is the group's from the next claim on.

Invariant. `Epochs` is the whole of EPOCH below `Epochs.below`: records are applied in order, each once. Nothing is ever
dropped from EPOCH, so the reader refuses a topic without its beginning. A topic that is shorter than before, or no
longer has the last record that was read, was created anew or has lost its end. It is read from its beginning.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kafka.structs import TopicPartition

from connectors.kafka.codec.epochs import RESTORING, Claim, Entry, Handover, Move, Note, StrayClaim, decode
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import read_range
from connectors.kafka.log.acts import KEPT, Act, read_act
from connectors.kafka.transport import Consumer, Record
from ordering.base.errors import HistoryUnavailable, ProtocolViolation
from ordering.base.formats import FIRST, Format
from ordering.base.names import Topic
from ordering.base.records import Exclusion
from ordering.sequencer.state import SequencerState

_logger = logging.getLogger(__name__)

_TRIED_BASES = 4
"""The bases of a copy that are tried, if it has lost the last records of some."""


@dataclass(slots=True)
class Epochs:
    """The content of EPOCH below an offset. `EpochLog.read` adds to it."""

    site: str
    claims: list[Claim] = field(default_factory=list)
    """Every claim, in the order of epochs."""
    notes: list[Note] = field(default_factory=list)
    noted_ms: dict[Note, int] = field(default_factory=dict)
    """The broker's time of each note."""
    handover: Handover | None = None
    """The newest request of an operator for another sequencer."""
    move: Move | None = None
    """The newest move of the group's home."""
    claims_before_move: int = 0
    format: int = FIRST.number
    """The group's format. For a copy, DATA has it (`SequencerState.format`)."""
    exclusions: tuple[Exclusion, ...] = ()
    """Every exclusion. They are independent: a view may have several."""
    acts: deque[Act] = field(default_factory=lambda: deque(maxlen=KEPT))
    """The newest acts of operators, the newest last."""
    bases: list[int] = field(default_factory=list)
    """The offsets of bases in EPOCH: one for 16,384 records of DATA, or more (`connectors.relay.home_copy`)."""
    below: int = 0
    """The offset in EPOCH up to which everything was read."""

    def apply(self, entry: Entry | None, offset: int) -> None:
        """Apply the decoded record at `offset` of EPOCH. `entry` is None for a base."""
        if isinstance(entry, Claim):
            is_planned = self.handover is not None and self.handover.leads_to(entry, self.newest_epoch)
            self.claims.append(entry._replace(is_planned=is_planned))
            self.format = max(self.format, entry.format)
        elif isinstance(entry, Note):
            self.notes.append(entry)
        elif isinstance(entry, Handover):
            self.handover = entry
        elif isinstance(entry, Move):
            self.move, self.claims_before_move = entry, len(self.claims)
        elif isinstance(entry, Exclusion):
            self.exclusions = (*self.exclusions, entry)
        elif isinstance(entry, Format):
            self.format = max(self.format, entry.number)
        else:
            self.bases.append(offset)

    @property
    def newest_claim(self) -> Claim | None:
        """The claim of the highest epoch; None without claims."""
        return self.claims[-1] if self.claims else None

    @property
    def newest_epoch(self) -> int:
        """The highest epoch claimed; 0 if there is none."""
        return self.claims[-1].epoch if self.claims else 0

    @property
    def above(self) -> int:
        """The highest epoch that was used before the newest move; 0 if the home never moved."""
        return self.move.above if self.move is not None else 0

    @property
    def highest_epoch(self) -> int:
        """The highest epoch claimed here, or used before the newest move."""
        return max(self.newest_epoch, self.above)

    def epoch_of_claim(self, offset: int) -> int:
        """Return the epoch of the claim at that offset of EPOCH."""
        return self.above + offset + 1

    def claims_since_move(self) -> list[Claim]:
        """Return the claims after the newest move; all claims if the home never moved."""
        return self.claims[self.claims_before_move :]

    def is_promoted(self) -> bool:
        """Whether the topic was a copy, and became the home."""
        return self.move is not None and self.move.home == self.site

    def is_restored_now(self) -> bool:
        """Whether a restore has begun, and has not ended."""
        return self.move is not None and self.move.home == RESTORING

    def has_decided(self) -> bool:
        """Whether the log has, had or may soon have a sequencer of its own: it was claimed, or became the home once."""
        return bool(self.claims) or self.move is not None


class EpochLog:
    """Reads one EPOCH topic (one partition) with the consumer of its `DataLog`. Not thread-safe."""

    def __init__(self, connection: Connection, group: str, site: str, consumer: Consumer) -> None:
        self.topic = str(Topic(group, "epoch", site))
        self.partition = TopicPartition(self.topic, 0)
        self.known = Epochs(site)
        """The content as of the last read."""
        self.consumer = consumer
        self._connection = connection
        self._last: Record | None = None
        """The last record read."""

    def read(self, *, again: bool = False) -> Epochs:
        """Read the new records, and return the content up to now: `known`, to which later reads add. Strays are logged.

        `again`: look whether EPOCH still has the last record, though it ends where it ended before. Raises
        HistoryUnavailable if retention has dropped the beginning, LaterVersion for a record that this version can't
        follow, and BrokerUnreachable.
        """
        end = self._end()
        if end < self.known.below or ((again or end > self.known.below) and not self._has_last()):
            self.known, self._last = Epochs(self.known.site), None
        if not self.known.below and end:
            self._check_beginning()
        for record in read_range(self._connection, self.consumer, self.partition, self.known.below, end):
            at = (record.offset, record.value, record.headers, record.timestamp)
            self._last = record
            try:
                entry = decode(self.topic, *at, above=self.known.above)
            except StrayClaim as stray:
                self.known.below = record.offset + 1
                _logger.warning("%s, and is skipped: find out which program writes there", stray)
                continue
            except ProtocolViolation:
                self.known.below = record.offset
                raise
            self.known.below = record.offset + 1
            if (act := read_act(record.headers, record.timestamp)) is not None:
                self.known.acts.append(act)
            self.known.apply(entry, record.offset)
            if isinstance(entry, Note):
                self.known.noted_ms[entry] = record.timestamp
        self.known.below = max(self.known.below, end)  # the last offset may be a transaction's marker
        return self.known

    def _has_last(self) -> bool:
        """Whether the topic has the last record that was read, or retention has dropped it."""
        last = self._last
        if last is None:
            return True
        try:
            found = list(read_range(self._connection, self.consumer, self.partition, last.offset, last.offset + 1))
        except HistoryUnavailable:
            return True  # the log ends no earlier than before, so it need not be another one; a start refuses it
        return [(each.timestamp, each.value) for each in found] == [(last.timestamp, last.value)]

    def _end(self) -> int:
        with self._connection.reachable("READ", self.topic):
            reached = {self.partition: self.known.below}
            return int(self.consumer.end_offsets([self.partition], reached=reached)[self.partition])

    def _check_beginning(self) -> None:
        with self._connection.reachable("READ", self.topic):
            beginning = int(self.consumer.beginning_offsets([self.partition])[self.partition])
        if beginning > 0:
            raise HistoryUnavailable(
                f"retention has dropped the first {beginning} records of {self.topic}, the takeovers of sequencers. "
                "Go on in a new group, and never set a retention on an epoch topic."
            )

    def newest_base(self) -> SequencerState | None:
        """Return the newest base, if the topic is or was a copy and has one."""
        bases = self.read().bases
        return self._base_at(bases[-1]) if bases else None

    def bases_where(self, is_low: Callable[[SequencerState], bool]) -> Iterator[SequencerState]:
        """Yield up to four bases that are low, the newest first. All bases before a low one must be low, too."""

        def is_high(offset: int) -> bool:
            base = self._base_at(offset)
            return base is None or not is_low(base)

        offsets = self.read().bases
        if offsets and is_high(offsets[-1]):
            offsets = offsets[: bisect_left(offsets, True, key=is_high)]
        yield from filter(None, map(self._base_at, reversed(offsets[-_TRIED_BASES:])))

    def _base_at(self, offset: int) -> SequencerState | None:
        bases = read_range(self._connection, self.consumer, self.partition, offset, offset + 1)
        return next((SequencerState.from_bytes(record.value) for record in bases), None)
