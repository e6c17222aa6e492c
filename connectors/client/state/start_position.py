"""The start of a member's own deliveries, as `connect` was asked for, and the place where the next run goes on.

After `connect`, deliveries begin with the first view, with the group's first message, at a seqno that the application
names, or behind a state that another member has supplied (`connectors.client.state.state_transfer`). Without `connect`,
they begin behind the member's position. Each run goes on where the one before ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from connectors.client.deliveries.cut import Cut
from connectors.client.deliveries.deliveries import Deliveries
from connectors.client.deliveries.merged_deliveries import MergedDeliveries, MergedSource
from connectors.client.state.state_transfer import StateTransfer
from connectors.client.tail.cast_hub import CastHub
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog
from connectors.storage.location import Location
from ordering.base.errors import StateUnavailable, UsageError
from ordering.base.kinds import MESSAGE_KINDS
from ordering.base.names import Address
from ordering.base.reader import Reader, Verdict
from ordering.participant.events import ViewChange


class Choice(NamedTuple):
    """The arguments of `connect`."""

    from_ledger: bool = False
    state: bool = False
    or_history: bool = False
    from_seqno: int | None = None


class StartPosition:
    """The start position of one member. Not thread-safe: a member's `connect` and `deliveries` do not run at once."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        address: Address,
        ledger: Location | None,
        transfer: StateTransfer | None,
    ) -> None:
        self.connection = connection
        self.group = group
        self.address = address
        self.ledger = ledger
        self.transfer = transfer
        self.sources: Callable[[bool, Cut | None], MergedSource] | None = None
        """A function that makes a source of all orders, for a member with casts; else None.

        It takes whether the source begins with the member's first view, and the cut to begin at instead, if any.
        """
        self.hub: Callable[[], CastHub | None] = lambda: None
        self._cut: Cut | None = None
        self._source: MergedSource | None = None
        self._first_view = 0
        self.is_ready = False
        """Whether `connect` has succeeded."""
        self._first_seqno: int | None = None
        self._counted_seqno = 0
        self._newest: Deliveries | None = None  # the last run, which the next one continues

    def check(self, choice: Choice) -> None:
        """Raise UsageError if the arguments of `connect` exclude each other, or come too late."""
        from_ledger, state, or_history, from_seqno = choice
        if state and (self.transfer is None or self.transfer.joiner.set_state is None):
            raise UsageError("connect(state=True) needs a function that takes the state: Member(set_state=…).")
        if state + from_ledger + (from_seqno is not None) > 1:
            raise UsageError("take one of state=True, from_ledger=True and from_seqno=…: each says where to begin.")
        if or_history and not state:
            raise UsageError("or_history=True goes with state=True: it says what to do where no member has the state.")
        if from_seqno is not None and from_seqno < 1:
            raise UsageError(f"from_seqno is {from_seqno}, but seqnos start at 1.")
        if self.is_ready and state:
            raise UsageError(f"{self.address} is connected already: the state comes with the first connect().")
        if self.is_ready and (from_ledger or from_seqno is not None):
            raise UsageError(f"{self.address} is connected already: where to begin is said with the first connect().")

    def enter(self, view: ViewChange, choice: Choice, current: Callable[[], ViewChange | None], timeout: float) -> None:
        """Choose where deliveries begin, now that the first view, `view`, has come; get the state if `choice` wants it.

        `current` returns the newest view. `timeout` is in seconds, for the state. Raises StateUnavailable,
        NotOrderedInTime, BrokerUnreachable, UsageError, and the errors of `set_state`.
        """
        counted: int | None = None
        first = 1 if choice.from_ledger else choice.from_seqno
        if self.transfer is not None:
            if choice.state:
                fetched = self.transfer.fetch(view, current, timeout, self.hub())
                if fetched is not None:
                    counted, self._cut = fetched
                elif self._has_history(view):
                    if not choice.or_history:
                        raise self._no_state()
                    first = 1
            self.transfer.supplier.is_ready = True
        self.is_ready = True
        if first is not None or counted is not None:
            self._newest = None
        # A member that was in the view when its process started has no first view to begin with.
        self._first_seqno = first or view.seqno or (counted + 1 if counted is not None else None)
        self._counted_seqno = counted or 0
        self._first_view = view.seqno
        self.close()

    def deliveries(self, timeout: float | None, *, events: bool) -> Deliveries:
        """Return a run that goes on where the last one ended."""
        first = self._first_seqno
        taken = self._newest.taken_seqno if self._newest is not None else 0
        if taken:  # taken messages do not come again
            first = max(first or 0, taken + 1)
        between = self.transfer.supplier.between if self.transfer is not None else None
        options: dict[str, Any] = {"events": events, "counted": self._counted_seqno, "between": between}
        if self.sources is None:
            place = self.connection, self.group, self.address
            self._newest = Deliveries(*place, first, timeout, self.ledger, **options)
            return self._newest
        if self._source is None:
            with_view = bool(self._first_view) and self._first_seqno == self._first_view
            self._source = self.sources(with_view, self._cut)
        self._newest = MergedDeliveries(self._source, first, timeout, is_shared=True, **options)
        return self._newest

    def close(self) -> None:
        """Disconnect. Called when all runs have ended."""
        if self._source is not None:
            self._source.close()
            self._source = None

    def _has_history(self, view: ViewChange) -> bool:
        """Whether a message was ordered before the first view, or may have been: retention has dropped records.

        Raises BrokerUnreachable.
        """
        reader = Reader()
        with DataLog(self.connection, self.group, self.address.site) as log:
            if log.beginning() > 0:
                return True  # retention has dropped records
            for stored in log.records(0, log.end()):
                data = stored.data
                is_taken = reader.judge(data) is Verdict.TAKE
                if is_taken and data.kind in MESSAGE_KINDS:
                    return not view.seqno or data.seqno < view.seqno
        return False

    def _no_state(self) -> StateUnavailable:
        return StateUnavailable(
            f"{self.address} has joined, but {self.group} has ordered messages before, and no member has their state. "
            "connect(state=True, or_history=True) builds the state from the group's first message on. "
            "connect(from_seqno=n) goes on from your own state. connect() begins with the view, without a state."
        )
