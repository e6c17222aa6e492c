"""A sender's subscription to a group's DATA: its own and control records, from the offset of a known state on.

The sender subscribes before it asks for the state of the log. Records that come in between are kept for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from connectors.kafka.log.data_log import Start
from connectors.kafka.log.effective import Effective, Pack
from ordering.base.errors import HistoryUnavailable
from ordering.base.formats import PACKS
from ordering.sequencer.state import SequencerState


class Listener(Protocol):
    """The receiver of records. Called by the tailer's thread. After an error that it raises, only `end` is called."""

    def receive(self, records: Sequence[Effective | Pack]) -> None:
        """Take own and control records, in order; the messages of a pack at once."""

    def catch_up(self, gone: HistoryUnavailable, state: SequencerState) -> None:
        """Take the state behind records that were missed."""

    def look_after(self) -> None:
        """Do all work that is due. Called at least ten times a second."""

    def end(self, error: Exception) -> None:
        """Take the error after which no more records come."""


class RecordSource(Protocol):
    """The part of a `connectors.client.tail.log_tailer.LogTailer` that a subscription needs."""

    notifying: threading.RLock
    format: int

    @property
    def newest_seqno(self) -> int | None:
        """Return the last seqno that was read; None while no thread reads."""

    def end(self) -> tuple[Start, SequencerState]:
        """Return the end of DATA, and the state there. Raises BrokerUnreachable."""

    def is_sequenced(self) -> bool:
        """Whether sequencers decide the group, one at a time. Raises BrokerUnreachable."""

    def forget(self, subscription: Subscription) -> None:
        """Call a closed subscription no more. Called under `notifying`."""

    def release(self) -> None:
        """Release a reference."""


class Subscription:
    """The subscription of one sender. Its methods, except `close` and `end`, are called under `LogTailer.notifying`."""

    def __init__(self, tailer: RecordSource, key: bytes) -> None:
        self.key = key
        self._tailer = tailer
        self._listener: Listener | None = None
        self._kept: list[Effective | Pack] = []
        self._from = 0  # earlier records are in the state that the listener knows
        self._missed: HistoryUnavailable | None = None
        self._has_failed = False
        self._is_closed = False

    def end(self) -> tuple[Start, SequencerState]:
        """Return the end of DATA, and the state there. Raises BrokerUnreachable."""
        return self._tailer.end()

    @property
    def seen(self) -> int:
        """Return a seqno up to which the listener has got all records, while the tailer's thread looks after it."""
        return self._tailer.newest_seqno or 0

    def packs_from(self, state: SequencerState) -> Callable[[], bool]:
        """Return a function that tells whether FORWARD may have packs, given the state that `end` has returned.

        A seal in DATA must have announced them: every sequencer after it knows packs. Raises BrokerUnreachable.
        """
        tailer, is_sequenced = self._tailer, self._tailer.is_sequenced()
        return lambda: is_sequenced and max(state.format, tailer.format) >= PACKS.number

    def begin(self, listener: Listener, offset: int) -> None:
        """Let the listener receive everything from `offset` on, which `end` has returned."""
        with self._tailer.notifying:
            self._listener, self._from = listener, offset
            kept, self._kept = self._kept, []
            if self._missed is not None:
                missed, (start, state) = self._missed, self._tailer.end()
                self._from = start.offset
                self.notify(lambda each: each.catch_up(missed, state))
            self.receive(kept)

    def receive(self, records: list[Effective | Pack]) -> None:
        """Pass records on to the listener, or keep them until there is one."""
        if self._listener is None:
            if not self._has_failed:
                self._kept += records
            return
        if records and records[0].offset < self._from:
            records = [record for record in records if record.offset >= self._from]
        if records:
            self.notify(lambda listener: listener.receive(records))

    def miss(self, gone: HistoryUnavailable, state: SequencerState) -> None:
        """Let the listener catch up: records were missed."""
        self._missed = gone if self._listener is None else None
        self.notify(lambda listener: listener.catch_up(gone, state))

    def notify(self, call: Callable[[Listener], None]) -> None:
        """Call the listener, if there is one. A listener that fails is ended, and called no more."""
        listener = self._listener
        if listener is None:
            return
        try:
            call(listener)
        except Exception as error:  # noqa: BLE001 - one member's failure ends that member alone
            self._listener, self._has_failed = None, True
            listener.end(error)

    def close(self) -> None:
        """Close it; when this returns, the listener is called no more."""
        with self._tailer.notifying:
            if self._is_closed:
                return
            self._is_closed, self._listener = True, None
            self._tailer.forget(self)
        self._tailer.release()
