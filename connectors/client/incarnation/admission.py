"""What a message waits for before a life takes it: the end of a flush, room, its first view.

Invariant. When a wait returns, all that it is for holds at once: while a message waits for one thing, another can be
lost. A wait that fails has taken nothing, and says what did not come, and whom to ask.

All is called under `changed`, which is given up while it waits.
"""

from __future__ import annotations

from connectors.client.casts.caster import Caster
from connectors.client.incarnation.lifecycle import LifecycleState
from connectors.client.incarnation.pending_messages import PendingMessages
from ordering.base.errors import Blocked, ForwardTableFull
from ordering.participant.participant_table import ParticipantPhase


class AdmissionControl:
    """One life's. It keeps nothing of its own."""

    def __init__(self, standing: LifecycleState, books: PendingMessages) -> None:
        self._standing = standing
        self._books = books

    def wait_until_taken(self, size: int, timeout: float | None) -> None:
        """Until a message of `size` may enter the forward table. Raises Blocked, ForwardTableFull, Excluded."""
        standing, books = self._standing, self._books
        while standing.is_silent or not books.has_room(size):
            if standing.is_silent:
                self._wait_for_the_flush(timeout)
            elif not standing.wait(lambda: books.has_room(size), timeout):
                raise ForwardTableFull(
                    f"{len(books.table)} messages of {standing.address} wait to be ordered, and none was within "
                    f"{timeout:g} s. Does the group's sequencer run (`abcast status`)? Broadcast again later, or raise "
                    "max_pending_records."
                )
        standing.check_takes()

    def wait_until_cast_is_taken(self, caster: Caster, size: int, timeout: float | None) -> None:
        """Until a cast of `size` may wait for Kafka. Raises Blocked, ForwardTableFull, Excluded."""
        standing = self._standing
        while standing.is_silent or not caster.has_room(size):
            if standing.is_silent:
                self._wait_for_the_flush(timeout)
            elif not standing.wait(lambda: caster.has_room(size), timeout):
                raise ForwardTableFull(
                    f"{caster.pending} messages of {standing.address} in fifo or causal order wait for Kafka, and no "
                    f"room came within {timeout:g} s. Broadcast again later, or raise max_pending_records."
                )
        standing.check_takes()

    def wait_until_joined(self, timeout: float | None) -> None:
        """If it has asked to, as it does by itself when it was taken for dead. In its view it may send."""
        standing = self._standing
        if not standing.participant.settings.flush:
            return
        asking = (ParticipantPhase.JOINING, ParticipantPhase.AWAITING)
        if not standing.wait(lambda: standing.participant.phase not in asking, timeout):
            raise Blocked(
                f"{standing.address} has asked to join, and no view came within {timeout:g} s. Broadcast again."
            )
        standing.check_takes()

    def wait_until_the_view_is_delivered(self, caster: Caster, seqno: int, timeout: float | None) -> None:
        """What is cast behind the first view belongs to it: so it waits until that is delivered in all orders."""
        address = self._standing.address
        if self._standing.wait(lambda: caster.may_cast_behind(seqno), timeout):
            return
        if caster.knows(seqno):
            raise Blocked(
                f"an earlier process of {address} is in the view, and has cast in it: from the next view on, this "
                "one may cast. Broadcast again, or close it and start it again."
            )
        raise Blocked(f"the first view of {address} was not delivered within {timeout:g} s. Broadcast again.")

    def wait_until_earlier_casts_have_left(self, caster: Caster, timeout: float | None) -> None:
        """What earlier lives have left stands before what is cast now. Raises Blocked, Excluded."""
        if not self._standing.wait(lambda: caster.is_caught_up, timeout):
            raise Blocked(
                f"what {self._standing.address} has cast before waits for a view, and leaves first: none came within "
                f"{timeout:g} s. Call connect(), or broadcast again later."
            )
        self._standing.check_takes()

    def _wait_for_the_flush(self, timeout: float | None) -> None:
        standing = self._standing
        if not standing.wait(lambda: not standing.is_silent, timeout):
            raise Blocked(
                f"a flush of the group did not end within {timeout:g} s, and {standing.address} may not send in it. "
                "Broadcast again later."
            )
