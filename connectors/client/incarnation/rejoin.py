"""The rejoin of a member that the group has taken for dead: from one incarnation to the next.

The participant asks for a new incarnation (BEGIN_ANEW) when a view comes without the present one although it has not
left, when it can't join any more, or when the group has forgotten it. A thread of its own begins the next one, since
that takes time. It goes step by step:

1. The group may still order messages of an incarnation that is excluded and not over. The thread waits for that until
   the group closes; without an outbox, no longer than `REJOIN_PATIENCE_S`.
2. The old incarnation hands over. Its participant says whether the unsent messages go on (CARRY), or are lost (LOSE).
3. The old forwarder is closed, and the next one begins as soon as a broker answers. Its forward table has a JOIN, and
   behind it the messages carried over. They are sent when the JOIN is ordered; messages that the group orders of the
   old incarnation before that are removed. (The next incarnation of a forgotten stranger has no JOIN. It sends the
   messages carried over.)
4. The thread waits for the first view.

A crash in between is a crash of the old incarnation, or of the new one: the outbox changes over in one step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from connectors.client.incarnation.forwarder import Forwarder
from connectors.client.incarnation.incarnations import Incarnations, Unsent
from connectors.client.incarnation.session import Session
from connectors.client.values.thread_on_demand import ThreadOnDemand
from ordering.base.errors import AbcastError, BrokerUnreachable, Excluded, NotOrderedInTime, TopicMissing
from ordering.participant.participant_table import ParticipantPhase

REJOIN_PATIENCE_S = 10.0
"""Seconds that an excluded member without an outbox waits at most until its messages are ordered."""

RETRY_S = 1.0
JOIN_TIMEOUT_S = 60.0
_logger = logging.getLogger(__name__)


class Rejoin:
    """The rejoins of one member. Thread-safe. The lock of the count is `Incarnations.changed`."""

    def __init__(
        self, incarnations: Incarnations, begin_next: Callable[[Unsent], Forwarder], is_closed: Callable[[], bool]
    ) -> None:
        """Start nothing yet.

        Args:
            incarnations: the member's.
            begin_next: begins the next forwarder, or raises UsageError once the member is closed.
            is_closed: tells whether the member is closed.
        """
        self.address = incarnations.address
        self._incarnations = incarnations
        self._changed = incarnations.changed
        self._begin_forwarder = begin_next
        self._is_closed = is_closed
        self._in_progress = 0

    def wait(self, timeout: float | None) -> bool:
        """Wait up to `timeout` seconds until no rejoin is in progress; return whether none is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._in_progress, timeout)

    def start(self, old: Forwarder) -> None:
        """Perform BEGIN_ANEW. Called under `changed`, so that no thread sees the exclusion without the rejoin."""
        thread = ThreadOnDemand(f"abcast-{self.address}-rejoin", self._join_again)
        try:
            self._in_progress += 1
            thread.begin(old)
        except BaseException:
            self._in_progress -= not thread.has_begun
            raise

    def _join_again(self, old: Forwarder) -> None:
        was_in = old.participant.joined_at is not None or old.participant.phase is ParticipantPhase.EXCLUDED
        why = "was taken for dead" if was_in else "was forgotten by the group, or has sent before its JOIN"
        _logger.warning("%s %s. It starts a new incarnation", self.address, why)
        try:
            if old.participant.phase is ParticipantPhase.EXCLUDED:
                self._wait_for_the_stranger(old)
            begun = self._begin_anew(old)
            if begun is not None:
                self._wait_for_the_view(begun)
        except AbcastError as error:
            if not self._is_closed():
                _logger.warning("%s can't join again: %s", self.address, error)
        finally:
            with self._changed:
                self._in_progress -= 1
                self._changed.notify_all()

    def _wait_for_the_stranger(self, old: Forwarder) -> None:
        """Wait until the excluded incarnation's messages are ordered: an open group takes them as a stranger's."""
        patience_s = None if self._incarnations.outbox is not None else REJOIN_PATIENCE_S
        with self._changed:
            is_known = self._changed.wait_for(lambda: not self.may_order(old), patience_s)
        if not is_known:
            _logger.warning("%s: its messages were not ordered within %g s", self.address, patience_s)

    @staticmethod
    def may_order(old: Forwarder) -> bool:
        """Whether the group may still order messages of an excluded incarnation."""
        return old.has_pending and not old.has_ended and old.participant.phase is ParticipantPhase.EXCLUDED

    def _begin_anew(self, old: Forwarder) -> Forwarder | None:
        """Hand over to a new incarnation; return its forwarder if that has a JOIN, else None.

        Raises only errors that a retry would not help: UsageError (the member was closed), Superseded,
        EnvironmentProblem …
        """
        unsent = old.hand_over(
            Excluded(f"{self.address} was taken for dead by the group. Its messages may be lost: broadcast again.")
        )
        try:
            old.close()
            begun = self._begin_next(unsent)
        except BaseException as error:
            self._give_up(old, unsent, error)
            raise
        return begun if unsent.joins else None

    def _begin_next(self, unsent: Unsent) -> Forwarder:
        while True:
            try:
                return self._begin_forwarder(unsent)
            except (BrokerUnreachable, TopicMissing) as error:
                _logger.warning("%s can't join again yet: %s", self.address, error)
                time.sleep(RETRY_S)

    def _give_up(self, old: Forwarder, unsent: Unsent, error: BaseException) -> None:
        """Fail the receipts of all unsent messages: no incarnation follows in this process."""
        if self._is_closed() and not (unsent.carried or unsent.casts):
            return  # nothing is lost
        failure = error if isinstance(error, AbcastError) else AbcastError(f"{self.address} failed: {error!r}")
        if self._is_closed():
            failure = NotOrderedInTime(f"{self.address} was closed before its message was ordered.")
        old.fail(failure)
        with self._changed:
            receipts = [receipt for _, receipt in unsent.carried] + [entry.receipt for entry in unsent.casts]
            for receipt in receipts:
                if receipt is not None:
                    receipt.fail(failure)
            self._changed.notify_all()

    def _wait_for_the_view(self, begun: Forwarder) -> None:
        session = Session(begun)
        while not self._is_closed():
            try:
                session.join(JOIN_TIMEOUT_S)
            except NotOrderedInTime as error:
                _logger.warning("%s can't join again yet: %s", self.address, error)
            else:
                return
