"""The interface to a Kafka library. Everything that reads or appends records uses it.

The names are kafka-python's, reduced to those in use, so that its classes fit nearly unchanged. Its errors
(`kafka.errors`) and `TopicPartition` belong to the interface: every transport raises the class that kafka-python has
for the broker's error code. Administration (topics, groups) is rare, and uses kafka-python directly.

Every transport promises:

* *A producer* is idempotent and waits for all in-sync replicas. It has one request in flight to a broker. So a
  partition's log has its records in the order of `send`, each once, up to the first that fails. A record sent after
  that one may be in the log or not: its sender begins again (`connectors.client.tail.go_back_n`).
  A null stays null, except that a null header value may become empty.
  A key chooses the same partition as in every Kafka client that hashes with murmur2.
* *A record `is_done`* when it is in the log for good, with its offset, or has failed for good.
* *A consumer* reads the assigned partitions from the given offsets, in the order of offsets. Unless `isolation_level`
  says otherwise, it also reads records of open and aborted transactions. It is in no consumer group and commits
  nothing. `poll` returns as soon as it has a record. Offsets without a record for readers (a transaction's marker) only
  move the `position`; `poll` may then return nothing. It also returns nothing while a broker is away. An offset out of
  range raises OffsetOutOfRangeError, whose argument has the partition; the position is never reset.
* *Opening* a client raises a retriable KafkaError if no broker answers in time.

A consumer is not thread-safe; a producer is. Callbacks come from a thread of the producer's own, or from a caller of
`flush`, `close` or `abandon`; they must not wait for the producer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from kafka.structs import TopicPartition

from connectors.kafka.codec.plain_record import Record
from connectors.kafka.login.security import Security

POLL_RECORDS = 500
"""The most records that a poll returns by default. With ten times as many at once, Python's garbage collector inspects
each once more, and they leave the processor's cache before they are read: that costs a third of a reader's rate.
"""


NOTHING: Mapping[TopicPartition, int] = MappingProxyType({})


class ClusterAddress(Protocol):
    """The address of a Kafka, and the login: a `Connection`."""

    @property
    def bootstrap_servers(self) -> str:
        """Servers, separated by commas."""

    @property
    def timeout(self) -> float:
        """Seconds to wait for the first answer, and for space to append."""

    @property
    def security(self) -> Security:
        """The login and the encryption."""

    @property
    def client_id(self) -> str:
        """The client's name at the brokers; "" for the library's default."""


class Written(Protocol):
    """The place and the time of a record in the log."""

    @property
    def topic_partition(self) -> TopicPartition: ...  # noqa: D102
    @property
    def offset(self) -> int: ...  # noqa: D102
    @property
    def timestamp(self) -> int:
        """The timestamp in ms since the epoch: the broker's, in abcast's topics."""


class Sent(Protocol):
    """A record on its way. Thread-safe."""

    @property
    def is_done(self) -> bool:
        """Whether the record is in the log, or has failed."""

    @property
    def exception(self) -> BaseException | None:
        """The error, if it has failed."""

    @property
    def value(self) -> Any:
        """A `Written`, once the record is in the log."""

    def failed(self) -> bool:
        """Whether the record has failed."""

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the `Written`. Raises the record's error, or KafkaTimeoutError after `timeout` seconds."""

    def add_callback(self, f: Callable[[Any], object]) -> object:
        """Call `f`, with some value, once the record is in the log; at once if it is. It may be called twice."""

    def add_errback(self, f: Callable[[BaseException], object]) -> object:
        """Call `f` if the record fails; at once if it has."""


class Producer(Protocol):
    """A producer: appends records."""

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] | None = None,
        partition: int | None = None,
    ) -> Sent:
        """Append a record, asynchronously. Without a `partition` the key chooses one.

        May wait up to the cluster's `timeout` for space, or for the topic's partitions. Raises KafkaError if the record
        can't be accepted.
        """

    def partitions_for(self, topic: str) -> set[int]:
        """Return the topic's partitions as a broker knows them now; `send` then takes them. Raises KafkaError."""

    def flush(self, timeout: float | None = None) -> object:
        """Wait until every sent record is done. Raises KafkaTimeoutError."""

    def close(self, timeout: float | None = None) -> None:
        """Flush, for `timeout` seconds at most, and disconnect. Records that are not done by then fail."""

    def abandon(self) -> None:
        """Disconnect at once: records that are not done fail, though they may be in the log."""


class Consumer(Protocol):
    """A consumer: reads records."""

    def partitions_for_topic(self, topic: str) -> set[int]:
        """Return the topic's partitions; none if there is no such topic. Raises KafkaError."""

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, and no others. Each needs a `seek`."""

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read an assigned partition from that offset on."""

    def poll(self, timeout_ms: int = 0) -> Mapping[TopicPartition, Sequence[Record]]:
        """Return the next records by partition; none if none come within `timeout_ms`, or if only the position moved.

        Raises KafkaError.
        """

    def position(self, partition: TopicPartition) -> int:
        """Return the offset from which the next poll reads an assigned partition; 0 before `seek`.

        Offsets without a record (a transaction's marker, aborted and compacted records) move it, too. To read up to an
        end, wait until the position reaches that end. Raises KeyError for a partition that is not assigned.
        """

    def rest(self) -> None:
        """Stop fetching ahead until the next poll, which continues at the position."""

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the first offsets that retention has kept. Raises KafkaError."""

    def end_offsets(
        self,
        partitions: Iterable[TopicPartition],
        timeout_ms: int | None = None,
        reached: Mapping[TopicPartition, int] = NOTHING,
    ) -> Mapping[TopicPartition, int]:
        """Return the offsets of the next records.

        `reached`: offsets that the logs have reached, so that no end should lie below. A leader that is cut off from
        the other brokers, and does not know that another one is elected, tells such an end; so it is asked for again
        (`newest_leader`), which may take some seconds longer. Raises KafkaError, a retriable one if nobody tells.
        """

    def offsets_for_times(self, times: dict[TopicPartition, int]) -> Mapping[TopicPartition, Any]:
        """Return, by partition, the first record at or after a time (ms since the epoch); None if there is none.

        Only the `offset` of a result is part of the interface. Raises KafkaError.
        """

    def close(self) -> None:
        """Disconnect."""


class Transport(Protocol):
    """A Kafka library. The settings have kafka-python's names and units."""

    def producer(self, cluster: ClusterAddress, **settings: Any) -> Producer:
        """Open a producer. Settings: `linger_ms`, `batch_size`, `delivery_timeout_ms`; `gapless`: once a record has
        failed for good, write none of those sent after it, to any partition, if the library can do that.

        Raises a retriable KafkaError if no broker answers.
        """

    def consumer(self, cluster: ClusterAddress, **settings: Any) -> Consumer:
        """Open a consumer. Settings: `max_poll_records`, `max_partition_fetch_bytes`, `fetch_max_wait_ms`,
        `isolation_level`.

        Raises a retriable KafkaError if no broker answers.
        """
