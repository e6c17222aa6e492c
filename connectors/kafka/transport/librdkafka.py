"""The fast transport: confluent-kafka, the Python binding of the C library librdkafka. Its promises are `seam`'s.

How it keeps a producer's promises: `enable.idempotence` numbers the batches, so that a repeated request writes nothing
twice and no batch passes a lost one; `max.in.flight=1` for the same reason as in `kafka_python`. The experimental
`enable.gapless.guarantee` is off: it stops the whole producer when one record can't be written. The producer is shared
by many senders, and a sender that has lost a record begins again by itself.

Two of its habits matter here. It reports the outcome of a record only to callers of `poll`: each producer has a thread
for that. And `consume` waits until a batch is full: so only the first record is waited for, and the rest is taken as
available.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import operator
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import confluent_kafka
from confluent_kafka import KafkaException
from kafka import errors
from kafka.structs import TopicPartition

from connectors.kafka.codec.plain_record import PlainRecord
from connectors.kafka.codec.seldom import warn_seldom
from connectors.kafka.login.dialects import for_librdkafka
from connectors.kafka.transport import kafka_python
from connectors.kafka.transport.seam import POLL_RECORDS, ClusterAddress, Consumer, Producer
from ordering.base.records import MAX_RECORD_BYTES

POLL_S = 0.1
PURGE_S = 5.0
QUEUE_BYTES, QUEUE_RECORDS = 64 * 1024 * 1024, 100_000
"""The most that a producer has on its way, for all its users: about a member's forward table."""
FULL_UNTIL = 0.95
"""A queue that was full has space again at this fill level."""
AGAIN_S = 0.5
"""The time after which to try anyway: other senders may take any space at once."""

_logger = logging.getLogger(__name__)
_library_logger = logging.getLogger("librdkafka")
_library_logger.addHandler(logging.NullHandler())  # silent without the application's own logging

_SETTINGS = {"linger_ms": "linger.ms", "batch_size": "batch.size", "delivery_timeout_ms": "delivery.timeout.ms"}
_CONSUMER_SETTINGS = {"fetch_max_wait_ms": "fetch.wait.max.ms", "isolation_level": "isolation.level"}

_Error = confluent_kafka.KafkaError
_END = _Error._PARTITION_EOF  # noqa: SLF001 - the library names its own codes so
_NOT_INFLATED = _Error._BAD_COMPRESSION  # noqa: SLF001
_KAFKA_PYTHON_MS = 10_000
_LOCAL_ERRORS = {
    _Error._TRANSPORT: errors.KafkaConnectionError,  # noqa: SLF001 - the library names its own codes so
    _Error._ALL_BROKERS_DOWN: errors.KafkaConnectionError,  # noqa: SLF001
    _Error._RESOLVE: errors.KafkaConnectionError,  # noqa: SLF001
    _Error._TIMED_OUT: errors.KafkaTimeoutError,  # noqa: SLF001
    _Error._MSG_TIMED_OUT: errors.KafkaTimeoutError,  # noqa: SLF001
    _Error._TIMED_OUT_QUEUE: errors.KafkaTimeoutError,  # noqa: SLF001
    _Error._UNKNOWN_TOPIC: errors.UnknownTopicOrPartitionError,  # noqa: SLF001
    _Error._UNKNOWN_PARTITION: errors.UnknownTopicOrPartitionError,  # noqa: SLF001
    _Error._DESTROY_BROKER: errors.KafkaConnectionError,  # noqa: SLF001 - it has just left the cluster
    _Error._AUTHENTICATION: errors.SaslAuthenticationFailedError,  # noqa: SLF001
    _Error._AUTO_OFFSET_RESET: errors.OffsetOutOfRangeError,  # noqa: SLF001
}
"""The errors that librdkafka itself finds. All codes above 0 are the protocol's own."""


def producer(cluster: ClusterAddress, **settings: Any) -> Producer:
    """Open a producer; see `Transport`."""
    return _Producer(cluster, {_SETTINGS[name]: value for name, value in settings.items()})


def consumer(cluster: ClusterAddress, **settings: Any) -> Consumer:
    """Open a consumer; see `Transport`."""
    return _Consumer(cluster, **settings)


def client_settings(cluster: ClusterAddress) -> dict[str, Any]:
    """Return the settings of all clients."""
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "socket.connection.setup.timeout.ms": max(1000, int(cluster.timeout * 1000)),
        "reconnect.backoff.max.ms": 1000,
        # Else the last small part of a request waits for the acknowledgement of the part before it: half the rate.
        "socket.nagle.disable": True,
        "allow.auto.create.topics": False,
        "logger": _library_logger,
        **({"client.id": cluster.client_id} if cluster.client_id else {}),
        **for_librdkafka(cluster.security),
    }


