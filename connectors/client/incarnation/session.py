"""A member's session in its group: the application's calls to join, to leave, to begin and end a quiet point.

The tailer's thread reads the log, and drives the participant (`ordering.participant.participant`). A call from a thread
of the application asks the participant for a change, and waits for it, or raises the reason why it did not come.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from connectors.client.incarnation.forwarder import Forwarder
from ordering.base.errors import AbcastError, Excluded, FlushFailed, NotOrderedInTime, UsageError
from ordering.participant.events import ViewChange
from ordering.participant.participant import STOPPED, FlushRequest, Participant
from ordering.participant.participant_events import Asked, FlushDone, FlushUnwanted
from ordering.participant.participant_table import Cause, ParticipantPhase

LEAVE_POLL_S = 0.1
_logger = logging.getLogger(__name__)


class Session:
    """The session of one incarnation. Thread-safe; it owns nothing."""

    def __init__(self, forwarder: Forwarder) -> None:
        self.address = str(forwarder.address)
        self._forwarder = forwarder

    @property
    def _participant(self) -> Participant:
        return self._forwarder.participant

    def _wait(self, condition: Callable[[Participant], object], timeout: float) -> None:
        """Wait until the condition holds, the incarnation ends, or `timeout` seconds are over."""
        forwarder = self._forwarder
        with forwarder.changed:
            forwarder.changed.wait_for(
                lambda: condition(forwarder.participant) or forwarder.has_ended, max(0.0, timeout)
            )

    def join(self, timeout: float) -> ViewChange:
        """Become a member; return the first view with this incarnation. May be called again.

        Raises NotOrderedInTime, Superseded, BrokerUnreachable, UsageError (the member was closed).
        """
        deadline = time.monotonic() + timeout
        receipt = self._forwarder.join()
        if receipt is not None:
            receipt.result(timeout)
        self._wait(lambda now: now.joined_at is not None or now.is_ending, deadline - time.monotonic())
        now = self._participant
        if now.joined_at is not None:
            return now.joined_at
        if now.is_ending:
            raise UsageError(f"{self.address} is closed.")
        self._forwarder.check()
        raise NotOrderedInTime(
            f"{self.address} has asked to join, but no view came within {timeout:g} s: does the group's "
            "sequencer run (`abcast status`)? A flush may be waiting for another member."
        )

    def leave(self, timeout: float) -> None:
        """Leave the group, after everything that was broadcast. Raises NotOrderedInTime, Excluded, Superseded."""
        deadline = time.monotonic() + timeout
        was_dead = self._participant.is_dead
        receipt = self._forwarder.tell(Asked(Cause.LEAVE))
        while receipt is not None and self._participant.phase is ParticipantPhase.LEAVING:
            left = deadline - time.monotonic()
            try:
                receipt.result(max(0.0, min(left, LEAVE_POLL_S)))
            except NotOrderedInTime:
                if left <= LEAVE_POLL_S:
                    raise
            else:
                return
        if was_dead or (receipt is not None and not receipt.done()):
            raise Excluded(f"{self.address} was taken for dead before it could leave.")

    def start_flush(self, timeout: float) -> FlushRequest:
        """Ask for a quiet point and wait for it. After any error the flush is given up.

        Raises FlushFailed, Excluded, UsageError if the member is closed, and the error that has ended the incarnation.
        """
        try:
            self._forwarder.want_flush()
        except AbcastError:
            raise  # nothing was asked: a flush that runs is another call's
        except BaseException:
            self.give_up_flush()
            raise
        try:
            self._wait(lambda now: _is_decided(now) or not _is_in(now), timeout)
            request = self._check_still_in()
            if request is not None and request.outcome:
                raise FlushFailed(f"the flush of {self.address} failed: {request.outcome}. Try again later.")
            if request is None or not request.is_quiet:
                raise FlushFailed(
                    f"not all members were quiet within {timeout:g} s: does a member's block() take too long?"
                )
        except BaseException:
            self.give_up_flush()
            raise
        return request

    def give_up_flush(self) -> None:
        """Ask the group to end the quiet point, unless it is over; don't wait for that. An error is only logged."""
        try:
            if _is_in(self._participant) and self._participant.request is not None:
                self._forwarder.tell(FlushUnwanted())
        except AbcastError as error:
            _logger.warning("%s could not end its flush. The group ends it later: %s", self.address, error)

    def stop_flush(self, timeout: float) -> None:
        """Let all members send again, and wait until the end of the quiet point is ordered.

        Raises FlushFailed or Excluded if the quiet point was over before, NotOrderedInTime if its end is not ordered
        within `timeout` seconds.
        """
        try:
            if _is_in(self._participant):
                self._forwarder.tell(FlushDone())
                self._wait(lambda now: _outcome(now) or not _is_in(now), timeout)
            outcome = _outcome(self._participant)
            if not outcome:
                self._check_still_in()
        finally:
            self.give_up_flush()
        if not outcome:
            raise NotOrderedInTime(
                f"the end of the flush of {self.address} was not ordered within {timeout:g} s: does the group's "
                "sequencer run (`abcast status`)?"
            )
        if outcome != STOPPED:
            raise FlushFailed(
                f"the quiet point of {self.address} ended too early ({outcome}), so others may have sent in it."
            )

    def _check_still_in(self) -> FlushRequest | None:
        now = self._participant
        if now.is_dead:
            raise Excluded(f"{self.address} was taken for dead during its flush, so others may have sent in it.")
        self._forwarder.check()
        if now.is_ending:
            raise UsageError(f"{self.address} is closed.")
        return now.request


def _is_in(now: Participant) -> bool:
    """Whether this incarnation may have a quiet point."""
    return not (now.is_dead or now.is_ending)


def _is_decided(now: Participant) -> bool:
    """Whether the quiet point has begun, or will not come."""
    return now.request is None or now.request.is_quiet or bool(now.request.outcome)


def _outcome(now: Participant) -> str:
    return now.request.outcome if now.request is not None else ""
