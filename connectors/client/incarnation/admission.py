"""Admission control: the conditions under which an incarnation accepts a message, and the waits for them.

A message may have to wait for the end of a flush, for room in the forward table, and for the first view.

Invariant. When a wait returns, all its conditions hold at once: while a message waits for one, another may cease to
hold. A wait that fails has accepted nothing. Its error says which condition did not come true, and what to do. If the
incarnation ends before, each wait raises the error that ended it.

The lock. All methods are called under `Incarnations.changed`, and release it while they wait.
"""

from __future__ import annotations

from connectors.client.casts.caster import Caster
from connectors.client.incarnation.lifecycle import LifecycleState
from connectors.client.incarnation.pending_messages import PendingMessages
from ordering.base.errors import Blocked, ForwardTableFull, UsageError, counted
from ordering.participant.participant_table import ParticipantPhase


class AdmissionControl:
    """The admission control of one incarnation. It has no state of its own."""

    def __init__(self, lifecycle: LifecycleState, pending_messages: PendingMessages) -> None:
        self._lifecycle = lifecycle
        self._pending_messages = pending_messages

    def wait_until_taken(self, size: int, count: int, timeout: float | None) -> None:
        """Wait until `count` messages, of `size` bytes in all, may enter the forward table.

        Raises Blocked, ForwardTableFull, Excluded; UsageError if the table never has room for all.
        """
        lifecycle, pending_messages = self._lifecycle, self._pending_messages
        table = pending_messages.table
        if not table.may_hold(size, count):
            raise UsageError(
                f"{counted(count, 'message')} of {size:,} bytes are over the member's limits: at most "
                f"{table.max_records} (max_pending_records) of {table.max_bytes:,} bytes (max_pending_bytes) wait at a "
                "time. Broadcast fewer at once."
            )
        while lifecycle.is_silent or not pending_messages.table.has_room(size, count):
            if lifecycle.is_silent:
                self._wait_for_the_flush(timeout)
            elif not lifecycle.wait(lambda: pending_messages.table.has_room(size, count), timeout):
                raise ForwardTableFull(
                    f"{len(pending_messages.table)} messages of {lifecycle.address} wait to be ordered, and there was "
                    f"no room for {counted(count, 'message')} more within {timeout:g} s. Does the group's sequencer "
                    "run (`abcast status`)? Broadcast again later, or raise max_pending_records."
                )
        lifecycle.check_takes()

    def wait_until_cast_is_taken(self, caster: Caster, size: int, timeout: float | None) -> None:
        """Wait until a cast of `size` bytes may wait for Kafka. Raises Blocked, ForwardTableFull, Excluded."""
        lifecycle = self._lifecycle
        while lifecycle.is_silent or not caster.has_room(size):
            if lifecycle.is_silent:
                self._wait_for_the_flush(timeout)
            elif not lifecycle.wait(lambda: caster.has_room(size), timeout):
                raise ForwardTableFull(
                    f"{caster.pending} messages of {lifecycle.address} in fifo or causal order wait for Kafka, and "
                    f"there was no room for another within {timeout:g} s. Broadcast again later, or raise "
                    "max_pending_records."
                )
        lifecycle.check_takes()

    def wait_until_joined(self, timeout: float | None) -> None:
        """Wait for the view, if this incarnation has asked to join a group with flush. Raises Blocked, Excluded."""
        lifecycle = self._lifecycle
        if not lifecycle.participant.settings.flush:
            return
        asking = (ParticipantPhase.JOINING, ParticipantPhase.AWAITING)
        if not lifecycle.wait(lambda: lifecycle.participant.phase not in asking, timeout):
            raise Blocked(
                f"{lifecycle.address} has asked to join, and no view came within {timeout:g} s. Broadcast again."
            )
        lifecycle.check_takes()

    def wait_until_the_view_is_delivered(self, caster: Caster, seqno: int, timeout: float | None) -> None:
        """Wait until the first view, at `seqno`, is delivered in all orders: the next casts belong to it.

        Raises Blocked.
        """
        address = self._lifecycle.address
        if self._lifecycle.wait(lambda: caster.may_cast_behind(seqno), timeout):
            return
        if caster.knows(seqno):
            raise Blocked(
                f"an earlier process of {address} is in the view, and has cast in it. This process may cast from the "
                "next view on. Broadcast again then, or close the member and start it again."
            )
        raise Blocked(f"the first view of {address} was not delivered within {timeout:g} s. Broadcast again.")

    def wait_until_earlier_casts_have_left(self, caster: Caster, timeout: float | None) -> None:
        """Wait until the casts of earlier incarnations have left: later ones follow them. Raises Blocked, Excluded."""
        if not self._lifecycle.wait(lambda: caster.is_caught_up, timeout):
            raise Blocked(
                f"earlier casts of {self._lifecycle.address} go first. They wait for a view, and none came within "
                f"{timeout:g} s. Call connect(), or broadcast again later."
            )
        self._lifecycle.check_takes()

    def _wait_for_the_flush(self, timeout: float | None) -> None:
        lifecycle = self._lifecycle
        if not lifecycle.wait(lambda: not lifecycle.is_silent, timeout):
            raise Blocked(
                f"a flush of the group did not end within {timeout:g} s, and {lifecycle.address} may not send in it. "
                "Broadcast again later."
            )
