"""One group's DATA topic at one site, as a log: read a range, find the newest snapshot, find where a seqno stands.

Two topics of one partition each belong together:

* DATA: what was decided;
* EPOCH: one record a takeover, a *claim*. Its offset plus one is the epoch, so no two claims have the same. Its value
  begins with the *floor*: where DATA ended before the claim. A seal is written after its claim, so every record below
  the floor stands before that seal. And *notes*: which epoch was in force below some offset, and up to which seqno
  DATA went there. A note is a fact about a log that only grows, so it stays true.

That is how a snapshot is known to be in force without reading the log from its beginning: a snapshot of epoch e at
offset o is in force if the floor of every claim of a higher epoch is above o, or if a note says that e was in force
behind it. A snapshot in force is the state where it stands (`ordering.sequencer.sequencer`, invariant 5). So everything
here starts from the last one, and its cost does not grow with history.

Offsets and seqnos meet in one place, `DataLog.where`. It goes by explicit marks, of which each says that all seqnos
from k on stand at offset o or later: the floor of the claim of the epoch that decided k, for the first one it decided
(the seal is at the floor or later, and what an epoch decides stands behind its seal); a note; the beginning.

A copy of another site's DATA, which a relay fills, has no claims, and no snapshot in it is in force. Its EPOCH topic
has *bases*: states of the copied log, each posted after everything that it counts was in the copy. A base is a fact
about a log that only grows, so it stays true, however often the relay repeats records. A reader that goes on from where
the next seqno stands at the earliest finds everything that the base does not count.

A copy can be made the home (`connectors.relay.promotion`): a *move* says so, and from then on it is claimed as any
other log.
"""

from __future__ import annotations

import logging
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
from ordering.sequencer.sequencer import SequencerState, absorb

_logger = logging.getLogger(__name__)

_FIRST_WINDOW = 2_048
"""Records that are read back first when looking for a snapshot."""


FETCH_MAX_WAIT_MS = 10
"""What is read is there already. A library that fetches ahead is at the end before us, and what we ask next waits for
so long behind that."""


class StoredRecord(NamedTuple):
    """One DATA record with its Kafka offset and the broker's timestamp (ms since the epoch, UTC)."""

    offset: int
    timestamp_ms: int
    data: Data


class Quiet(NamedTuple):
    """Behind that seqno nothing that has one stands below that offset, where this epoch is in force."""

    seqno: int
    offset: int
    epoch: int


class Start(NamedTuple):
    """Where to read on: from Kafka offset `offset`, with `reader` as the state of the reading rule.

    `quiet`: what need not be read, as was known then.
    """

    offset: int
    reader: Reader
    quiet: Quiet | None = None


class Snapshot(NamedTuple):
    """A snapshot in force, and where it stands."""

    offset: int
    state: SequencerState


def consumer_of_logs(connection: Connection) -> Consumer:
    """What many logs can read with, one after the other. Raises BrokerUnreachable, KafkaRefused."""
    return connection.consumer(fetch_max_wait_ms=FETCH_MAX_WAIT_MS)


