"""Where one life of a member stands: its participant, and whether it has failed or is closed.

Invariant. A life that has ended takes nothing and sends nothing, and whoever waits for something of it hears of that:
each wait ends when the life does, and raises what has ended it. A later `failure` may take the place of an earlier one
(the next life could not begin either); it is never taken back.

The lock. All is read and changed under `changed`, which is notified after each change; a thread that holds nothing may
read a value that is a moment old. `stop` takes no lock: it is called first, so that the threads go.
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
    """One life's. `takes_messages` and `sends_messages` are asked for each message.

    They are the participant's. But while a flush waits for what was taken before (`held`), nothing more is taken: else
    an application that never ceases to send would hold up the flush, until the group takes the member for dead.
    """

    def __init__(self, address: Address, changed: threading.Condition, participant: Participant) -> None:
        self.address = address
        self.changed = changed
        self.failure: AbcastError | None = None
        self._stopping = threading.Event()
        self._is_held = False
        self.become(participant)

    def become(self, participant: Participant) -> None:
        """The participant after a step."""
        self.participant = participant
        self.takes_messages = participant.takes_messages and not self._is_held
        self.sends_messages = participant.sends_messages

    @property
    def is_silent(self) -> bool:
        """Whether nothing is taken because of a flush."""
        return self.participant.is_silent or self._is_held

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Within this, nothing is taken."""
        self._is_held = True
        self.become(self.participant)
        try:
            yield
        finally:
            self._is_held = False
            self.become(self.participant)
            self.changed.notify_all()

    def stop(self) -> None:
        """It is closed. Who waits is woken by whoever takes the lock next."""
        self._stopping.set()

    @property
    def is_stopping(self) -> bool:
        """Whether it was closed."""
        return self._stopping.is_set()

    @property
    def has_ended(self) -> bool:
        """Whether it has failed, or was closed."""
        return self.failure is not None or self._stopping.is_set()

    @property
    def was_told(self) -> bool:
        """Whether the application has heard why nothing more is sent."""
        return self.failure is not None and self.failure.was_told

    def check(self) -> None:
        """Raise what it has ended with, if it has."""
        if self.failure is not None:
            raise raised_again(self.failure)
        if self.is_stopping:
            raise UsageError(f"{self.address} is closed.")

    def check_takes(self) -> None:
        """Raise what keeps this life from taking anything new."""
        if self.participant.is_dead:
            raise Excluded(f"{self.address} was taken for dead by the group, and joins again: broadcast again.")
        if self.participant.is_ending:
            raise UsageError(f"{self.address} is closed.")

    def wait(self, condition: Callable[[], object], timeout: float | None) -> bool:
        """Wait for that; whether it came in time. Raises what the life has ended with meanwhile."""
        came = self.changed.wait_for(lambda: condition() or self.has_ended, timeout)
        self.check()
        return bool(came)
