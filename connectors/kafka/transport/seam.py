"""What abcast asks of a Kafka library. Everything that reads or appends records goes through here.

The words are kafka-python's, cut down to what is used, so that its classes are one side of the seam nearly as they are.
Its errors (`kafka.errors`) and `TopicPartition` are the seam's, too: every transport raises the class that the broker's
error code has there. Administration (topics, groups) is rare, and stays with kafka-python alone.

What every transport promises:

* *A producer* is idempotent and waits for all in-sync replicas. It has one request in flight to a broker, so what is
  sent to one partition stands there in the order of `send`, each record once, up to the first that fails. What was
  sent behind that one may stand there or not: its sender begins again (`connectors.client.tail.go_back_n`).
  Null is null, but that a header's may be written as an empty one.
  A key chooses the same partition as in every Kafka client that hashes with murmur2.
* *A record is `is_done`* when it stands in the log for good, with its offset, or has failed for good.
* *A consumer* reads the assigned partitions from where it was told to, in the order of offsets, what is committed by
  transactions or not. It is in no consumer group and commits nothing. `poll` returns as soon as there is something.
  What Kafka gives to nobody (a transaction's mark) only moves the `position`; then `poll` may return nothing.
  A broker that is away is silence. Offsets that are not there raise OffsetOutOfRangeError; it never jumps.
* *Opening* either of them raises a retriable KafkaError if no broker answers in time.

Not thread-safe: a consumer. Thread-safe: a producer. Callbacks come from a thread of the producer's own; they must not
wait for anything that the producer does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from kafka.structs import TopicPartition

from connectors.kafka.codec.plain_record import Record
from connectors.kafka.login.security import Security

POLL_RECORDS = 500
"""What a poll returns at most, by default. Of ten times as many at once, Python's garbage collector looks at each once
more, and they are out of the processor's cache when they are read: that costs a third of what a reader does.
"""


class ClusterAddress(Protocol):
    """Where a Kafka is, and how to get in: a `Connection`."""

    @property
    def bootstrap_servers(self) -> str:
        """Separated by commas."""

    @property
    def timeout(self) -> float:
        """Seconds to wait for the first answer, and for room to append."""

    @property
    def security(self) -> Security:
        """How to log in."""

    @property
    def client_id(self) -> str:
        """What the brokers call it; "" for the library's own name."""


class Written(Protocol):
    """Where a record stands."""

    @property
    def topic_partition(self) -> TopicPartition: ...  # noqa: D102
    @property
    def offset(self) -> int: ...  # noqa: D102
    @property
    def timestamp(self) -> int:
        """When, by the broker's clock."""


class Sent(Protocol):
    """A record on its way. Thread-safe."""

    @property
    def is_done(self) -> bool:
        """Whether it stands in the log, or has failed."""

    @property
    def exception(self) -> BaseException | None:
        """Why it has failed, if it has."""

    @property
    def value(self) -> Any:
        """A `Written`, once it stands in the log."""

    def failed(self) -> bool:
        """Whether it is done, and failed."""

    def get(self, timeout: float | None = None) -> Any:
        """Wait for its `Written`. Raises what it failed with, KafkaTimeoutError after `timeout` seconds."""

    def add_errback(self, f: Callable[[BaseException], object]) -> object:
        """Call that if it fails; at once if it has."""


class Producer(Protocol):
    """Appends records."""

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] | None = None,
        partition: int | None = None,
    ) -> Sent:
        """Append a record, soon. Waits for room. Raises KafkaError if it can't be taken."""

    def partitions_for(self, topic: str) -> set[int]:
        """The topic's partitions. Raises KafkaError."""

    def flush(self, timeout: float | None = None) -> object:
        """Wait until all that was sent is done. Raises KafkaTimeoutError."""

    def close(self, timeout: float | None = None) -> None:
        """Flush, for so long at most, and disconnect."""

    def abandon(self) -> None:
        """Disconnect at once: what is not done fails, whether it gets to the log yet or not."""


class Consumer(Protocol):
    """Reads records."""

    def partitions_for_topic(self, topic: str) -> set[int]:
        """The topic's partitions; none if there is no such topic. Raises KafkaError."""

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these, and no others. `seek` must say from where."""

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read an assigned partition from there on."""

    def poll(self, timeout_ms: int = 0) -> Mapping[TopicPartition, Sequence[Record]]:
        """What comes next; nothing after so long. Raises KafkaError."""

    def position(self, partition: TopicPartition) -> int:
        """The offset behind all that was polled of an assigned partition, with what no poll gives: the mark at the end
        of a transaction, what was aborted, what compaction has taken. Who reads to an end waits for this one.
        """

    def rest(self) -> None:
        """Fetch nothing ahead, until it is polled again, which goes on where it was."""

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The first offsets that retention has left. Raises KafkaError."""

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> Mapping[TopicPartition, int]:
        """The offsets of the next records. Raises KafkaError."""

    def offsets_for_times(self, times: dict[TopicPartition, int]) -> Mapping[TopicPartition, Any]:
        """The `offset` of the first record that is not older than that (ms since the epoch); None if there is none."""

    def close(self) -> None:
        """Disconnect."""


class Transport(Protocol):
    """A Kafka library. The settings have the names and units of kafka-python's."""

    def producer(self, cluster: ClusterAddress, **settings: Any) -> Producer:
        """`linger_ms`, `batch_size`, `delivery_timeout_ms`. Raises a retriable KafkaError if no broker answers."""

    def consumer(self, cluster: ClusterAddress, **settings: Any) -> Consumer:
        """`max_poll_records`, `fetch_max_wait_ms`, `isolation_level`. Raises a retriable KafkaError if no broker
        answers.
        """
