"""Read one group's DATA topic at one site as a log: ranges, the newest snapshot, the offset of a seqno.

It consists of two topics of one partition each:

* DATA has the decisions.
* EPOCH has a *claim* for each takeover. The epoch is its offset plus one, so no two claims have the same. The claim's
  value begins with the *floor*: the end of DATA before the claim. A seal is written after its claim, so every record
  below the floor precedes that seal. EPOCH also has *notes*: the epoch in force below some offset, and the last seqno
  in DATA there. A note is a fact about a log that only grows, so it stays true.

Thus a snapshot is known to be in force without reading the log from its beginning. A snapshot of epoch e at offset o is
in force if the floor of every claim of a higher epoch is above o, or if a note says that e was in force after it. A
snapshot in force is the state at its offset (`ordering.sequencer.sequencer`, invariant 5). So everything here starts
from the last one, and its cost does not grow with history.

`DataLog.where` maps a seqno to an offset. It uses explicit marks; each says that all seqnos from k on are at offset o
or later. Marks are the floor of the claim of the epoch that decided k, for the first seqno of that epoch (the seal is
at the floor or later, and an epoch's decisions follow its seal); a note; the beginning.

A copy of another site's DATA, which a relay fills, has no claims, and no snapshot in it is in force. Its EPOCH topic
has *bases*: states of the copied log, each written after everything that it counts was in the copy. A base, too, stays
true, however often the relay repeats records. A reader that continues at the lowest possible offset of the next seqno
finds everything that the base does not count. If the copy's only broker has lost the last records that a base counts,
the base does not count any more, and an earlier one does.

A copy can become the home (`connectors.relay.promotion`): a *move* says so, and from then on the log is claimed as any
other.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import decode_data
from connectors.kafka.codec.epochs import Claim, Move, Note, StrayClaim, decode
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import newest_record, read_range, windows_back
from connectors.kafka.log import entry_marks
from connectors.kafka.log.acts import KEPT, Act, read_act
from connectors.kafka.transport import Consumer
from ordering.base.errors import HistoryUnavailable, NoSnapshot, ProtocolViolation, TopicMissing, UsageError
from ordering.base.formats import FIRST, Format, follow
from ordering.base.names import Topic
from ordering.base.reader import Reader, epoch_of
from ordering.base.records import ENTRY, EPOCH, MESSAGE, STRAY, Data, Exclusion
from ordering.sequencer.sequencer import absorb
from ordering.sequencer.state import SequencerState

_logger = logging.getLogger(__name__)

_FIRST_WINDOW = 2_048
"""Records of the first window, when looking back for a snapshot."""

_TRIED_BASES = 4
"""The bases of a copy that are tried, if it has lost the last records of some."""


FETCH_MAX_WAIT_MS = 10
"""The longest wait of a fetch. A client that fetches ahead has reached the end before the reader has, and the next
request waits behind that fetch.
"""


class StoredRecord(NamedTuple):
    """A DATA record with its Kafka offset and the broker's timestamp (ms since the epoch, UTC)."""

    offset: int
    timestamp_ms: int
    data: Data


class Quiet(NamedTuple):
    """A quiet stretch: no record below `offset` has a seqno above `seqno`. `epoch` is in force at `offset`."""

    seqno: int
    offset: int
    epoch: int


class Start(NamedTuple):
    """A position to read on from: Kafka offset `offset`, with `reader` as the state of the reading rule.

    `quiet`: a stretch that need not be read, as known at that time.
    """

    offset: int
    reader: Reader
    quiet: Quiet | None = None


class Snapshot(NamedTuple):
    """A snapshot in force, and its offset."""

    offset: int
    state: SequencerState


def consumer_of_logs(connection: Connection) -> Consumer:
    """Return a consumer that many logs can share, one after the other. Raises BrokerUnreachable, KafkaRefused."""
    return connection.consumer(fetch_max_wait_ms=FETCH_MAX_WAIT_MS)


