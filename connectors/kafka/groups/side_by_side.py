"""Query many groups in parallel, so that a group without an answer holds up no other."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from kafka.errors import KafkaError

from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.unservable_groups import JOB_ERRORS
from connectors.kafka.log.data_log import consumer_of_logs
from connectors.kafka.transport import Consumer
from ordering.base.errors import AbcastError, ProtocolViolation

GROUPS_AT_ONCE = 32
"""Parallel queries, each thread with a connection of its own: a thousand groups in a row would take minutes."""

_Answer = TypeVar("_Answer")
_logger = logging.getLogger(__name__)


class SideBySide(Generic[_Answer]):
    """Queries groups in threads that have a consumer each. Close it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pool = ThreadPoolExecutor(GROUPS_AT_ONCE, "abcast-asking")
        self._of_thread = threading.local()
        self._consumers: list[Consumer] = []
        self._waiting: set[str] = set()
        self._done: queue.SimpleQueue[tuple[str, Future[_Answer | AbcastError]]] = queue.SimpleQueue()

    def ask(self, group: str, question: Callable[[Consumer], _Answer]) -> None:
        """Queue a question about a group. The group must not have another one whose answer was not returned yet."""
        self._waiting.add(group)
        asked = self._pool.submit(self._answer, group, question)
        asked.add_done_callback(lambda future: self._done.put((group, future)))

    @property
    def is_waiting(self) -> bool:
        """Whether a group's answer was not returned yet."""
        return bool(self._waiting)

    def answers(self, timeout_s: float) -> dict[str, _Answer | AbcastError]:
        """Return the next answers or errors by group; {} if none arrive in time. Raises JOB_ERRORS."""
        found: dict[str, _Answer | AbcastError] = {}
        while self._waiting:
            try:
                group, future = self._done.get(timeout=0.0 if found else timeout_s)
            except queue.Empty:
                break
            self._waiting.discard(group)
            found[group] = future.result()
        return found

    def close(self) -> None:
        """Stop asking, and disconnect once the running questions have ended."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for consumer in self._consumers:
            consumer.close()

    def _answer(self, group: str, question: Callable[[Consumer], _Answer]) -> _Answer | AbcastError:
        """Return the answer, or the error with the group's name in it."""
        try:
            return question(self._consumer())
        except AbcastError as error:
            named = error if group in str(error) else type(error)(f"group {group}: {error}")
            if isinstance(error, JOB_ERRORS):
                raise named from error.__cause__
            return named
        except KafkaError as error:
            found = self._connection.unreachable() if error.retriable else self._connection.refused(error)
            return type(found)(f"group {group}: {found}")
        except Exception as error:
            _logger.debug("group %s", group, exc_info=True)
            return ProtocolViolation(f"group {group}: its topics can't be read ({error!r}).")

    def _consumer(self) -> Consumer:
        found: Consumer | None = getattr(self._of_thread, "consumer", None)
        if found is None:
            found = self._of_thread.consumer = consumer_of_logs(self._connection)
            self._consumers.append(found)
        return found
