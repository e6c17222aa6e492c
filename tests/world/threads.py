"""The client's threads in a world: none of them runs. Their loops take a turn when the world says so.

`Parked` takes the place of `ThreadOnDemand`. A loop that asks `Turns` whether to stop ends after
one turn.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from connectors.client.incarnation.callbacks import Callback, Callbacks
from connectors.client.tail.after_callbacks import AfterCallbacks
from connectors.client.tail.cast_hub import CastHub
from connectors.client.tail.cast_reader import CastReader
from connectors.client.tail.heartbeats import Heartbeats, _OwnProducer
from connectors.client.tail.log_tailer import LogTailer
from connectors.client.tail.merged_log import MergedLog
from connectors.client.values.thread_on_demand import ThreadOnDemand
from connectors.kafka.log.data_cursor import DataCursor
from connectors.kafka.log.effective import Effective

MODULES = ("client.tail.cast_hub", "client.tail.cast_reader", "client.tail.log_tailer", "client.deliveries.deliveries")
"""The modules of the package `connectors` with a POLL_S."""


class Parked(ThreadOnDemand):
    """A thread that does not run."""

    args: Sequence[Any] = ()
    has_begun = False

    def begin(self, *arguments: object) -> None:
        """Wait for the world."""
        self.has_begun, self.args = True, arguments


PARKED = ("tail.log_tailer", "tail.cast_hub", "tail.cast_reader", "incarnation.rejoin")
"""The modules of the package `connectors.client` that start a thread."""


class Turns(threading.Event):
    """An event that is set at its second look."""

    def __init__(self) -> None:
        super().__init__()
        self._looks = 0

    def is_set(self) -> bool:
        """Whether the turn is over."""
        self._looks += 1
        return self._looks > 1

    def wait(self, timeout: float | None = None) -> bool:
        """Return at once."""
        return True


class StillTailer(LogTailer):
    """A tailer that takes a turn when it is told to, and then does all that the thread does in one."""

    _cursor: DataCursor | None = None

    def acquire(self, cursor: DataCursor | None = None) -> bool:
        """Acquire a reference. The first one begins to read at the log's end."""
        self.check()
        if self._cursor is None:
            self._cursor = cursor or self.cursor(self.end()[0])
            self.cache.open(self._cursor.position, self._cursor.reader.last_seqno)
        self._users += 1
        return self._cursor is cursor

    def release(self) -> None:
        """Release a reference."""
        self._users -= 1
        if not self._users and self._cursor is not None:
            self._cursor.close()
            self._cursor = None
            self.cache.close()
            self._end.close()

    def turn(self) -> None:
        """Read on, and pass the records on."""
        if self._cursor is None or self.has_failed:
            return
        try:
            self._cursor = self._turn(self._cursor, self._stopping)
        except Exception as error:  # noqa: BLE001 - as the thread does
            self._fail(error, self._stopping)


class StillBeats(Heartbeats):
    """Heartbeats that are sent when the world says so."""

    def add(self, who: Any) -> None:
        """Send heartbeats of `who` from the next turn on."""
        self._beating.setdefault(who, None)

    def turn(self) -> None:
        """Send a heartbeat of each."""
        if self._beating:
            self._own = getattr(self, "_own", None) or _OwnProducer(self._producers)
            self._turn(self._own)


class StillAfterCallbacks(AfterCallbacks):
    """Calls that are made when the world says so."""

    def begin(self) -> None:
        """Start no thread."""

    def turn(self) -> None:
        """Make the calls that are due."""
        self._calls.put(None)
        self._run()


class Tailer(LogTailer):
    """A tailer without a thread."""

    _is_over = threading.Event()

    def turn(self) -> None:
        """Read on, and call the subscriptions."""
        if self._thread is not None and not self.has_failed:
            self._is_over = threading.Event()
            self._run(self._thread.args[0], self._is_over)  # type: ignore[attr-defined]

    def _notify(self, records: Sequence[Effective]) -> None:
        self._is_over.set()
        super()._notify(records)

    def _start_anew(self, cursor: DataCursor, *others: Any) -> DataCursor:
        self._thread.args = (super()._start_anew(cursor, *others), self._stopping)  # type: ignore[union-attr]
        fresh: DataCursor = self._thread.args[0]  # type: ignore[union-attr]
        return fresh


class Hub(CastHub):
    """A hub without a thread. `log` is the one that it reads."""

    @property
    def log(self) -> MergedLog | None:
        """The log, while the hub runs."""
        return self._log if self._thread is not None and not self.has_failed else None

    def turn(self) -> None:
        """Read on, and tell the senders."""
        if self.log is not None:
            self._run(_Open(self.log), Turns())  # type: ignore[arg-type]


class _Open:
    """A log that the end of a turn does not close."""

    def __init__(self, log: MergedLog) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def close(self) -> None:
        """Leave it open."""


class Reader(CastReader):
    """A reader of casts without a thread."""

    def turn(self) -> None:
        """Read on."""
        if not self.buffer._failure:
            self._stopping = Turns()
            self._run()


class Calls(Callbacks):
    """The calls of an application without a thread: the world makes them, the first one first."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.waiting: list[Callback] = []

    def _put(self, call: Callback) -> None:
        self.waiting.append(call)

    def close(self) -> None:
        """Make no more calls."""
        self.waiting.clear()


@contextmanager
def parked() -> Iterator[None]:
    """Let no part of a client start a thread, or wait for Kafka."""
    with ExitStack() as stack:
        for target, replacement in (
            *((f"connectors.client.{module}.ThreadOnDemand", Parked) for module in PARKED),
            ("connectors.client.tail.sharing.LogTailer", Tailer),
            ("connectors.client.tail.sharing.AfterCallbacks", StillAfterCallbacks),
            ("connectors.client.tail.sharing.CastHub", Hub),
            ("connectors.client.tail.sharing.Heartbeats", StillBeats),
            ("connectors.client.tail.merged_log.CastReader", Reader),
            *((f"connectors.{module}.POLL_S", 0.0) for module in (*MODULES, "client.deliveries.merged_deliveries")),
        ):
            stack.enter_context(patch(target, replacement))
        stack.enter_context(patch.dict("connectors.client.tail.sharing._open", clear=True))
        yield
