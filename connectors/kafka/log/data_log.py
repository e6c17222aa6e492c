"""Read one group's DATA topic at one site as a log: ranges, the state, the position after a seqno.

A log consists of two topics of one partition each:

* DATA has the decisions.
* EPOCH says which epoch was in force where (`connectors.kafka.log.epoch_log`).

Neither the state (`connectors.kafka.log.log_state`) nor a position (`connectors.kafka.log.seqno_search`) is computed
from the log's beginning, unless the log is short: the cost does not grow with history.

A copy of another site's DATA can become the home (`connectors.relay.promotion`): a *move* in EPOCH says so, and from
then on the log is claimed as any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import decode_data
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import newest_record, read_range
from connectors.kafka.log.epoch_log import EpochLog
from connectors.kafka.log.log_state import state_at
from connectors.kafka.log.seqno_search import still_has, where
from connectors.kafka.log.stored_record import StoredRecord
from connectors.kafka.transport import Consumer
from ordering.base.errors import HistoryRestored, HistoryUnavailable, ProtocolViolation, TopicMissing, UsageError
from ordering.base.formats import follow
from ordering.base.names import Topic
from ordering.base.reader import Lost, Reader, epoch_of
from ordering.base.records import STRAY
from ordering.sequencer.state import SequencerState

FETCH_MAX_WAIT_MS = 10
"""The longest wait of a fetch. A client that fetches ahead has reached the end before the reader has, and the next
request waits behind that fetch.
"""


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


def consumer_of_logs(connection: Connection) -> Consumer:
    """Return a consumer that many logs can share, one after the other. Raises BrokerUnreachable, KafkaRefused."""
    return connection.consumer(fetch_max_wait_ms=FETCH_MAX_WAIT_MS)


class DataLog:
    """Reads one DATA topic (one partition). Not thread-safe; close it, or use it as a context manager."""

    def __init__(self, connection: Connection, group: str, site: str, consumer: Consumer | None = None) -> None:
        """Open the log. `consumer`: shared with other logs of the same thread; its owner closes it.

        Raises BrokerUnreachable, TopicMissing; KafkaRefused if a topic is hidden from this user; UsageError if DATA has
        more than one partition.
        """
        self.connection = connection
        self.topic = Topic(group, "data", site)
        self.partition = TopicPartition(str(self.topic), 0)
        self.strays = 0
        """The number of strays read so far."""
        self._is_shared = consumer is not None
        self._consumer: Consumer = consumer or consumer_of_logs(connection)
        self.epochs = EpochLog(connection, group, site, self._consumer)
        try:
            self._check_partitions()
        except BaseException:
            self.close()
            raise

    def _check_partitions(self) -> None:
        group, site = self.topic.group, self.topic.site
        counts: dict[TopicPartition, int] = {}
        for partition in (self.partition, self.epochs.partition):
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
        """Read with this shared consumer from here on; close an own one. Raises as the constructor does."""
        self.close()
        self._consumer = self.epochs.consumer = consumer
        self._is_shared = True
        self._check_partitions()  # a consumer must know a topic before it can return its offsets

    def close(self) -> None:
        """Close the consumer, unless it is shared."""
        if not self._is_shared:
            self._consumer.close()

    def beginning(self) -> int:
        """Return the first offset that retention has kept."""
        with self.connection.reachable("READ", self.partition.topic):
            return int(self._consumer.beginning_offsets([self.partition])[self.partition])

    def end(self, reached: int = 0) -> int:
        """Return the offset after the last record. `reached`: an offset that the log has reached, as in `Consumer`."""
        with self.connection.reachable("READ", self.partition.topic):
            return int(self._consumer.end_offsets([self.partition], reached={self.partition: reached})[self.partition])

    def offset_before_the_end(self, seconds: float) -> int:
        """Return the offset of the first record of the last `seconds`, counted back from the newest record."""
        end, beginning = self.end(), self.beginning()
        newest = newest_record(self.connection, self._consumer, self.partition, beginning, end)
        if newest is None:
            return beginning
        return self.offset_since(max(0, newest.timestamp - int(seconds * 1000)))

    def offset_since(self, at_ms: int) -> int:
        """Return the offset of the first record with that timestamp, in ms since the epoch, or a later one; or the end.

        Raises BrokerUnreachable.
        """
        end = self.end()
        with self.connection.reachable("READ", self.partition.topic):
            found = self._consumer.offsets_for_times({self.partition: at_ms}).get(self.partition)
        return int(found.offset) if found is not None else end

    def records(self, start: int, end: int) -> Iterator[StoredRecord]:
        """Yield the records of DATA with `start` <= offset < `end`, in order, strays included.

        Raises LaterVersion at a seal whose format this version does not know, unless a record before it has a higher
        epoch: no reader believes such a seal. Raises BrokerUnreachable; HistoryUnavailable if retention has dropped the
        next record.
        """
        epoch = 0
        for record in read_range(self.connection, self._consumer, self.partition, start, end):
            data = decode_data(record.key, record.value, record.headers)
            self.strays += data.kind == STRAY
            if data.epoch >= epoch:
                epoch = data.epoch
                follow(str(self.topic), data.format)
            yield StoredRecord(record.offset, record.timestamp, data)

    def is_copy(self) -> bool:
        """Whether a relay fills the topic: it has DATA, no claim, and never became the home."""
        if self.epochs.read().has_decided():
            return False
        # Relays copy no strays: a stray in a new topic does not make it a copy.
        has_data = self.beginning() > 0 or any(each.data.kind != STRAY for each in self.records(0, self.end()))
        # A sequencer may have begun between the two looks: it claims before it writes.
        return has_data and not self.epochs.read().has_decided()

    def state(self, end: int | None = None) -> SequencerState:
        """Return the sequencer's state after all records below `end` (default: now), computed from DATA.

        Raises NoSnapshot if retention has dropped the beginning and no snapshot in force, or base, is left.
        """
        return state_at(self, self.end() if end is None else end)

    def after(self, seqno: int, *, or_end: bool = False, known: tuple[int, SequencerState] | None = None) -> Start:
        """Return where a reader that has everything up to `seqno` reads on. `known`: the log's end, and the state
        there.

        The table of seals gives the epoch that decided the next seqno, so the reader recognises leftovers of a fenced
        sequencer from anywhere.

        Raises HistoryRestored if a restore has lost `seqno`; HistoryUnavailable if retention has dropped the record
        after it, and ProtocolViolation if DATA does not reach it (with `or_end`, the reader starts at the end instead).
        """
        end, state = known or self.end_and_state()
        if (lost := lost_at(state, seqno)) is not None:
            raise self._restored(lost, seqno)
        if seqno > state.seqno and not or_end:
            why = f" {self.topic.group} was restored, and lost its messages there." if state.lost else ""
            raise ProtocolViolation(
                f"asked to read on after seqno {seqno}, but {self.topic} ends at {state.seqno}.{why}"
            )
        if seqno >= state.seqno:
            return Start(end, Reader(state.epoch, state.seqno))
        epoch, offset = epoch_of(state.seals, seqno + 1), where(self, seqno + 1, state)
        beginning = self.beginning()
        if beginning > offset and not still_has(self, seqno + 1, epoch, beginning, end):
            raise HistoryUnavailable(
                f"{self.topic} no longer holds seqno {seqno + 1}: retention has dropped it. Read on from the ledger."
            )
        return Start(max(offset, beginning), Reader(epoch, seqno), Quiet(state.seqno, end, state.epoch))

    def behind(self, seqno: int) -> Start:
        """Return where to look for records that were decided behind `seqno`, which a restore may have lost.

        Raises as `after` does. With a seqno in the future, the start is the end.
        """
        try:
            return self.after(seqno, or_end=True)
        except HistoryRestored as lost:
            return self.after(lost.behind, or_end=True)

    def _restored(self, lost: Lost, seqno: int) -> HistoryRestored:
        first, numbers = lost.first, f"seqno {seqno}" if lost.first == seqno else f"seqnos {lost.first} to {seqno}"
        return HistoryRestored(
            f"{self.topic.group} was restored from a ledger up to seqno {first - 1}. Its messages of {numbers}, which "
            f"were taken before, are lost, and no other message gets these numbers. Undo what they did, or broadcast "
            f"them again; then go on with deliveries(from_seqno={first}, remember=True), or `abcast deliver "
            f"--from-seqno {first} --remember`.",
            first,
            seqno,
            lost.last,
        )

    def outside_of_a_flush(self, start: Start) -> tuple[Start, SequencerState]:
        """Return `start`, or the place before the flush that runs there; and the state at the place.

        A reader of casts needs the members' answers in the flush, and a state that has no seqno that it still reads.
        Records without a seqno make `after` go back further, into an earlier flush. In a copy, `after` may find a
        repeat: the state there has the seqnos that are repeated. Then the place is lower. Raises as `after` does.
        """
        wanted, back = start.reader.last_seqno, 1
        state = self.state(start.offset)
        while (flush := state.membership.flush.id) or state.seqno > wanted:
            before = self.after(min(flush - 1, wanted)) if flush else start
            if before.offset >= start.offset:
                if start.offset <= (beginning := self.beginning()):
                    raise HistoryUnavailable(
                        f"{self.topic} no longer tells its state up to seqno {wanted}, before a flush: retention has "
                        "dropped it."
                    )
                before, back = before._replace(offset=max(beginning, start.offset - back)), 2 * back
            start, state = before, self.state(before.offset)
        return start._replace(reader=Reader(state.epoch, state.seqno)), state

    def end_and_state(self) -> tuple[int, SequencerState]:
        """Return the end, and the state there. Raises as `state` does."""
        end = self.end()
        return end, self.state(end)


def lost_at(state: SequencerState, seqno: int) -> Lost | None:
    """Return the seqnos that a restore has lost, if `seqno` is one of them, and not the last; else None."""
    return next((lost for lost in state.lost if lost.has_in_midst(seqno)), None)


def topic_missing(topic: str, group: str, site: str) -> TopicMissing:
    """Return the error for a missing topic of a group; it says what to do."""
    return TopicMissing(
        f"topic {topic} does not exist: create the group's topics with `abcast topics create --group {group} "
        f"--site {site}`."
    )


def too_many_partitions(topic: Topic, count: int) -> str:
    """Return the sentence for a DATA topic with more than one partition."""
    return (
        f"topic {topic} has {count} partitions, but an order has one, and Kafka can't remove partitions. Go on in a "
        f"new group (`abcast topics create --group NAME --site {topic.site}`); partition 0 and the ledger keep the "
        "ordered messages."
    )