class DataLog:
    """Reads one DATA topic (one partition). Not thread-safe; close it, or use it as a context manager."""

    def __init__(self, connection: Connection, group: str, site: str, consumer: Consumer | None = None) -> None:
        """Open the log. `consumer`: shared with other logs of the same thread; its owner closes it.

        Raises BrokerUnreachable, TopicMissing.
        """
        self.connection = connection
        self.topic = Topic(group, "data", site)
        self.partition = TopicPartition(str(self.topic), 0)
        self.claims_topic = str(Topic(group, "epoch", site))
        self._claims = TopicPartition(self.claims_topic, 0)
        self._known_claims: list[Claim] = []
        self._known_notes: list[Note] = []
        self._known_move: Move | None = None
        self._claims_before_move = 0
        self._known_format = FIRST.number
        self.known_exclusions: tuple[Exclusion, ...] = ()
        """The exclusions, as far as EPOCH was read. They are independent: a view may have several."""
        self.known_acts: deque[Act] = deque(maxlen=KEPT)
        """The newest acts of operators, the newest last, as far as EPOCH was read."""
        self._known_bases: list[int] = []  # offsets in EPOCH; one for 16,384 records of DATA
        self.strays = 0
        """The number of strays read so far."""
        self.known_below = 0
        """The offset in EPOCH up to which everything was read."""
        self._is_shared = consumer is not None
        self._consumer: Consumer = consumer or consumer_of_logs(connection)
        try:
            self._check_partitions()
        except BaseException:
            self.close()
            raise

    def _check_partitions(self) -> None:
        group, site = self.topic.group, self.topic.site
        counts: dict[TopicPartition, int] = {}
        for partition in (self.partition, self._claims):
            with self.connection.reachable("READ", partition.topic):
                counts[partition] = len(self._consumer.partitions_for_topic(partition.topic) or ())
        for partition, count in counts.items():
            if not count:
                with closing(self.connection.metadata_client()) as metadata:
                    metadata.partitions_of(partition.topic, "READ")  # it may exist, hidden from this user
                raise topic_missing(partition.topic, group, site)
        if (count := counts[self.partition]) > 1:
            raise UsageError(too_many_partitions(self.topic, count))

    def __enter__(self) -> DataLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read_with(self, consumer: Consumer) -> None:
        """Read with this shared consumer from here on. Raises BrokerUnreachable, TopicMissing."""
        self.close()
        self._consumer, self._is_shared = consumer, True
        self._check_partitions()  # a consumer must know a topic before it can return its offsets

    def close(self) -> None:
        """Close the consumer, unless it is shared."""
        if not self._is_shared:
            self._consumer.close()

    def beginning(self) -> int:
        """Return the first offset that retention has kept."""
        with self.connection.reachable("READ", self.partition.topic):
            return int(self._consumer.beginning_offsets([self.partition])[self.partition])

    def end(self) -> int:
        """Return the offset after the last record."""
        with self.connection.reachable("READ", self.partition.topic):
            return int(self._consumer.end_offsets([self.partition])[self.partition])

    def offset_before_the_end(self, seconds: float) -> int:
        """Return the offset of the first record of the last `seconds`, counted back from the newest record."""
        end, beginning = self.end(), self.beginning()
        newest = newest_record(self.connection, self._consumer, self.partition, beginning, end)
        if newest is None:
            return beginning
        at_ms = max(0, newest.timestamp - int(seconds * 1000))
        with self.connection.reachable("READ", self.partition.topic):
            found = self._consumer.offsets_for_times({self.partition: at_ms}).get(self.partition)
        return int(found.offset) if found is not None else end

    def records(self, start: int, end: int) -> Iterator[StoredRecord]:
        """Yield the records of DATA with `start` <= offset < `end`, in order, strays included.

        Raises LaterVersion at a seal whose format this version does not know.
        """
        for record in read_range(self.connection, self._consumer, self.partition, start, end):
            data = decode_data(record.key, record.value, record.headers)
            self.strays += data.kind == STRAY
            follow(str(self.topic), data.format)
            yield StoredRecord(record.offset, record.timestamp, data)

    def claims(self) -> list[Claim]:
        """Return every claim so far, in the order of epochs."""
        self._refresh()
        return list(self._known_claims)

    def notes(self) -> list[Note]:
        """Return every note so far."""
        self._refresh()
        return list(self._known_notes)

    def newest_claim(self) -> Claim | None:
        """Return the claim of the highest epoch so far."""
        self._refresh()
        return self._known_claims[-1] if self._known_claims else None

    def newest_epoch(self) -> int:
        """Return the highest epoch claimed so far; 0 if there is none."""
        newest = self.newest_claim()
        return newest.epoch if newest is not None else 0

    def _refresh(self) -> None:
        """Read the new records of EPOCH. Raises HistoryUnavailable if retention has dropped its beginning.

        Raises LaterVersion for a record that this version can't follow.
        """
        end = self._end_of_epochs()
        if end < self.known_below:  # the topic was recreated
            self._known_claims, self._known_notes, self.known_below = [], [], 0
            self._known_move, self._claims_before_move = None, 0
            self._known_bases.clear()
            self.known_exclusions = ()
            self._known_format = FIRST.number
            self.known_acts.clear()
        if not self.known_below and end:
            with self.connection.reachable("READ", self.claims_topic):
                beginning = int(self._consumer.beginning_offsets([self._claims])[self._claims])
            if beginning > 0:
                raise HistoryUnavailable(
                    f"retention has dropped the first {beginning} records of {self.claims_topic}, which say "
                    "which sequencers took over: go on in a new group, and never set a retention on an epoch topic."
                )
        for record in read_range(self.connection, self._consumer, self._claims, self.known_below, end):
            at = (record.offset, record.value, record.headers, record.timestamp)
            self.known_below = record.offset + 1
            try:
                entry = decode(self.claims_topic, *at, above=self._above)
            except StrayClaim as stray:
                _logger.warning("%s, and is passed over: who else writes there?", stray)
                continue
            except ProtocolViolation:
                self.known_below = record.offset
                raise
            if (act := read_act(record.headers, record.timestamp)) is not None:
                self.known_acts.append(act)
            self._apply(entry, record.offset)
        self.known_below = max(self.known_below, end)  # the last offset may be a transaction's marker

    def _apply(self, entry: Claim | Note | Move | Exclusion | Format | None, offset: int) -> None:
        """Apply a record of EPOCH; None for a base."""
        if isinstance(entry, Claim):
            self._known_claims.append(entry)
            self._known_format = max(self._known_format, entry.format)
        elif isinstance(entry, Note):
            self._known_notes.append(entry)
        elif isinstance(entry, Move):
            self._known_move, self._claims_before_move = entry, len(self._known_claims)
        elif isinstance(entry, Exclusion):
            self.known_exclusions = (*self.known_exclusions, entry)
        elif isinstance(entry, Format):
            self._known_format = max(self._known_format, entry.number)
        else:
            self._known_bases.append(offset)

    def _end_of_epochs(self) -> int:
        with self.connection.reachable("READ", self.claims_topic):
            return int(self._consumer.end_offsets([self._claims])[self._claims])

    def epoch_of_claim(self, offset: int) -> int:
        """Return the epoch of the claim at that offset of EPOCH."""
        return self._above + offset + 1

    @property
    def _above(self) -> int:
        return self._known_move.above if self._known_move is not None else 0

    def format(self) -> int:
        """Return the group's format as EPOCH has it. For a copy, DATA has it (`SequencerState.format`)."""
        self._refresh()
        return self._known_format

    def move(self) -> Move | None:
        """Return the newest move of the group's home, or None."""
        self._refresh()
        return self._known_move

    def claims_since_move(self) -> list[Claim]:
        """Return the claims after the newest move; all claims if the home never moved."""
        self._refresh()
        return self._known_claims[self._claims_before_move :]

    def highest_epoch(self) -> int:
        """Return the highest epoch claimed here, or used before the home moved here."""
        move = self.move()
        return max(self.newest_epoch(), move.above if move is not None else 0)

    def base(self) -> SequencerState | None:
        """Return the newest base, if the topic is or was a copy and has one."""
        self._refresh()
        return self._base_at(self._known_bases[-1]) if self._known_bases else None

    def _base_at(self, offset: int) -> SequencerState | None:
        bases = read_range(self.connection, self._consumer, self._claims, offset, offset + 1)
        return next((SequencerState.from_bytes(record.value) for record in bases), None)

    def bases_below(self, end: int) -> Iterator[SequencerState]:
        """Yield the newest bases whose records may all lie below the offset `end`, the newest first."""

        def is_below(offset: int) -> bool:
            base = self._base_at(offset)
            return base is not None and self._lowest_place(base) < max(1, end)

        self._refresh()
        known = self._known_bases
        if known and not is_below(known[-1]):
            known = known[: bisect_left(known, True, key=lambda offset: not is_below(offset))]
        yield from filter(None, map(self._base_at, reversed(known[-_TRIED_BASES:])))

    def _lowest_place(self, base: SequencerState) -> int:
        """Return the lowest possible offset of the base's last record."""
        return self.where(base.seqno, base) if base.seqno else 0

    def is_promoted(self) -> bool:
        """Whether the topic was a copy, and became the home."""
        move = self.move()
        return move is not None and move.home == self.topic.site

    def has_decided(self) -> bool:
        """Whether the log has, had or may soon have a sequencer of its own: it was claimed, or became the home once."""
        return bool(self.claims()) or self._known_move is not None

    def is_copy(self) -> bool:
        """Whether a relay fills the topic: it has DATA, no claim, and never became the home."""
        if self.has_decided():
            return False
        # Relays copy no strays: a stray in a new topic does not make it a copy.
        return self.beginning() > 0 or any(each.data.kind != STRAY for each in self.records(0, self.end()))

    def state(self, end: int | None = None) -> SequencerState:
        """Return the sequencer's state after all records below `end` (default: now), computed from DATA.

        Raises NoSnapshot if retention has dropped the beginning and no snapshot in force is left.
        """
        if end is None:
            end = self.end()
        if not self.claims() and (known := self._from_base(end)) is not None:
            return known
        is_in_force, beginning = self._in_force(), self.beginning()  # after `end`: no seal below it lacks its claim
        tail: list[StoredRecord] = []
        for start, below in windows_back(beginning, end, _FIRST_WINDOW):
            before = [_without_payload(stored) for stored in self.records(start, below)]
            tail = [*before, *tail]
            for index in range(len(before) - 1, -1, -1):
                if is_in_force(tail[index]):
                    return absorb(SequencerState(self.topic.group), (stored.data for stored in tail[index:]))
        if beginning > 0:
            if (known := self._from_base(end)) is not None:  # from the time when the log was a copy
                return known
            raise NoSnapshot(
                f"a retention has dropped the beginning of {self.topic}, and with it the state: no snapshot is left. "
                "If a sequencer runs, its next snapshot tells it again: set retention.ms and retention.bytes to -1 at "
                "once. If none runs, go on in a new group: the ledger keeps what it has of this one."
            )
        return absorb(SequencerState(self.topic.group), (stored.data for stored in tail))

    def snapshot_below(self, end: int, seqno: int) -> Snapshot | None:
        """Return the last snapshot in force below offset `end` that counts no seqno above `seqno`."""
        is_in_force = self._in_force()
        for start, below in windows_back(self.beginning(), end, _FIRST_WINDOW):
            found = [stored for stored in self.records(start, below) if is_in_force(stored)]
            for stored in reversed(found):
                state = SequencerState.from_bytes(stored.data.payload)
                if state.seqno <= seqno:
                    return Snapshot(stored.offset, state)
        return None

    def _in_force(self) -> Callable[[StoredRecord], bool]:
        """Return a test for a snapshot in force, by the present EPOCH."""
        claims, notes = self.claims(), self.notes()
        return lambda stored: _is_snapshot_in_force(stored, claims, notes)

    def _from_base(self, end: int) -> SequencerState | None:
        """Return the state at `end`, from the newest base that counts only what DATA has below it; None without one.

        The only broker of a copy may have lost its end after the base was posted. If retention has dropped the place of
        the base's last record, the base is believed.
        """
        for base in self.bases_below(end):
            low = self._lowest_place(base)
            start = max(low, self.beginning())
            found = self._last_record_of(base, start, end) if start == low else start
            if found is not None:
                return absorb(base, (stored.data for stored in self.records(found, end)))
        return None

    def _last_record_of(self, base: SequencerState, start: int, end: int) -> int | None:
        """Return the offset of the base's last record; None if that, or any record of the base's epoch, is not there.

        Read from `start` to below `end`, and no further than where it is certain.
        """
        last, epoch = base.seqno, epoch_of(base.seals, base.seqno)
        found = None if last else start
        for stored in self.records(start, end):
            data = stored.data
            if found is None and (data.epoch, data.seqno + data.count) > (epoch, last):
                if data.epoch > epoch or not 0 < data.seqno <= last:
                    return None
                found = stored.offset
            if found is not None and data.epoch >= base.epoch:
                return found
        return None

    def after(self, seqno: int, *, or_end: bool = False, known: tuple[int, SequencerState] | None = None) -> Start:
        """Return where a reader that has everything up to `seqno` reads on. `known`: the log's end, and the state
        there.

        The table of seals gives the epoch that decided the next seqno, so the reader recognises leftovers of a fenced
        sequencer from anywhere.

        Raises HistoryUnavailable if retention has dropped the record after `seqno`, and ProtocolViolation if DATA does
        not reach `seqno` (with `or_end`, the reader starts at the end instead).
        """
        end, state = known or self._end_and_state()
        if seqno > state.seqno and not or_end:
            raise ProtocolViolation(f"asked to read on after seqno {seqno}, but {self.topic} ends at {state.seqno}.")
        if seqno >= state.seqno:
            return Start(end, Reader(state.epoch, state.seqno))
        epoch, offset = epoch_of(state.seals, seqno + 1), self.where(seqno + 1, state)
        beginning = self.beginning()
        if beginning > offset and not self._still_has(seqno + 1, epoch, beginning, end):
            raise HistoryUnavailable(
                f"{self.topic} no longer holds seqno {seqno + 1}: retention has dropped it. Read on from the ledger."
            )
        return Start(max(offset, beginning), Reader(epoch, seqno), Quiet(state.seqno, end, state.epoch))

    def _end_and_state(self) -> tuple[int, SequencerState]:
        end = self.end()
        return end, self.state(end)

    def where(self, seqno: int, state: SequencerState) -> int:
        """Return the offset of the effective record of `seqno`, or a lower one. `state` must count that seqno.

        After a mark, each seqno takes at least one offset, in order (see the module). Where a record takes several
        seqnos, this may be too far: then the records themselves are checked, and the search goes back to the mark if
        need be.
        """
        epoch = epoch_of(state.seals, seqno)
        first = min((seal.first_seqno for seal in state.seals if seal.epoch == epoch), default=seqno)
        marks = [(0, 1)]
        marks += [(claim.floor + 1, first) for claim in self.claims() if claim.epoch == epoch]
        marks += [(note.offset, note.seqno + 1) for note in self.notes()]
        last, offset = max((offset + seqno - known, offset) for offset, known in marks if known <= seqno)
        back = _FIRST_WINDOW
        while last > offset and state.counted and not self._is_at_or_after(last, seqno, epoch):
            last, back = max(offset, last - back), 2 * back
        claims = self.claims()
        return self._by_entries(seqno, epoch, last) if claims and claims[-1].agreement else last

    def _by_entries(self, seqno: int, epoch: int, low: int) -> int:
        """Return the same, nearer to the record than `low`, by the entries (`connectors.kafka.log.entry_marks`)."""
        first, last = max(low, self.beginning()), self.end()
        while last - first > entry_marks.NEAR:
            middle = (first + last) // 2
            found = self.records(middle, min(last, middle + entry_marks.LOOK))
            mark = entry_marks.first_told((stored.offset, stored.data) for stored in found)
            if mark is None:
                return low
            if entry_marks.is_below(mark, seqno, epoch):
                last = mark.offset + 1
            else:
                first = mark.offset
        return first if self._is_at_or_after(first, seqno, epoch) else low

    def _is_at_or_after(self, offset: int, seqno: int, epoch: int) -> bool:
        """Whether the record of `seqno`, decided by `epoch`, is at `offset` or later: the first one not below it shows
        that.

        A repeat of the record counts as well. Leftovers of a fenced sequencer and partly repeated records show nothing.
        """
        for stored in self.records(max(offset, self.beginning()), self.end()):
            data = stored.data
            if data.epoch > epoch or (data.epoch == epoch and data.seqno > seqno):
                return False
            if data.epoch == epoch and data.seqno and seqno < data.seqno + data.count:
                return True
        return False

    def _still_has(self, seqno: int, epoch: int, beginning: int, end: int) -> bool:
        """Whether the effective record of `seqno`, decided by `epoch`, still exists: the first of its epoch shows that.

        If a record of a later epoch is the first, it is gone.
        """
        first = next((s.data for s in self.records(beginning, end) if s.data.epoch >= epoch and s.data.seqno), None)
        return first is not None and first.epoch == epoch and first.seqno <= seqno


