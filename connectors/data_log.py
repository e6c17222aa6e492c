"""One group's DATA topic at one site, as a log: read a range, find the newest snapshot, find where a seqno stands.

Two topics of one partition each belong together:

* DATA: what was decided;
* EPOCH: one record a takeover, a *claim*. Its offset plus one is the epoch, so no two claims have the same. Its value
  is the *floor*: where DATA ended before the claim. A seal is written after its claim, so every record below the
  floor stands before that seal.

That is how a snapshot is known to be in force without reading the log from its beginning: a snapshot of epoch e at
offset o is in force if the floor of every claim of a higher epoch is above o. A snapshot in force is the state where
it stands (`ordering.sequencer`, invariant 5). So everything here starts from the last one, and its cost does not
grow with history.

Where the topic is the copy of another site's, which a relay fills, nobody claims, and no snapshot is in force. There
EPOCH has *bases*: states of the copied log, each posted after everything that it counts was in the copy. A base says
something of a log that only grows, so it stays true whoever posted it, and however often the relay repeats records:
seqno n + 1 stands at offset n or later, so reading on from there finds everything that the base does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from connectors.codec import decode_data
from connectors.connection import Connection
from ordering.errors import HistoryUnavailable, ProtocolViolation, TopicMissing
from ordering.names import Topic
from ordering.reader import Reader, epoch_of
from ordering.records import EPOCH, Data
from ordering.sequencer import SequencerState, absorb

_FIRST_WINDOW = 2_048
"""Records that are read back first when looking for a snapshot."""

_LARGEST_STEP = 32_768
"""By so much a window grows at most: what is read beyond what is looked for is read in vain."""


class Claim(NamedTuple):
    """One takeover: the seal of `epoch` stands in DATA at offset `floor` or later, if it was written at all."""

    epoch: int
    floor: int


class Stored(NamedTuple):
    """One DATA record with its Kafka offset and the broker's timestamp (ms since the epoch, UTC)."""

    offset: int
    timestamp_ms: int
    data: Data


class Start(NamedTuple):
    """Where to read on: from Kafka offset `offset`, with `reader` as the state of the reading rule."""

    offset: int
    reader: Reader


