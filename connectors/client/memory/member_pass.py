"""A pass of a member's application through a log: over the group's messages, or over the member's letters."""

from __future__ import annotations

import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from connectors.client.memory.bookmark import Bookmark
from connectors.client.memory.member_memory import MemberMemory
from connectors.client.values.gathering import Form, Gathering
from connectors.client.values.silence import Silence
from connectors.kafka.connection.connection import Connection
from ordering.base.errors import AbcastError
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
        self._gathering = Gathering()

    def stop(self) -> None:
        """End the run as if there were no more items. A thread that is about to get one may still get it."""
        self._stopping.set()

    def take(self) -> None:
        """Count the item in hand as taken."""
        self._bookmark.take()

    def ask(self, most: int, wait_s: float = 0.0) -> None:
        """Let `run` yield a list next, as `Stream.batches` says; with a `most` of 0, single items."""
        self._gathering.ask(most, wait_s)

    def run(self) -> Iterator[T | list[T]]:
        """Yield the items, or lists of them, and commit the bookmark at the end. Raises as `_items`."""
        try:
            memory = MemberMemory(self.connection, self.group, self.address)
            try:
                yield from self._items(memory)
            except AbcastError:
                if self._gathering.count:  # they come before the error
                    yield from self._given()
                raise
            finally:
                # While the interpreter shuts down, no thread is left to talk to Kafka.
                if not sys.is_finalizing():
                    try:
                        self._bookmark.commit()
                    finally:
                        memory.close()
        finally:
            self.finished.set()

    def gather_in(self, form: Form) -> None:
        """Yield lists in another form, which the function makes of their parts."""
        self._gathering.form = form

    @abstractmethod
    def _items(self, memory: MemberMemory) -> Iterator[T | list[T]]:
        """Yield the items, or the lists that were asked for; begin the bookmark, and move it."""

    def _gathered(self, items: Sequence[Any], place: tuple[int, int], size_bytes: int = 0) -> None:
        """Add items to the list that was asked for; `place` is behind them. `Gathering.add` has `size_bytes`."""
        self._gathering.add(items, place, size_bytes)
        if items:
            self._silence.broken(time.monotonic())

    def _given(self) -> Iterator[T | list[T]]:
        """Yield the gathered list, or the single item; take it when the application goes on."""
        gathering = self._gathering
        items = gathering.completed()
        self._bookmark.hand_out(*gathering.place)
        yield items if gathering.most else items[0]
        self.take()
        self._silence.broken(time.monotonic())
        self._bookmark.commit_if_due()
