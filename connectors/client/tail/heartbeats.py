"""Send the heartbeats of all members of a group in this process, from one thread.

Heartbeats have producers of their own, and take no lock of a member. So none waits behind messages, whatever another
member of this process has sent, or the broker holds back. A heartbeat and messages may overtake each other: a heartbeat
counts for the incarnation that it names, while the view has that one, and changes nothing else.

Each member has one heartbeat in flight at a time. So a broker that was away gets one heartbeat of each when it is back.

Each group has its own thread: a library may block on each record for a topic that was deleted.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import NamedTuple, Protocol

from kafka.errors import KafkaError

from connectors.client.tail.producers import Producers
from connectors.client.values.thread_on_demand import ThreadOnDemand
from connectors.kafka.transport import Producer, Sent
from ordering.base.errors import BrokerUnreachable, KafkaRefused

HEARTBEAT_S = 1.0
"""Seconds between two heartbeats of a member."""
CHANGE_S = 5.0
"""The shortest time between two changes of a failing producer: if the right to write is missing, none helps."""

_logger = logging.getLogger(__name__)


class Heartbeat(NamedTuple):
    """A FORWARD record without a payload."""

    topic: str
    key: bytes
    headers: list[tuple[str, bytes]]


class Beating(Protocol):
    """An incarnation that sends heartbeats."""

    def heartbeat(self) -> Heartbeat | None:
        """Return the heartbeat to send, without waiting; None if no more are needed, now and later."""


class Heartbeats:
    """The heartbeats of a group's members. Thread-safe. The thread runs while a member needs it."""

    def __init__(self, producers: Producers) -> None:
        """Start nothing yet. `producers` send nothing but heartbeats."""
        self._producers = producers
        self._lock = threading.Lock()
        self._beating: dict[Beating, Sent | None] = {}
        """The last heartbeat of each."""
        self._thread = ThreadOnDemand("abcast-heartbeats", self._run)
        self._closing = threading.Event()

    def add(self, who: Beating) -> None:
        """Send heartbeats of `who` until its `heartbeat` returns None."""
        with self._lock:
            if who in self._beating:
                return
            self._thread.begin()
            self._beating[who] = None

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._thread.join(2 * HEARTBEAT_S)

    def _run(self) -> None:
        own = _OwnProducer(self._producers)
        try:
            while not self._closing.is_set() and self._turn(own):
                self._closing.wait(HEARTBEAT_S)
        finally:
            own.release()

    def _turn(self, own: _OwnProducer) -> bool:
        """Send a heartbeat of each member; return whether the thread is still needed."""
        with self._lock:
            beating = dict(self._beating)
        for who, last in beating.items():
            self._beat(own, who, last)
        with self._lock:
            if not self._beating:
                self._thread.forget()
            return bool(self._beating)

    def _beat(self, own: _OwnProducer, who: Beating, last: Sent | None) -> None:
        try:
            heartbeat = who.heartbeat()
            if heartbeat is None:
                with self._lock:
                    del self._beating[who]
            elif last is None or last.is_done:
                self._beating[who] = own.send(heartbeat, after=last)
        except (KafkaError, BrokerUnreachable, KafkaRefused) as error:
            own.has_failed = True
            _logger.debug("a heartbeat could not be sent: %r", error)
        except Exception:
            # The other members still need their heartbeats.
            _logger.exception("a heartbeat failed")


class _OwnProducer:
    """The producer in use, changed for another one if a heartbeat has failed. For one thread."""

    def __init__(self, producers: Producers) -> None:
        self.has_failed = False
        self._producers = producers
        self._producer: Producer | None = None
        self._changed_at = 0.0

    def send(self, heartbeat: Heartbeat, after: Sent | None) -> Sent:
        """Send a heartbeat. `after` is the member's last one, which is done.

        Raises KafkaError, BrokerUnreachable, KafkaRefused.
        """
        self.has_failed |= after is not None and after.failed()
        now = time.monotonic()
        if self._producer is None or (self.has_failed and now - self._changed_at >= CHANGE_S):
            self._changed_at = now
            before, self._producer = self._producer, self._producers.lease(instead_of=self._producer)
            self.has_failed = False
            if before is not None:
                self._producers.release(before)
        return self._producer.send(heartbeat.topic, b"", heartbeat.key, heartbeat.headers)

    def release(self) -> None:
        """Release the producer."""
        if self._producer is not None:
            self._producers.release(self._producer)
