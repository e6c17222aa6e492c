"""Writing what was decided: batches in flight, and whether Kafka has them.

One producer for all groups of an attempt, idempotent and with one request in flight (`Connection.producer_settings`):
what goes to one partition stands there in the order in which it was passed. A write that fails, or whose outcome is
not known, is `WriteFailed`. It ends the attempt, and its producer, and the next one begins with a takeover
(`ordering.pipeline`). What the producer still writes after that stands behind the new seal, or before it: in the first
case no reader counts it, in the second the takeover does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from kafka import KafkaProducer
from kafka.errors import KafkaError

from connectors.kafka.connection import Connection
from connectors.kafka.sending import Record
from ordering.errors import AbcastError

_POLL_S = 0.1


class WriteFailed(AbcastError):
    """Kafka did not take what was decided, or does not say: the sequencer has to take over anew."""

    retriable = True


class Written(NamedTuple):
    """A batch that was passed to Kafka: what it gives for each record."""

    sent: Sequence[Any]

    def is_there(self) -> bool:
        """Whether Kafka has all of it. Raises WriteFailed."""
        for future in self.sent:
            if not future.is_done:
                return False
            if future.failed():
                raise WriteFailed(f"Kafka did not take a record ({future.exception!r}): taking over anew.")
        return True


class Writer:
    """Passes records to Kafka, which takes them in their order."""

    def __init__(self, connection: Connection) -> None:
        """Raises BrokerUnreachable."""
        self._producer: KafkaProducer = connection.producer()

    def write(self, records: Iterable[tuple[str, Record]]) -> Written:
        """Pass records, each with its topic, to Kafka; does not wait. Raises WriteFailed."""
        send = self._producer.send
        try:
            return Written(
                [
                    send(topic, key=key, value=value, headers=headers, partition=0)
                    for topic, (key, value, headers) in records
                ]
            )
        except KafkaError as error:
            raise WriteFailed(f"a record could not be passed to Kafka ({error!r}): taking over anew.") from error

    def wait(self, written: Written, gives_up: Callable[[], bool]) -> bool:
        """Wait until Kafka has the batch; False if `gives_up` said so before. Raises WriteFailed."""
        while not written.is_there():
            if gives_up():
                return False
            _wait_for(written.sent[-1])
        return True

    def close(self, timeout: float) -> None:
        """Wait so many seconds for what is in flight, and drop the rest."""
        self._producer.close(timeout=timeout)


def _wait_for(future: Any) -> None:
    deadline = time.monotonic() + _POLL_S
    while not future.is_done and time.monotonic() < deadline:
        time.sleep(0.0005)