class DataLog:
    """Reads one DATA topic (one partition). Not thread-safe; close it, or use it as a context manager."""

    def __init__(self, connection: Connection, group: str, site: str) -> None:
        """Raises BrokerUnreachable, TopicMissing."""
        self.connection = connection
        self.topic = Topic(group, "data", site)
        self.partition = TopicPartition(str(self.topic), 0)
        self.claims_topic = str(Topic(group, "epoch", site))
        self._claims = TopicPartition(self.claims_topic, 0)
        self._consumer: KafkaConsumer = connection.consumer()
        with connection.reachable():
            for place in (self.partition, self._claims):
                if not self._consumer.partitions_for_topic(place.topic):
                    self._consumer.close()
                    raise TopicMissing(
                        f"topic {place.topic} does not exist: create the group's topics with "
                        f"`abcast topics create --group {group} --site {site}`."
                    )

    def __enter__(self) -> DataLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def beginning(self) -> int:
        """The first offset that retention has left."""
        with self.connection.reachable():
            return int(self._consumer.beginning_offsets([self.partition])[self.partition])

    def end(self) -> int:
        """The offset after the last record."""
        with self.connection.reachable():
            return int(self._consumer.end_offsets([self.partition])[self.partition])

    def records(self, start: int, end: int) -> Iterator[Stored]:
        """The records of DATA with `start` <= offset < `end`, in order."""
        for record in self._read(self.partition, start, end):
            yield Stored(record.offset, record.timestamp, decode_data(record.value, record.headers))

    def _read(self, place: TopicPartition, start: int, end: int) -> Iterator[Any]:
        if start >= end:
            return
        self._consumer.assign([place])
        self._consumer.seek(place, start)
        position = start
        while position < end:
            with self.connection.reachable():
                polled = self._consumer.poll(timeout_ms=1000)
            for record in polled.get(place, ()):
                if record.offset >= end:
                    return
                position = record.offset + 1
                yield record

    def claims(self) -> list[Claim]:
        """Every claim so far, in the order of epochs."""
        entries = self._read(self._claims, 0, self.newest_epoch())
        return [Claim(record.offset + 1, int(record.value)) for record in entries if not record.headers]

    def base(self) -> SequencerState | None:
        """The newest base, if the topic is a copy and has one."""
        end = self.newest_epoch()
        for record in self._read(self._claims, max(0, end - 1), end):
            if record.headers:
                return SequencerState.from_bytes(record.value)
        return None

    def newest_epoch(self) -> int:
        """The highest epoch claimed so far; 0 if there is none."""
        with self.connection.reachable():
            return int(self._consumer.end_offsets([self._claims])[self._claims])

    def is_copy(self) -> bool:
        """Whether a relay fills the topic: then nobody has claimed it."""
        return self.end() > 0 and not self.claims()

    def state(self, end: int | None = None) -> SequencerState:
        """The sequencer's state after all records below `end` (default: now), as DATA tells it.

        Raises HistoryUnavailable if retention has dropped the beginning and no snapshot in force is left.
        """
        if end is None:
            end = self.end()
        base = self.base()
        if base is not None:
            return absorb(base, (stored.data for stored in self.records(max(base.seqno, self.beginning()), end)))
        claims, beginning = self.claims(), self.beginning()  # after `end`: no seal below it is without its claim
        tail: list[Stored] = []
        for start, below in windows_back(beginning, end, _FIRST_WINDOW):
            before = list(self.records(start, below))
            tail = [*before, *tail]
            for index in range(len(before) - 1, -1, -1):
                if _is_snapshot_in_force(tail[index], claims):
                    return absorb(SequencerState(self.topic.group), (stored.data for stored in tail[index:]))
        if beginning > 0:
            raise HistoryUnavailable(
                f"retention has dropped the beginning of {self.topic} and no snapshot is left in it. "
                "Start the sequencer with --data DIR of the group's ledger, which knows the last seqno."
            )
        return absorb(SequencerState(self.topic.group), (stored.data for stored in tail))

    def after(self, seqno: int, *, or_end: bool = False) -> Start:
        """Where a reader that has everything up to `seqno` reads on.

        Seqno n + 1 stands at offset n or later, since each seqno took an offset of its own; the table of seals
        tells the epoch that decided it, so leftovers of a fenced sequencer are recognised from anywhere.

        Raises HistoryUnavailable if retention has dropped what follows `seqno`, and ProtocolViolation if DATA does not
        reach that far (with `or_end`, reads on at the end then).
        """
        end = self.end()
        state = self.state(end)
        if seqno > state.seqno and not or_end:
            raise ProtocolViolation(f"asked to read on after seqno {seqno}, but {self.topic} ends at {state.seqno}.")
        if seqno >= state.seqno:
            return Start(end, Reader(state.epoch, state.seqno))
        epoch = epoch_of(state.seals, seqno + 1)
        beginning = self.beginning()
        if beginning > seqno and not self._holds(seqno + 1, epoch, beginning, end):
            raise HistoryUnavailable(
                f"{self.topic} no longer holds seqno {seqno + 1}: retention has dropped it. Read on from the ledger."
            )
        return Start(max(seqno, beginning), Reader(epoch, seqno))

    def _holds(self, seqno: int, epoch: int, beginning: int, end: int) -> bool:
        """Whether the effective record of `seqno`, decided by `epoch`, is still there: the first of its epoch tells."""
        first = next((s.data for s in self.records(beginning, end) if s.data.epoch == epoch and s.data.seqno), None)
        return first is not None and first.seqno <= seqno


def windows_back(beginning: int, end: int, first: int) -> Iterator[tuple[int, int]]:
    """Ranges of offsets (from, below) that lead from `end` back to `beginning`: `first` records, then more and more."""
    window, below = first, end
    while below > beginning:
        start = max(beginning, end - window)
        yield start, below
        window, below = min(window * 4, window + _LARGEST_STEP), start


def _is_snapshot_in_force(stored: Stored, claims: Sequence[Claim]) -> bool:
    data = stored.data
    if data.kind != EPOCH or not data.payload or not claims:
        return False
    return all(claim.floor > stored.offset for claim in claims if claim.epoch > data.epoch)
