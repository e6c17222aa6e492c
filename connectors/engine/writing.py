"""Writes of decided batches: the batches in flight, and whether Kafka has them.

All groups of an attempt share one producer. A partition gets its records in the order in which they were passed, up to
the first record that fails (`connectors.kafka.transport.seam`). A write that fails, or has no known outcome, raises
`WriteFailed`. It ends the work on its group, which begins again with a takeover (`ordering.sequencer.pipeline`). The
producer may still write records after that. No reader counts a record behind the new seal; the takeover counts each
record before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from kafka.errors import KafkaError, KafkaTimeoutError

from connectors.kafka.connection.connection import Connection
from connectors.kafka.transport import Sent
from connectors.takeover.rows import Output
from ordering.base.errors import AbcastError

_POLL_S = 0.1


class WriteFailed(AbcastError):
    """Kafka refused a decided record, or does not tell its outcome: the sequencer has to take over anew."""

    retriable = True


class WrittenBatch(NamedTuple):
    """A batch that was passed to Kafka: its records, the bytes of their payload, each topic's first and last record."""

    sent: Sequence[Sent]
    size: int
    first: Mapping[str, Sent]
    last: Mapping[str, Sent]

    def is_there(self) -> bool:
        """Whether Kafka has all of it. Raises WriteFailed."""
        if self.sent and not self.sent[-1].is_done:
            return False
        for one in self.sent:
            if not one.is_done:
                return False
            if one.exception is not None:
                raise WriteFailed(f"Kafka did not take a record ({one.exception!r}): taking over again.")
        return True

    def note_ends(self, ends: dict[str, int]) -> None:
        """Put the offset of each topic's last record into `ends`, behind the batch before. Kafka has this batch.

        Raises WriteFailed if a record is not behind the one before it. Then the topic has lost its end, or was
        recreated: a snapshot further on would hide that from the watchdog. A record that was sent twice may have a
        negative offset: the broker had it, and tells no place.
        """
        for topic, first in self.first.items():
            end = ends.get(topic, -1)
            if 0 <= first.value.offset <= end:
                raise WriteFailed(f"{topic} was recreated, or has lost its end: taking over again.")
            ends[topic] = max(end, self.last[topic].value.offset)


class Writer:
    """Passes records to Kafka, which takes them in their order."""

    def __init__(self, connection: Connection) -> None:
        """Open a producer. Raises BrokerUnreachable."""
        # While one request is in flight, the next batch gathers by itself: waiting for more would only take time.
        self._producer = connection.producer(linger_ms=0)

    def write(self, outputs: Iterable[Output]) -> WrittenBatch:
        """Pass records to Kafka, for partition 0 of their topics; do not wait. Raises WriteFailed."""
        send, sent, size = self._producer.send, list[Sent](), 0
        first, last = dict[str, Sent](), dict[str, Sent]()
        try:
            for topic, (key, value, headers) in outputs:
                one = last[topic] = send(topic, value, key, headers, 0)
                first.setdefault(topic, one)
                sent.append(one)
                size += len(value or b"")
        except KafkaError as error:
            raise WriteFailed(f"a record could not be sent to Kafka ({error!r}): taking over again.") from error
        return WrittenBatch(sent, size, first, last)

    def wait(self, written: WrittenBatch, gives_up: Callable[[], bool], ask_s: float = _POLL_S) -> bool:
        """Wait until Kafka has the batch; return False if `gives_up()` is true before. Raises WriteFailed.

        `gives_up` is called every `ask_s` seconds.
        """
        while not written.is_there():
            if gives_up():
                return False
            # The records go to several topics: Kafka may have the last one before the others.
            pending = next((one for one in reversed(written.sent) if not one.is_done), written.sent[-1])
            try:
                pending.get(ask_s)
            except KafkaTimeoutError:
                continue
            except KafkaError as error:
                raise WriteFailed(f"Kafka did not take a record ({error!r}): taking over again.") from error
        return True

    def abandon(self) -> None:
        """Disconnect at once. Records in flight may or may not reach the log."""
        self._producer.abandon()
