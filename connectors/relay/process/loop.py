"""The loop of a relay in a plain process: reads records, makes their copies, and writes them, in one thread.

It keeps the invariant of `connectors.relay.relay`. A group's records of a partition are passed to one producer in their
order. That never gives up on a record that may still be written. With librdkafka it also refuses all records behind one
that Kafka refuses. With kafka-python, as with Spark's producer, records behind a refused one may be written: a hole.
So an attempt ends with the first refused record (`UnservableGroups`), and the next one asks the neighbour's log anew. A
group that is dropped may leave records with the producer: they are the next ones of its run, so they leave no hole.

One request is under way to a broker, and librdkafka puts one partition into a request: many ones far away are slow
(docs/limits.md). More requests would leave holes: a broker that has nothing of a producer yet takes its second batch
after it has refused the first.

An error of one group ends the work on that group alone. Its supervisor hears of it (`failures`).

Bounded: a group has at most MOST_RECORDS and MOST_BYTES on their way to Kafka, and all groups MOST_BYTES_OF_ALL; then
no more is sent or read. So a backlog is carried in pieces, however long it is. A group whose oldest record is not taken
for LATE_S is not waited for. It fails if Kafka takes none of its records for STUCK_S, and so does each group that has
waited for half of that: one by one they would end an attempt each.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kafka.errors import KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError, TopicAuthorizationFailedError
from kafka.structs import TopicPartition

from connectors.kafka.codec.seldom import warn_seldom
from connectors.kafka.groups.unservable_groups import UnservableGroups
from connectors.kafka.log.open_transactions import READ_COMMITTED
from connectors.kafka.log.same_log_consumer import SameLogConsumer, out_of_range
from connectors.kafka.transport import Record, Sent
from connectors.relay.process.copying import Copier, MadeRecord
from connectors.relay.relay import Relay
from connectors.takeover.same_forward import InputLost
from connectors.tracing import passing
from ordering.base.errors import AbcastError, BrokerUnreachable, ProtocolViolation
from ordering.base.names import Topic
from ordering.base.records import headers_bytes

if TYPE_CHECKING:
    from connectors.tracing.spans import BatchSpan

POLL_S = 0.1
"""The longest wait for a record, or for a change."""
POLL_RECORDS = 2_000
MOST_RECORDS, MOST_BYTES, MOST_BYTES_OF_ALL = 5_000, 8 * 1024 * 1024, 48 * 1024 * 1024
LATE_S, STUCK_S = 1.0, 45.0  # well below HEALTHY_S, so that the waits of a group that is stuck again grow
STOP_S = 10.0
"""The longest wait of a stop for records on their way."""
NEVER_MS = 2**31 - 1
_SOON_S = 0.005
_RECORD_BYTES = 600
"""The bytes of a record in memory beside its key, value and headers, roughly. So all groups together send fewer records
than fill the producer's queue: a full one would hold up the loop.
"""

_logger = logging.getLogger(__name__)


class _OnTheWay(NamedTuple):
    """The copies of one record, the offset behind it, their bytes, and when they were sent.

    `span`: of the batch that they end.
    """

    sent: Sequence[Sent]
    place: TopicPartition
    next_offset: int
    size: int
    at: float
    span: BatchSpan | None = None

    @property
    def is_there(self) -> bool:
        return all(one.is_done for one in self.sent)


class _Group:
    """A group that is carried. `waiting`: records that were read, and are still to be copied."""

    def __init__(self, positions: Mapping[TopicPartition, int], copier: Copier) -> None:
        self.positions, self.copier = dict(positions), copier
        self.copied: Mapping[TopicPartition, int] = dict(positions)
        self.waiting: deque[Record] = deque()
        self.under_way: deque[_OnTheWay] = deque()
        self.records = self.bytes = 0
        self.taken_at = float("-inf")

    def end_spans(self, error: BaseException | None) -> None:
        """End the spans of the batches on their way, which this loop sees no more."""
        for one in self.under_way:
            if one.span is not None:
                one.span.end(error)

    @property
    def is_full(self) -> bool:
        return self.records >= MOST_RECORDS or self.bytes >= MOST_BYTES

    def late_s(self) -> float:
        """Return for how long the oldest record has been on its way."""
        return time.monotonic() - self.under_way[0].at if self.under_way else 0.0

    def stuck_s(self) -> float:
        """Return for how long Kafka has taken no record of those on their way."""
        return time.monotonic() - max(self.taken_at, self.under_way[0].at) if self.under_way else 0.0


class _Change(NamedTuple):
    """A group to carry from these positions on; to be dropped without any."""

    group: str
    positions: Mapping[TopicPartition, int]
    copier: Copier | None


class _Changed(Exception):
    """A partition is not the log any more that was read."""

    def __init__(self, place: TopicPartition, what: str) -> None:
        super().__init__(f"{place.topic}-{place.partition} {what}: asking where to go on.")
        self.place = place


class CopyLoop:
    """The loop of one attempt. `start` and `close` it, or call `turn`."""

    def __init__(self, relay: Relay) -> None:
        """Carry no group yet. Raises BrokerUnreachable, KafkaRefused."""
        self._name, self._source, self._target = relay.name, relay.source, relay.target
        is_committed = not {*relay.reads}.isdisjoint(READ_COMMITTED)
        isolation = "read_committed" if is_committed else "read_uncommitted"
        self._consumer = relay.source.consumer(max_poll_records=POLL_RECORDS, isolation_level=isolation)
        try:
            self._producer = relay.target.producer(linger_ms=0, delivery_timeout_ms=NEVER_MS, gapless=True)
        except BaseException:
            self._consumer.close()
            raise
        self._log = SameLogConsumer(self._consumer, _Changed, looks=False)
        self._groups: dict[str, _Group] = {}
        self._group_of: dict[TopicPartition, str] = {}
        self._read: set[TopicPartition] | None = None  # None: to be assigned anew
        self._changes: queue.SimpleQueue[_Change] = queue.SimpleQueue()
        self._failed: queue.SimpleQueue[tuple[str, AbcastError]] = queue.SimpleQueue()
        self._ends = threading.Event()
        self._broken_at = float("inf")
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"abcast-{relay.name}", daemon=True)

    # For the supervisor, in its thread

    def learn(self, places: Collection[TopicPartition]) -> None:
        """Let the producer look up these partitions of the target: by itself it would miss a new one for minutes.

        Raises UnservableGroups, BrokerUnreachable, KafkaRefused.
        """
        unknown: dict[str, AbcastError] = {}
        for topic in sorted({place.topic for place in places}):
            with self._target.reachable("DESCRIBE", topic):
                known = self._producer.partitions_for(topic)
            if any(place.topic == topic and place.partition not in known for place in places):
                text = f"not all brokers know all partitions of {topic} yet."
                unknown[Topic.of(topic).group] = BrokerUnreachable(text)
        if unknown:
            raise UnservableGroups(unknown)

    def open(self, group: str, positions: Mapping[TopicPartition, int], copier: Copier) -> None:
        """Carry a group from these positions on, in place of those before."""
        self._changes.put(_Change(group, positions, copier))

    def drop(self, group: str) -> None:
        """Carry the group no more."""
        self._changes.put(_Change(group, {}, None))

    def failures(self) -> Iterator[tuple[str, AbcastError]]:
        """Yield the groups that were dropped after an error since the last call."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._failed.get_nowait()

    def copied(self) -> dict[TopicPartition, int]:
        """Return the offset behind the last record of each partition that Kafka has, with all before it."""
        return {place: at for group in list(self._groups.values()) for place, at in group.copied.items()}

    def start(self) -> None:
        """Start the loop's thread."""
        self._thread.start()

    def raise_failure(self) -> None:
        """Raise the error that ended the loop, if there is one."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the loop, wait up to STOP_S for the records on their way, and disconnect."""
        self._ends.set()
        if self._thread.is_alive():
            self._thread.join(2 * STOP_S)
        self._producer.abandon()
        self._consumer.close()

    # In the loop's thread

    def _run(self) -> None:
        try:
            while not self._ends.is_set():
                self.turn()
            self._finish()
        except BaseException as error:  # noqa: BLE001 - raised in the supervisor's thread
            self._failure = error
        finally:
            for group in self._groups.values():
                group.end_spans(self._failure)

    def _finish(self) -> None:
        deadline = time.monotonic() + STOP_S
        while any(group.under_way for group in self._groups.values()) and time.monotonic() < deadline:
            self._see_all()
            self._wait(self._groups)

    def turn(self, timeout_s: float = POLL_S) -> None:
        """Apply changes, see what Kafka has, and copy the records that come within the time.

        Raises UnservableGroups if Kafka has refused a record, or does not take it; KafkaRefused, KafkaError.
        """
        while not self._changes.empty():
            self._apply(self._changes.get())
        self._see_all()
        for name in list(self._groups):
            self._advance(name)
        busy = {name: group for name, group in self._groups.items() if group.waiting}
        on_time = {name: group for name, group in busy.items() if group.late_s() < LATE_S}
        if on_time or sum(group.bytes for group in self._groups.values()) >= MOST_BYTES_OF_ALL:
            self._wait(on_time or self._groups)
            return
        for place, records in self._poll(self._groups.keys() - busy.keys(), timeout_s).items():
            group = self._groups[self._group_of[place]]
            group.positions[place] = records[-1].offset + 1
            group.waiting.extend(records)
        for name in list(self._groups):
            self._advance(name)

    def _apply(self, change: _Change) -> None:
        self._drop(change.group)
        if change.copier is not None:
            self._groups[change.group] = _Group(change.positions, change.copier)
            self._group_of.update(dict.fromkeys(change.positions, change.group))

    def _drop(self, name: str, error: BaseException | None = None) -> None:
        if (group := self._groups.pop(name, None)) is not None:
            group.end_spans(error)
            for place in group.positions:
                self._group_of.pop(place, None)
        self._read = None

    def _fail(self, name: str, error: AbcastError) -> None:
        self._drop(name, error)
        self._failed.put((name, error))

    def _poll(self, names: Collection[str], timeout_s: float) -> Mapping[TopicPartition, Sequence[Record]]:
        """Return new records of these groups."""
        wanted = {place: at for name in names for place, at in self._groups[name].positions.items()}
        if not wanted:
            self._ends.wait(timeout_s)
            return {}
        if wanted.keys() != self._read:
            self._log.read(wanted)
            self._read = set(wanted)
        try:
            return self._log.poll(timeout_s)
        except _Changed as changed:
            self._fail_places([changed.place], InputLost(str(changed)))
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            lost = out_of_range(error) & wanted.keys() or wanted.keys()
            self._fail_places(lost, InputLost("the next records are gone: asking where to go on."))
        except TopicAuthorizationFailedError as error:
            topics: set[str] = set(*error.args)
            refused = self._source.refused(error, "READ", ", ".join(sorted(topics)))
            self._fail_places([place for place in wanted if place.topic in topics] or wanted, refused)
        except KafkaError as error:
            if not error.retriable:
                raise self._source.refused(error) from error
            warn_seldom(_logger, "%s: the broker does not answer; trying again", self._name)
            self._ends.wait(timeout_s)
        return {}

    def _fail_places(self, places: Collection[TopicPartition], error: AbcastError) -> None:
        for name in {self._group_of[place] for place in places}:
            self._fail(name, error)

    def _advance(self, name: str) -> None:
        """Send copies of the waiting records, as many as may be on their way."""
        group = self._groups[name]
        if not group.waiting:
            return
        room = MOST_BYTES_OF_ALL - sum(each.bytes for each in self._groups.values())
        passed: list[MadeRecord] = []
        try:
            while group.waiting and not group.is_full and room > 0:
                record = group.waiting[0]
                copies = group.copier(record)
                place = TopicPartition(record.topic, record.partition)
                sent = [self._send(copy, record.partition) for copy in copies]
                size = sum(map(_size, copies))
                group.under_way.append(_OnTheWay(sent, place, record.offset + 1, size, time.monotonic()))
                group.records, group.bytes = group.records + len(sent), group.bytes + size
                room -= size
                group.waiting.popleft()
                passed += copies
            if (span := passing("relay", name, (copy.headers for copy in passed), self._name)) is not None:
                group.under_way[-1] = group.under_way[-1]._replace(span=span)
        except KafkaError as error:  # neither this record nor one behind it was sent
            if type(error) is KafkaError:  # the producer has failed: the next look finds the group that is the cause
                self._broken_at = min(self._broken_at, time.monotonic())
                return
            self._fail(name, self._why(error, record.topic))
        except AbcastError as error:
            self._fail(name, error)
        except Exception as error:
            _logger.exception("%s: group %s", self._name, name)
            self._fail(name, ProtocolViolation(f"a record of group {name} can't be carried ({error!r})."))

    def _send(self, copy: MadeRecord, partition: int) -> Sent:
        return self._producer.send(copy.topic, copy.value, copy.key, copy.headers, partition)

    def _see_all(self) -> None:
        """Note what Kafka has. Raises UnservableGroups if it has refused a record, or does not take it."""
        refused: dict[str, tuple[BaseException, str]] = {}
        for name, group in self._groups.items():
            copied = dict[TopicPartition, int]()
            while name not in refused and group.under_way and group.under_way[0].is_there:
                first, group.taken_at = group.under_way.popleft(), time.monotonic()
                error = next((one.exception for one in first.sent if one.exception is not None), None)
                if error is not None:
                    refused[name] = error, first.place.topic
                if first.span is not None:
                    first.span.end(error)
                copied[first.place] = first.next_offset
                group.records, group.bytes = group.records - len(first.sent), group.bytes - first.size
            if copied and name not in refused:
                group.copied = {**group.copied, **copied}
        if any(group.stuck_s() >= STUCK_S for group in self._groups.values()):
            stuck = {name: group for name, group in self._groups.items() if group.stuck_s() >= STUCK_S / 2}
            topics = {name: group.under_way[0].place.topic for name, group in stuck.items()}
            raise UnservableGroups(
                {name: BrokerUnreachable(f"Kafka takes no copies of {topic} now.") for name, topic in topics.items()}
            )
        # Behind a refused record the producer fails the others, of all groups, with an error that says no more.
        if not refused and time.monotonic() - self._broken_at >= LATE_S:
            raise BrokerUnreachable(f"{self._name}: the producer has failed.")
        causes = {name: why for name, why in refused.items() if type(why[0]) is not KafkaError} or refused
        if causes:
            raise UnservableGroups({name: self._why(*why) for name, why in causes.items()})

    def _why(self, error: BaseException, topic: str) -> AbcastError:
        """Return the error of a record that could not be written."""
        if isinstance(error, KafkaError) and error.retriable:
            return BrokerUnreachable(f"Kafka takes no copies of {topic} now ({error!r}).")
        if isinstance(error, KafkaError):
            return self._target.refused(error, "WRITE", topic)
        return ProtocolViolation(f"copies of {topic} can't be written ({error!r}).")

    def _wait(self, groups: Mapping[str, _Group]) -> None:
        """Wait a little for one of the oldest records on their way."""
        oldest = (one for group in groups.values() if group.under_way for one in group.under_way[0].sent)
        pending = next((one for one in oldest if not one.is_done), None)
        if pending is None:
            self._ends.wait(_SOON_S)
            return
        with contextlib.suppress(KafkaError):  # seen again in the next turn
            pending.get(_SOON_S)


def _size(copy: MadeRecord) -> int:
    return len(copy.key or b"") + len(copy.value or b"") + headers_bytes(copy.headers) + _RECORD_BYTES
