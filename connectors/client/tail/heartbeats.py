"""The thread that says for all members of a group in this process that they are alive.

Heartbeats go by producers of their own, and take no lock of a member. So none waits behind messages, whatever a
neighbour in this process has sent, or the broker holds back. They may overtake or be overtaken: a heartbeat counts for
the life that it names, while the view has that life, and changes nothing else.

Of each member one is on its way at a time. What a broker that was away finds when it is back is one heartbeat of each.

Each group has its own thread: a library may wait for the topic of a group that was deleted, say, with each record for
it.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import NamedTuple, Protocol

from kafka.errors import KafkaError

from connectors.client.tail.producers import Producers
from connectors.kafka.transport import Producer, Sent
from ordering.base.errors import BrokerUnreachable, KafkaRefused

HEARTBEAT_S = 1.0
"""How often a member says so."""
CHANGE_S = 5.0
"""A producer whose heartbeats fail is changed for another one this often at most: the right to write may lack."""

_logger = logging.getLogger(__name__)


class Heartbeat(NamedTuple):
    """A record without a payload."""

    topic: str
    key: bytes
    headers: list[tuple[str, bytes]]


class Beating(Protocol):
    """Who says so."""

    def heartbeat(self) -> Heartbeat | None:
        """Return what says it, without waiting; None when there is no more need, now and later."""


class Heartbeats:
    """Thread-safe. The thread runs while there is somebody to speak for."""

    def __init__(self, producers: Producers) -> None:
        """`producers`: nothing else is sent by them."""
        self._producers = producers
        self._lock = threading.Lock()
        self._beating: dict[Beating, Sent | None] = {}
        """The last one of each."""
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def add(self, who: Beating) -> None:
        """Speak for this life until it says that there is no need."""
        with self._lock:
            if who in self._beating:
                return
            self._beating[who] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="abcast-heartbeats", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        thread = self._thread
        if thread is not None:
            thread.join(2 * HEARTBEAT_S)

    def _run(self) -> None:
        own = _OwnProducer(self._producers)
        try:
            while not self._closing.is_set():
                with self._lock:
                    beating = dict(self._beating)
                for who, last in beating.items():
                    self._beat(own, who, last)
                with self._lock:
                    if not self._beating:
                        self._thread = None
                        return
                self._closing.wait(HEARTBEAT_S)
        finally:
            own.release()

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
            # The others are alive, whatever it is.
            _logger.exception("a heartbeat failed")


class _OwnProducer:
    """One of these producers, changed for another one if a heartbeat has failed. For one thread."""

    def __init__(self, producers: Producers) -> None:
        self.has_failed = False
        self._producers = producers
        self._producer: Producer | None = None
        self._changed_at = 0.0

    def send(self, heartbeat: Heartbeat, after: Sent | None) -> Sent:
        """`after`: the last one, which is done. Raises KafkaError, BrokerUnreachable, KafkaRefused."""
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
        """No heartbeat is sent any more."""
        if self._producer is not None:
            self._producers.release(self._producer)
