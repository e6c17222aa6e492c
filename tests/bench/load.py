"""A steady load of a plain producer, and its arrivals."""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from connectors.client.tail.sharing import BATCH_BYTES, LINGER_MS
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.connection.connection import Connection
from connectors.kafka.transport import Producer
from connectors.kafka.transport.kafka_python import CONSUMER_SETTINGS, client_settings
from tests.bench.lab import Lab, Place

PAYLOAD_BYTES = 100
_STAMP = struct.Struct(">q")


class BareSender:
    """Sends well-formed FORWARD records with a plain producer: the member's settings and headers, nothing kept."""

    def __init__(self, connection: Connection, place: Place, name: str, producer: Producer | None = None) -> None:
        self.producer = producer or connection.producer(linger_ms=LINGER_MS, batch_size=BATCH_BYTES)
        self._topic = place.forward
        self._key = f"{place.site}/{name}".encode()
        self._incarnation = time.time_ns() // 1_000_000
        self._local_seqno = 0

    def send(self, payload: bytes) -> None:
        """Send the next message."""
        self._local_seqno += 1
        headers = forward_headers(self._incarnation, self._local_seqno)
        self.producer.send(self._topic, value=payload, key=self._key, headers=headers)

    def close(self) -> None:
        """Flush and disconnect."""
        self.producer.close(timeout=10)


class BareReader:
    """Reads a place's DATA with the library's own consumer, with a member's settings, and looks at each record."""

    def __init__(self, connection: Connection, place: Place) -> None:
        self._partition = TopicPartition(place.data, 0)
        is_in_python = connection.transport == "kafka-python"
        settings = {**client_settings(connection), **CONSUMER_SETTINGS} if is_in_python else {}
        self._consumer: Any = KafkaConsumer(**settings) if is_in_python else connection.consumer()
        self._consumer.assign([self._partition])
        self._consumer.seek(self._partition, 0)

    def read(self) -> int:
        """Count the next records."""
        records = self._consumer.poll(timeout_ms=1000).get(self._partition, ())
        return sum(record.value is not None for record in records)

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()


class Pace:
    """Calls `work` so many times a second, in a thread, until stopped. `behind` is the worst delay, in seconds."""

    def __init__(self, work: Callable[[], Any], per_second: float) -> None:
        self.count = 0
        self.behind = 0.0
        self.problem: BaseException | None = None
        self._work, self._per_second = work, per_second
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        started = time.monotonic()
        try:
            while not self._stop.is_set():
                ahead = started + self.count / self._per_second - time.monotonic()
                if ahead > 0:
                    time.sleep(ahead)
                else:
                    self.behind = max(self.behind, -ahead)
                self._work()
                self.count += 1
        except BaseException as error:  # noqa: BLE001 - raised by stop
            self.problem = error

    def stop(self) -> None:
        """Stop, and raise what went wrong."""
        self.halt()
        if self.problem is not None:
            raise self.problem

    def halt(self) -> None:
        """Stop, whatever went wrong."""
        self._stop.set()
        self._thread.join(60)


def stamped_payload() -> bytes:
    """Return a payload with its time on this machine's monotonic clock."""
    return _STAMP.pack(time.monotonic_ns()).ljust(PAYLOAD_BYTES, b"x")


def sent_at(payload: bytes) -> int:
    """Return the time of a stamped payload, in ns."""
    return int(_STAMP.unpack_from(payload)[0])


class Arrivals:
    """Reads a DATA topic in a thread; `seen` has (sent at, arrived at) of every stamped message, in ns."""

    def __init__(self, lab: Lab, topic: str, *, committed: bool = False) -> None:
        self.seen: list[tuple[int, int]] = []
        self.problem: BaseException | None = None
        self._stop = threading.Event()
        self._partition = TopicPartition(topic, 0)
        self._consumer = lab.connection.consumer(isolation_level="read_committed" if committed else "read_uncommitted")
        self._consumer.assign([self._partition])
        self._consumer.seek(self._partition, 0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with contextlib.closing(self._consumer):
                while not self._stop.is_set():
                    polled = self._consumer.poll(timeout_ms=100)
                    now = time.monotonic_ns()
                    for record in polled.get(self._partition, ()):
                        # Epoch records have no key.
                        if record.key is not None and record.value is not None:
                            self.seen.append((sent_at(record.value), now))
        except BaseException as error:  # noqa: BLE001 - raised by stop
            self.problem = error

    def stop(self) -> None:
        """Stop, and raise what went wrong."""
        self._stop.set()
        self._thread.join(30)
        if self.problem is not None:
            raise self.problem
