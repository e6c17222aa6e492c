"""Processes of a world whose Kafka calls are its steps. At each, the world chooses the next process, or kills one.

A `Process` acts when it is called. A `Stepped` one has a program of its own, which runs in a thread. One thread of a
world runs at a time: the program's, while `step` waits for it, or the world's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from connectors.kafka.groups.side_by_side import SideBySide
from connectors.kafka.transport import Consumer
from ordering.base.errors import AbcastError
from tests.world.actors import Killed

_Answer = TypeVar("_Answer")
WAIT_S = 60.0
"""The longest step, in real seconds."""


class Process:
    """A process. Its clients `call` before each request to Kafka."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_killed = False
        self.producers: list[Any] = []

    def call(self) -> None:
        """Raise Killed if the process is dead."""
        if self.is_killed:
            raise Killed(self.name)

    def kill(self) -> None:
        """End the process. Its records on their way may still arrive."""
        self.is_killed = True
        for producer in list(self.producers):
            producer.abandon()


class Stepped(Process):
    """A process with a program."""

    def __init__(self, name: str, program: Callable[[], object]) -> None:
        super().__init__(name)
        self.error: BaseException | None = None
        """The error that the program has ended with."""
        self.has_ended = False
        self._program = program
        self._left = 0
        self._goes_on, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def step(self, calls: int) -> bool:
        """Let the program make so many calls to Kafka; return whether it goes on."""
        if not self.has_ended:
            self._left = calls
            if self._thread.ident is None:
                self._thread.start()
            else:
                self._goes_on.release()
            if not self._waits.acquire(timeout=WAIT_S):
                raise TimeoutError(f"{self.name} makes no call to Kafka.")
        return not self.has_ended

    def call(self) -> None:
        """Make a call, once the world lets the program go on."""
        while not self.is_killed and self._left <= 0 and threading.current_thread() is self._thread:
            self._waits.release()
            self._goes_on.acquire()
        self._left -= 1
        super().call()

    def kill(self) -> None:
        """End the process at its next call."""
        self.is_killed = True
        if self._thread.ident is None:
            self.has_ended = True
        self.step(0)
        super().kill()

    def _run(self) -> None:
        try:
            self._program()
        except BaseException as error:  # noqa: BLE001 - the world judges it
            self.error = error
        self.has_ended = True
        self._waits.release()


class InTurn(SideBySide[_Answer]):
    """Questions that are answered one after the other, in the thread that asks."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._found: dict[str, _Answer | AbcastError] = {}
        self._asked: Consumer | None = None

    def ask(self, group: str, question: Callable[[Consumer], _Answer]) -> None:
        """Answer the question."""
        self._found[group] = self._answer(group, question)

    @property
    def is_waiting(self) -> bool:
        """Whether an answer was not returned yet."""
        return bool(self._found)

    def answers(self, timeout_s: float) -> dict[str, _Answer | AbcastError]:
        """Return the answers."""
        found, self._found = self._found, {}
        return found

    def close(self) -> None:
        """Disconnect."""
        if self._asked is not None:
            self._asked.close()

    def _consumer(self) -> Consumer:
        self._asked = self._asked or self._connection.consumer()
        return self._asked