def topic_missing(topic: str, group: str, site: str) -> TopicMissing:
    """Return the error for a missing topic of a group; it says what to do."""
    return TopicMissing(
        f"topic {topic} does not exist: create the group's topics with `abcast topics create --group {group} "
        f"--site {site}`."
    )


def too_many_partitions(topic: Topic, count: int) -> str:
    """Return the sentence for a DATA topic with more than one partition."""
    return (
        f"topic {topic} has {count} partitions, but an order has one, and Kafka takes no partition away: go on in a "
        f"new group (`abcast topics create --group NAME --site {topic.site}`); partition 0 and the ledger keep what "
        "was ordered."
    )


def _without_payload(stored: StoredRecord) -> StoredRecord:
    """Drop the parts that `absorb` does not use: a takeover has the ends of many logs in memory at once."""
    if stored.data.kind not in (MESSAGE, ENTRY):
        return stored
    return stored._replace(data=replace(stored.data, payload=b"", headers=()))


def _is_snapshot_in_force(stored: StoredRecord, claims: Sequence[Claim], notes: Sequence[Note]) -> bool:
    data = stored.data
    # A record copied from an earlier home is not this topic's own.
    if data.kind != EPOCH or not data.payload or not claims or data.epoch < claims[0].epoch:
        return False
    return all(claim.floor > stored.offset for claim in claims if claim.epoch > data.epoch) or any(
        note.epoch == data.epoch and note.offset > stored.offset for note in notes
    )