class DataLog:
    """Reads one DATA topic (one partition). Not thread-safe; close it, or use it as a context manager."""

    def __init__(self, connection: Connection, group: str, site: str, consumer: Consumer | None = None) -> None:
        """`consumer`: one that other logs read with, too, in turn, in the same thread; who gives it closes it.

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
        """As far as EPOCH was read. One says nothing of another: of the same view there may be several."""
        self.known_acts: deque[Act] = deque(maxlen=KEPT)
        """What operators have done, the newest last; as far as EPOCH was read."""
        self._known_base = -1
        self.strays = 0
        """How many records that are no DATA it has passed over."""
        self.known_below = 0
        """The offset in EPOCH below which all is known, as far as it was read."""
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
                    metadata.partitions_of(partition.topic, "READ")  # it may be there, and hidden
                raise topic_missing(partition.topic, group, site)
        if (count := counts[self.partition]) > 1:
            raise UsageError(too_many_partitions(self.topic, count))

    def __enter__(self) -> DataLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read_with(self, consumer: Consumer) -> None:
        """Read with this shared one from here on. Raises BrokerUnreachable, TopicMissing."""
        self.close()
        self._consumer, self._is_shared = consumer, True
        self._check_partitions()  # a consumer has to hear of a topic before it can tell its offsets

    def close(self) -> None:
        """Close the connection, if it is the log's own."""
        if not self._is_shared:
            self._consumer.close()

    def beginning(self) -> int:
        """The first offset that retention has left."""
        with self.connection.reachable("READ", self.partition.topic):
            return int(self._consumer.beginning_offsets([self.partition])[self.partition])

    def end(self) -> int:
        """The offset after the last record."""
        with self.connection.reachable("READ", self.partition.topic):
            return int(self._consumer.end_offsets([self.partition])[self.partition])

    def offset_before_the_end(self, seconds: float) -> int:
        """The offset of the first record that is no older than that, if the newest record is from now."""
        end, beginning = self.end(), self.beginning()
        newest = newest_record(self.connection, self._consumer, self.partition, beginning, end)
        if newest is None:
            return beginning
        at_ms = max(0, newest.timestamp - int(seconds * 1000))
        with self.connection.reachable("READ", self.partition.topic):
            found = self._consumer.offsets_for_times({self.partition: at_ms}).get(self.partition)
        return int(found.offset) if found is not None else end

    def records(self, start: int, end: int) -> Iterator[StoredRecord]:
        """The records of DATA with `start` <= offset < `end`, in order; strays as such.

        Raises LaterVersion at the seal from which on the group has a format that this version does not know.
        """
        for record in read_range(self.connection, self._consumer, self.partition, start, end):
            data = decode_data(record.key, record.value, record.headers)
            self.strays += data.kind == STRAY
            follow(str(self.topic), data.format)
            yield StoredRecord(record.offset, record.timestamp, data)

    def claims(self) -> list[Claim]:
        """Every claim so far, in the order of epochs."""
        self._learn()
        return list(self._known_claims)

    def notes(self) -> list[Note]:
        """Every note so far."""
        self._learn()
        return list(self._known_notes)

    def newest_claim(self) -> Claim | None:
        """The claim of the highest epoch so far."""
        self._learn()
        return self._known_claims[-1] if self._known_claims else None

    def newest_epoch(self) -> int:
        """The highest epoch claimed so far; 0 if there is none."""
        newest = self.newest_claim()
        return newest.epoch if newest is not None else 0

    def _learn(self) -> None:
        """Read what is new in EPOCH. Raises HistoryUnavailable if retention has dropped its beginning.

        Raises LaterVersion at what this version can't follow.
        """
        end = self._end_of_epochs()
        if end < self.known_below:  # made anew
            self._known_claims, self._known_notes, self.known_below = [], [], 0
            self._known_move, self._claims_before_move = None, 0
            self._known_base, self.known_exclusions = -1, ()
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
            self._take(entry, record.offset)
        self.known_below = max(self.known_below, end)  # what stands last may be a transaction's mark

    def _take(self, entry: Claim | Note | Move | Exclusion | Format | None, offset: int) -> None:
        """Take what a record of EPOCH says; None for a base."""
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
            self._known_base = offset

    def _end_of_epochs(self) -> int:
        with self.connection.reachable("READ", self.claims_topic):
            return int(self._consumer.end_offsets([self._claims])[self._claims])

    def epoch_of_claim(self, offset: int) -> int:
        """The epoch of a claim that was appended to EPOCH there."""
        return self._above + offset + 1

    @property
    def _above(self) -> int:
        return self._known_move.above if self._known_move is not None else 0

    def format(self) -> int:
        """Return the group's format as EPOCH tells it; of a copy, DATA tells it (`SequencerState.format`)."""
        self._learn()
        return self._known_format

    def move(self) -> Move | None:
        """Which site is the group's home, if it ever moved."""
        self._learn()
        return self._known_move

    def claims_since_move(self) -> list[Claim]:
        """The claims that stand behind the newest move; all of them, if the home never moved."""
        self._learn()
        return self._known_claims[self._claims_before_move :]

    def highest_epoch(self) -> int:
        """The highest epoch that was claimed here, or that a move says was given before."""
        move = self.move()
        return max(self.newest_epoch(), move.above if move is not None else 0)

    def base(self) -> SequencerState | None:
        """The newest base, if the topic is a copy, or was one, and has one."""
        self._learn()
        if self._known_base < 0:
            return None
        bases = read_range(self.connection, self._consumer, self._claims, self._known_base, self._known_base + 1)
        return next((SequencerState.from_bytes(record.value) for record in bases), None)

    def is_promoted(self) -> bool:
        """Whether it was a copy, and was made the home."""
        move = self.move()
        return move is not None and move.home == self.topic.site

    def has_decided(self) -> bool:
        """Whether it has, had or may soon have a sequencer of its own: it was claimed, or made the home once."""
        return bool(self.claims()) or self._known_move is not None

    def is_copy(self) -> bool:
        """Whether a relay fills the topic: then it has DATA without a claim, and it was not made the home."""
        if self.has_decided():
            return False
        # Relays bring no strays: one of them in a topic that is new makes it no copy.
        return self.beginning() > 0 or any(each.data.kind != STRAY for each in self.records(0, self.end()))

    def state(self, end: int | None = None) -> SequencerState:
        """The sequencer's state after all records below `end` (default: now), as DATA tells it.

        Raises HistoryUnavailable if retention has dropped the beginning and no snapshot in force is left.
        """
        if end is None:
            end = self.end()
        if not self.claims() and (base := self.base()) is not None:
            return self._from_base(base, end)
        is_in_force, beginning = self._in_force(), self.beginning()  # after `end`: no seal below it lacks its claim
        tail: list[StoredRecord] = []
        for start, below in windows_back(beginning, end, _FIRST_WINDOW):
            before = [_without_content(stored) for stored in self.records(start, below)]
            tail = [*before, *tail]
            for index in range(len(before) - 1, -1, -1):
                if is_in_force(tail[index]):
                    return absorb(SequencerState(self.topic.group), (stored.data for stored in tail[index:]))
        if beginning > 0:
            if (base := self.base()) is not None:  # of the time when it was a copy
                return self._from_base(base, end)
            raise NoSnapshot(
                f"a retention has dropped the beginning of {self.topic}, and with it the state: no snapshot is left. "
                "If a sequencer runs, its next snapshot tells it again: set retention.ms and retention.bytes to -1 at "
                "once. If none runs, go on in a new group: the ledger keeps what it has of this one."
            )
        return absorb(SequencerState(self.topic.group), (stored.data for stored in tail))

    def snapshot_below(self, end: int, seqno: int) -> Snapshot | None:
        """The last snapshot in force below offset `end` that counts no seqno above `seqno`."""
        is_in_force = self._in_force()
        for start, below in windows_back(self.beginning(), end, _FIRST_WINDOW):
            found = [stored for stored in self.records(start, below) if is_in_force(stored)]
            for stored in reversed(found):
                state = SequencerState.from_bytes(stored.data.payload)
                if state.seqno <= seqno:
                    return Snapshot(stored.offset, state)
        return None

    def _in_force(self) -> Callable[[StoredRecord], bool]:
        """Whether a record is a snapshot in force, as EPOCH tells now."""
        claims, notes = self.claims(), self.notes()
        return lambda stored: _is_snapshot_in_force(stored, claims, notes)

    def _from_base(self, base: SequencerState, end: int) -> SequencerState:
        start = max(self.where(base.seqno, base) if base.seqno else 0, self.beginning())
        return absorb(base, (stored.data for stored in self.records(start, end)))

    def after(self, seqno: int, *, or_end: bool = False, known: tuple[int, SequencerState] | None = None) -> Start:
        """Where a reader that has everything up to `seqno` reads on. `known`: the log's end, and the state there.

        The table of seals tells the epoch that decided the next one, so leftovers of a fenced sequencer are recognised
        from anywhere.

        Raises HistoryUnavailable if retention has dropped what follows `seqno`, and ProtocolViolation if DATA does not
        reach that far (with `or_end`, reads on at the end then).
        """
        end, state = known or self._known_now()
        if seqno > state.seqno and not or_end:
            raise ProtocolViolation(f"asked to read on after seqno {seqno}, but {self.topic} ends at {state.seqno}.")
        if seqno >= state.seqno:
            return Start(end, Reader(state.epoch, state.seqno))
        epoch, offset = epoch_of(state.seals, seqno + 1), self.where(seqno + 1, state)
        beginning = self.beginning()
        if beginning > offset and not self._holds(seqno + 1, epoch, beginning, end):
            raise HistoryUnavailable(
                f"{self.topic} no longer holds seqno {seqno + 1}: retention has dropped it. Read on from the ledger."
            )
        return Start(max(offset, beginning), Reader(epoch, seqno), Quiet(state.seqno, end, state.epoch))

    def _known_now(self) -> tuple[int, SequencerState]:
        end = self.end()
        return end, self.state(end)

    def where(self, seqno: int, state: SequencerState) -> int:
        """The offset of the effective record of `seqno`, which `state` has, or a lower one.

        Behind a mark, each seqno takes an offset of its own at least, in their order (see the module). Where records
        take several, that may be too far: then it is the record itself that tells, and the mark if it does not.
        """
        epoch = epoch_of(state.seals, seqno)
        first = min((seal.first_seqno for seal in state.seals if seal.epoch == epoch), default=seqno)
        marks = [(0, 1)]
        marks += [(claim.floor + 1, first) for claim in self.claims() if claim.epoch == epoch]
        marks += [(note.offset, note.seqno + 1) for note in self.notes()]
        last, offset = max((offset + seqno - known, offset) for offset, known in marks if known <= seqno)
        back = _FIRST_WINDOW
        while last > offset and state.counted and not self._stands_from(last, seqno, epoch):
            last, back = max(offset, last - back), 2 * back
        claims = self.claims()
        return self._by_entries(seqno, epoch, last) if claims and claims[-1].agreement else last

    def _by_entries(self, seqno: int, epoch: int, low: int) -> int:
        """The same, nearer to the record than `low` (`connectors.kafka.log.entry_marks`)."""
        first, last = max(low, self.beginning()), self.end()
        while last - first > entry_marks.NEAR:
            middle = (first + last) // 2
            found = self.records(middle, min(last, middle + entry_marks.LOOK))
            told = entry_marks.first_told((stored.offset, stored.data) for stored in found)
            if told is None:
                return low
            if entry_marks.is_below(told, seqno, epoch):
                last = told.offset + 1
            else:
                first = told.offset
        return first if self._stands_from(first, seqno, epoch) else low

    def _stands_from(self, offset: int, seqno: int, epoch: int) -> bool:
        """Whether the record of `seqno`, decided by `epoch`, is there or behind: the first that is not lower tells.

        A repeat does as well. What a fenced sequencer has left, and what was repeated in part, tells nothing.
        """
        for stored in self.records(max(offset, self.beginning()), self.end()):
            data = stored.data
            if data.epoch > epoch or (data.epoch == epoch and data.seqno > seqno):
                return False
            if data.epoch == epoch and data.seqno and seqno < data.seqno + data.count:
                return True
        return False

    def _holds(self, seqno: int, epoch: int, beginning: int, end: int) -> bool:
        """Whether the effective record of `seqno`, decided by `epoch`, is still there: the first of its epoch tells.

        Where a later epoch comes first, its own is gone.
        """
        first = next((s.data for s in self.records(beginning, end) if s.data.epoch >= epoch and s.data.seqno), None)
        return first is not None and first.epoch == epoch and first.seqno <= seqno


