"""The state of one incarnation's life cycle: its participant, and whether it has failed or is closed.

Invariant. An incarnation that has ended accepts nothing and sends nothing. Each wait in it ends with it, and raises the
error that ended it. A later `failure` may replace an earlier one (the next incarnation could not begin either), but is
never removed.

The lock. The state is changed under `changed`, which is notified after each change. A thread without the lock may read
a value that is a moment old. `stop` takes no lock: it is called first, so that the threads end.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from connectors.client.values.promise import raised_again
from ordering.base.errors import AbcastError, Excluded, UsageError
from ordering.base.names import Address
from ordering.participant.participant import Participant


class LifecycleState:
    """The life cycle of one incarnation.

    `takes_messages` and `sends_messages` are the participant's, copied here because each message reads them. But within
    `held`, while a flush waits for the messages taken before, no more are taken. Otherwise an application that never
    ceases to send would hold up the flush, until the group takes the member for dead.
    """

    def __init__(self, address: Address, changed: threading.Condition, participant: Participant) -> None:
        self.address = address
        self.changed = changed
        self.failure: AbcastError | None = None
        self.is_stopping = False
        """Whether it was closed."""
        self._is_held = False
        self.become(participant)

    def become(self, participant: Participant) -> None:
        """Set the participant, after a step."""
        self.participant = participant
        self.takes_messages = participant.takes_messages and not self._is_held
        self.sends_messages = participant.sends_messages

    @property
    def is_silent(self) -> bool:
        """Whether no message is taken because of a flush."""
        return self.participant.is_silent or self._is_held

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Take no message inside the `with`."""
        self._is_held = True
        self.become(self.participant)
        try:
            yield
        finally:
            self._is_held = False
            self.become(self.participant)
            self.changed.notify_all()

    def stop(self) -> None:
        """Close it. The thread that takes the lock next wakes the waiting ones."""
        self.is_stopping = True

    @property
    def has_ended(self) -> bool:
        """Whether it has failed, or was closed."""
        return self.failure is not None or self.is_stopping

    @property
    def was_told(self) -> bool:
        """Whether a call of the application has raised the error that ended this incarnation."""
        return self.failure is not None and self.failure.was_told

    def check(self) -> None:
        """Raise the error that has ended this incarnation, if it has ended."""
        if self.failure is not None:
            raise raised_again(self.failure)
        if self.is_stopping:
            raise UsageError(f"{self.address} is closed.")

    def check_takes(self) -> None:
        """Raise Excluded or UsageError if this incarnation takes no new message."""
        if self.participant.is_dead:
            raise Excluded(f"{self.address} was taken for dead by the group, and joins again: broadcast again.")
        if self.participant.is_ending:
            raise UsageError(f"{self.address} is closed.")

    def wait(self, condition: Callable[[], object], timeout: float | None) -> bool:
        """Wait for a condition; return whether it came in time. If the incarnation ends first, raise its error."""
        came = self.changed.wait_for(lambda: condition() or self.has_ended, timeout)
        self.check()
        return bool(came)