def translated(error: confluent_kafka.KafkaError) -> errors.KafkaError:
    """Return the same error as kafka-python's class."""
    code = error.code()
    kind = _LOCAL_ERRORS.get(code) or (errors.for_code(code) if code > 0 else errors.KafkaError)
    translation: errors.KafkaError = kind(error.str())
    return translation


@contextlib.contextmanager
def _translating() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise translated(error.args[0]) from error


def _partitions(client: Any, topic: str, timeout_s: float) -> set[int]:
    with _translating():
        found = client.list_topics(topic, timeout=timeout_s).topics[topic]
    if found.error is not None and isinstance(failure := translated(found.error), errors.AuthorizationError):
        raise failure
    return set(found.partitions)


class _Written(NamedTuple):
    """The place of a record in the log."""

    topic_partition: TopicPartition
    offset: int
    timestamp: int


_to_wait = threading.Lock()


class _Sent:
    """A record on its way. Each callback is called once: by the thread that removes it from the list."""

    __slots__ = ("_errbacks", "_message", "_waiters", "exception", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self.exception: BaseException | None = None
        self._message: Any = None
        self._errbacks: list[Callable[[BaseException], object]] | None = None
        self._waiters: list[threading.Event] | None = None  # few records are waited for

    def report(self, error: confluent_kafka.KafkaError | None, message: Any) -> None:
        """Set the outcome. Called by the producer's thread."""
        if error is None:
            self._message = message
        else:
            self.exception = translated(error)
        self.is_done = True
        for waiter in self._waiters or ():
            waiter.set()
        if self._errbacks:
            self._call_back()

    @property
    def value(self) -> _Written | None:
        message = self._message
        if message is None:
            return None
        place = TopicPartition(message.topic(), message.partition())
        return _Written(place, message.offset(), message.timestamp()[1])

    def failed(self) -> bool:
        return self.exception is not None

    def add_errback(self, f: Callable[[BaseException], object]) -> None:
        if self._errbacks is None:
            self._errbacks = []
        self._errbacks.append(f)
        if self.is_done:
            self._call_back()

    def _call_back(self) -> None:
        while self._errbacks and self.exception is not None:
            with contextlib.suppress(IndexError):  # another thread was quicker
                self._errbacks.pop()(self.exception)

    def get(self, timeout: float | None = None) -> _Written | None:
        if not self.is_done:
            self._wait(timeout)
        if self.exception is not None:
            raise self.exception
        return self.value

    def _wait(self, timeout: float | None) -> None:
        """Wait for the outcome. The reporter sets `is_done`, then reads the waiters; a waiter does both in the other
        order.
        """
        done = threading.Event()
        with _to_wait:
            self._waiters = [*(self._waiters or ()), done]
        if not self.is_done and not done.wait(timeout):
            raise errors.KafkaTimeoutError(f"not written within {timeout:g} s")


class _Producer:
    def __init__(self, cluster: ClusterAddress, settings: dict[str, Any]) -> None:
        self._timeout_s = cluster.timeout
        self._client: Any = confluent_kafka.Producer(
            {
                **client_settings(cluster),
                "enable.idempotence": True,
                "acks": "all",
                "max.in.flight.requests.per.connection": 1,
                "partitioner": "murmur2_random",
                "message.max.bytes": MAX_RECORD_BYTES,
                "queue.buffering.max.kbytes": QUEUE_BYTES // 1024,
                "queue.buffering.max.messages": QUEUE_RECORDS,
                **settings,
            }
        )
        self._stopping = threading.Event()
        with _translating():
            self._client.list_topics(timeout=cluster.timeout)
        self._thread = threading.Thread(target=self._serve, name="abcast-librdkafka", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stopping.is_set():
            self._client.poll(POLL_S)

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] | None = None,
        partition: int | None = None,
    ) -> _Sent:
        if self._stopping.is_set():
            raise errors.IllegalStateError("the producer is closed")
        sent = _Sent()
        number = -1 if partition is None else partition
        if headers is not None and type(headers) is not list:
            headers = list(headers)
        try:
            self._client.produce(topic, value, key, number, sent.report, headers=headers)
        except BufferError:
            self._send_when_not_full(topic, value, key, number, sent, headers)
        except KafkaException as error:
            raise translated(error.args[0]) from error
        return sent

    def _send_when_not_full(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        number: int,
        sent: _Sent,
        headers: Sequence[tuple[str, bytes]] | None,
    ) -> None:
        """Wait until librdkafka's queue has space. Raises KafkaTimeoutError.

        confluent-kafka 2.16 never frees the headers of a record that finds the queue full: so this tries seldom.
        """
        deadline = time.monotonic() + self._timeout_s
        full, again = len(self._client), time.monotonic() + AGAIN_S
        while time.monotonic() < deadline and not self._stopping.is_set():
            time.sleep(0.001)
            if len(self._client) > full * FULL_UNTIL and time.monotonic() < again:
                continue
            again = time.monotonic() + AGAIN_S
            with contextlib.suppress(BufferError), _translating():
                self._client.produce(topic, value, key, number, sent.report, headers=headers)
                return
        raise errors.KafkaTimeoutError(f"the producer's queue is full, and took no record within {self._timeout_s:g} s")

    def partitions_for(self, topic: str) -> set[int]:
        return _partitions(self._client, topic, self._timeout_s)

    def flush(self, timeout: float | None = None) -> None:
        unwritten = self._client.flush(-1 if timeout is None else timeout)
        if unwritten:
            raise errors.KafkaTimeoutError(f"{unwritten} records were not written within {timeout:g} s")

    def close(self, timeout: float | None = None) -> None:
        with contextlib.suppress(errors.KafkaTimeoutError):
            self.flush(timeout)
        self.abandon()

    def abandon(self) -> None:
        if self._stopping.is_set():
            return
        self._client.purge()
        self._client.flush(PURGE_S)  # calls back for each purged record
        self._stopping.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(PURGE_S)