def topic_missing(topic: str, group: str, site: str) -> TopicMissing:
    """The error that says that one of a group's topics is not there, and what to do."""
    return TopicMissing(
        f"topic {topic} does not exist: create the group's topics with `abcast topics create --group {group} "
        f"--site {site}`."
    )


def too_many_partitions(topic: Topic, count: int) -> str:
    """What to say of a DATA topic that has more than one partition."""
    return (
        f"topic {topic} has {count} partitions, but an order has one, and Kafka takes no partition away: go on in a "
        f"new group (`abcast topics create --group NAME --site {topic.site}`); partition 0 and the ledger keep what "
        "was ordered."
    )


def _without_content(stored: StoredRecord) -> StoredRecord:
    """Without what `absorb` does not look at. A takeover has the ends of many logs in memory at once."""
    if stored.data.kind not in (MESSAGE, ENTRY):
        return stored
    return stored._replace(data=replace(stored.data, payload=b"", headers=()))


def _is_snapshot_in_force(stored: StoredRecord, claims: Sequence[Claim], notes: Sequence[Note]) -> bool:
    data = stored.data
    # What was copied from a home that was before this one is not this topic's own.
    if data.kind != EPOCH or not data.payload or not claims or data.epoch < claims[0].epoch:
        return False
    return all(claim.floor > stored.offset for claim in claims if claim.epoch > data.epoch) or any(
        note.epoch == data.epoch and note.offset > stored.offset for note in notes
    )
