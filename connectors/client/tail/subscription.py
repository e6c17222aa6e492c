"""One sender's ear at a group's DATA: what the feed's thread tells it, from the offset on at which it knows the log.

It says that it will listen before it asks for the state of the log, and what comes meanwhile is kept for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from connectors.kafka.log.data_log import Start
from connectors.kafka.log.effective import Effective
from ordering.base.errors import HistoryUnavailable
from ordering.sequencer.sequencer import SequencerState


class Listener(Protocol):
    """Who hears what comes. Called by the feed's thread. What it raises, it is told by `end`, and nothing more."""

    def receive(self, records: Sequence[Effective]) -> None:
        """Own and control records, in order."""

    def catch_up(self, gone: HistoryUnavailable, state: SequencerState) -> None:
        """Records were missed; this is the state behind them."""

    def look_after(self) -> None:
        """Some ten times a second at least: do what is due."""

    def end(self, error: Exception) -> None:
        """Nothing more comes."""


class RecordSource(Protocol):
    """What a hearing needs of its feed (`connectors.client.tail.log_tailer`)."""

    notifying: threading.RLock

    def end(self) -> tuple[Start, SequencerState]:
        """Where DATA ends now, and the state there. Raises BrokerUnreachable."""

    def forget(self, subscription: Subscription) -> None:
        """It is closed. Called under `telling`."""

    def release(self) -> None:
        """One less uses the feed."""


class Subscription:
    """One sender's ear. Its methods but `close` and `end` are called under the feed's `telling`."""

    def __init__(self, tailer: RecordSource, key: bytes) -> None:
        self.key = key
        self._tailer = tailer
        self._listener: Listener | None = None
        self._kept: list[Effective] = []
        self._from = 0  # what stands before is in the state that the listener knows
        self._missed: HistoryUnavailable | None = None
        self._has_failed = False
        self._is_closed = False

    def end(self) -> tuple[Start, SequencerState]:
        """Where DATA ends now, and the state there. Raises BrokerUnreachable."""
        return self._tailer.end()

    def begin(self, listener: Listener, offset: int) -> None:
        """The listener hears everything from `offset` on, which `end` has told."""
        with self._tailer.notifying:
            self._listener, self._from = listener, offset
            kept, self._kept = self._kept, []
            if self._missed is not None:
                missed, (start, state) = self._missed, self._tailer.end()
                self._from = start.offset
                self.tell(lambda each: each.catch_up(missed, state))
            self.receive(kept)

    def receive(self, records: list[Effective]) -> None:
        """Pass them on, or keep them."""
        if self._listener is None:
            if not self._has_failed:
                self._kept += records
            return
        if records and records[0].offset < self._from:
            records = [record for record in records if record.offset >= self._from]
        if records:
            self.tell(lambda listener: listener.receive(records))

    def miss(self, gone: HistoryUnavailable, state: SequencerState) -> None:
        """Records were missed."""
        self._missed = gone if self._listener is None else None
        self.tell(lambda listener: listener.catch_up(gone, state))

    def tell(self, call: Callable[[Listener], None]) -> None:
        """Call it, unless it is not there. A listener that fails hears nothing more."""
        listener = self._listener
        if listener is None:
            return
        try:
            call(listener)
        except Exception as error:  # noqa: BLE001 - one member's failure is told to that member
            self._listener, self._has_failed = None, True
            listener.end(error)

    def close(self) -> None:
        """When this returns, the listener is not called any more."""
        with self._tailer.notifying:
            if self._is_closed:
                return
            self._is_closed, self._listener = True, None
            self._tailer.forget(self)
        self._tailer.release()
