"""A pass of a member's application through a log: over the group's messages, or over the member's letters."""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, TypeVar

from connectors.client.memory.bookmark import Bookmark
from connectors.client.memory.member_memory import MemberMemory
from connectors.client.values.silence import Silence
from connectors.kafka.connection.connection import Connection
from ordering.base.names import Address

T = TypeVar("T")


class MemberPass(ABC, Generic[T]):
    """A `connectors.client.values.stream.LogPass`. `run` once; `stop` from any thread ends it within about 0.1 s."""

    def __init__(self, connection: Connection, group: str, address: Address, timeout: float | None, who: str) -> None:
        """Connect to nothing yet. `timeout` is from `values.arguments.silence`. `who` names the log in warnings."""
        self.connection = connection
        self.group = group
        self.address = address
        self.finished = threading.Event()
        self._stopping = threading.Event()
        self._silence = Silence(timeout, connection.timeout)
        self._bookmark = Bookmark(who)

    def stop(self) -> None:
        """End the run as if there were no more items. A thread that is about to get one may still get it."""
        self._stopping.set()

    def take(self) -> None:
        """Count the item in hand as taken."""
        self._bookmark.take()

    def run(self) -> Iterator[T]:
        """Yield the items, and commit the bookmark at the end. Raises as `_items`."""
        try:
            memory = MemberMemory(self.connection, self.group, self.address)
            try:
                yield from self._items(memory)
            finally:
                # While the interpreter shuts down, no thread is left to talk to Kafka.
                if not sys.is_finalizing():
                    try:
                        self._bookmark.commit()
                    finally:
                        memory.close()
        finally:
            self.finished.set()

    @abstractmethod
    def _items(self, memory: MemberMemory) -> Iterator[T]:
        """Yield the items; begin the bookmark, and move it."""