class _Offset(NamedTuple):
    offset: int


_headers_of = operator.methodcaller("headers")
"""Call `message.headers()`, which returns a list and sets an error where a name is not UTF-8. CPython notices that only
in a call of this kind: after its own fast method call, the error appears later, in unrelated code.
"""


def _headers(message: Any) -> list[tuple[str, bytes]]:
    """Return the headers; none where a name is not UTF-8: the library then gives no others, and the record still
    counts.
    """
    try:
        return _headers_of(message) or []
    except (SystemError, UnicodeDecodeError):
        place = f"{message.topic()}-{message.partition()}:{message.offset()}"
        warn_seldom(_logger, "%s has a header whose name is not UTF-8: it is read without headers", place)
        return []


_plain_record: Callable[[tuple[Any, ...]], PlainRecord] = functools.partial(tuple.__new__, PlainRecord)
"""Makes a record from a tuple of its fields. There are many records, and separate arguments take twice as long."""


class _Consumer:
    def __init__(self, cluster: ClusterAddress, max_poll_records: int = POLL_RECORDS, **settings: Any) -> None:
        self._cluster, self._settings = cluster, settings
        self._timeout_s = cluster.timeout
        self._max_poll_records = max_poll_records
        self._positions: dict[TopicPartition, int | None] = {}
        self._is_moved = False
        self._client: Any = confluent_kafka.Consumer(
            {
                **client_settings(cluster),
                "group.id": "abcast.reader",  # required, though nothing is ever committed there
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,  # nothing else shows that it has passed over a transaction's marker
                "auto.offset.reset": "error",
                "isolation.level": "read_uncommitted",
                "fetch.wait.max.ms": 100,
                "fetch.message.max.bytes": 4 * 1024 * 1024,
                "queued.max.messages.kbytes": 32 * 1024,
                **{_CONSUMER_SETTINGS[name]: value for name, value in settings.items()},
            }
        )
        try:
            with _translating():
                self._client.list_topics(timeout=cluster.timeout)
        except errors.KafkaError:
            self._client.close()
            raise

    def partitions_for_topic(self, topic: str) -> set[int]:
        return _partitions(self._client, topic, self._timeout_s)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._positions = dict.fromkeys(partitions)
        self._is_moved = True

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._positions[partition] = offset
        self._is_moved = True

    def position(self, partition: TopicPartition) -> int:
        return self._positions[partition] or 0

    def rest(self) -> None:
        if not self._is_moved:
            with _translating():
                self._client.unassign()
            self._is_moved = True

    def poll(self, timeout_ms: int = 0) -> dict[TopicPartition, list[PlainRecord]]:
        if self._is_moved:
            self._move()
        with _translating():
            first = self._next(timeout_ms / 1000)
            if first is None:
                return {}
            messages = [first, *self._client.consume(self._max_poll_records - 1, 0)]
        found: dict[TopicPartition, list[PlainRecord]] = {}
        ends: dict[TopicPartition, int] = {}
        for message in messages:
            if (error := message.error()) is not None:
                if error.code() == _NOT_INFLATED and not found:
                    return self._read_with_kafka_python(TopicPartition(message.topic(), message.partition()))
                if error.code() == _END:
                    ends[TopicPartition(message.topic(), message.partition())] = message.offset()
                else:
                    self._take_error(error, message, bool(found))
                continue
            topic, number = message.topic(), message.partition()
            if (records := found.get((topic, number))) is None:  # equal to a TopicPartition
                records = found[TopicPartition(topic, number)] = []
            when, what = message.timestamp()[1], (message.key(), message.value(), _headers(message))
            records.append(_plain_record((topic, number, message.offset(), when, *what)))
        for partition, records in found.items():
            self._positions[partition] = records[-1].offset + 1
        for partition, end in ends.items():
            self._pass_over(partition, end)
        return found

    def _read_with_kafka_python(self, partition: TopicPartition) -> dict[TopicPartition, list[PlainRecord]]:
        """Read the next records with kafka-python, which inflates in pieces: librdkafka never gets past a batch it
        refused.

        Raises KafkaError.
        """
        other = kafka_python.consumer(self._cluster, **self._settings)
        try:
            other.assign([partition])
            other.seek(partition, self.position(partition))
            read = list(other.poll(timeout_ms=_KAFKA_PYTHON_MS).get(partition, ()))
            self.seek(partition, other.position(partition))
        finally:
            other.close()
        return {partition: cast("list[PlainRecord]", read)} if read else {}

    def _next(self, timeout_s: float) -> Any:
        """Return librdkafka's next message. Returns None at an end that has moved the position."""
        deadline = time.monotonic() + timeout_s
        while True:
            message = self._client.poll(max(0.0, deadline - time.monotonic()))
            if message is None or (error := message.error()) is None or error.code() != _END:
                return message
            if self._pass_over(TopicPartition(message.topic(), message.partition()), message.offset()):
                return None

    def _pass_over(self, partition: TopicPartition, end: int) -> bool:
        """Move the position to the end; return whether offsets without a record were passed over."""
        position = self._positions.get(partition)
        if position is None or end <= position:
            return False
        self._positions[partition] = end
        return True

    def _take_error(self, error: confluent_kafka.KafkaError, message: Any, has_records: bool) -> None:
        failure = translated(error)
        if isinstance(failure, errors.GroupAuthorizationFailedError | errors.KafkaConnectionError):
            return  # this consumer has no group, and the client reconnects by itself
        if isinstance(failure, errors.TopicAuthorizationFailedError):
            failure = errors.TopicAuthorizationFailedError({message.topic()})  # as kafka-python has it
        _logger.debug("reading %s: %r", message.topic(), failure)
        # The error comes again after the records before it, since the position has not moved.
        self._is_moved = True
        if not has_records:
            raise failure

    def _move(self) -> None:
        with _translating():
            self._client.assign(
                [
                    confluent_kafka.TopicPartition(partition.topic, partition.partition, offset)
                    for partition, offset in self._positions.items()
                    if offset is not None
                ]
            )
        self._is_moved = False

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._offsets(partitions, confluent_kafka.OFFSET_BEGINNING, None)

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        return self._offsets(partitions, confluent_kafka.OFFSET_END, timeout_ms)

    def _offsets(
        self, partitions: Iterable[TopicPartition], which: int, timeout_ms: int | None
    ) -> dict[TopicPartition, int]:
        """Return the beginnings or the ends of the partitions, as `which` says, with one request a broker.

        It is a lookup by time, which accepts OFFSET_BEGINNING and OFFSET_END.
        """
        timeout_s = self._timeout_s if timeout_ms is None else timeout_ms / 1000
        return self._offsets_at(dict.fromkeys(partitions, which), timeout_s)

    def offsets_for_times(self, times: dict[TopicPartition, int]) -> dict[TopicPartition, _Offset | None]:
        found = self._offsets_at(times, self._timeout_s)
        return {partition: _Offset(offset) if offset >= 0 else None for partition, offset in found.items()}

    def _offsets_at(self, times: dict[TopicPartition, int], timeout_s: float) -> dict[TopicPartition, int]:
        if not times:
            return {}
        asked = [confluent_kafka.TopicPartition(each.topic, each.partition, at) for each, at in times.items()]
        with _translating():
            found = self._client.offsets_for_times(asked, timeout=timeout_s)
        for each in found:
            if each.error is not None:
                raise translated(each.error)
        return {TopicPartition(each.topic, each.partition): each.offset for each in found}

    def close(self) -> None:
        self._client.close()
