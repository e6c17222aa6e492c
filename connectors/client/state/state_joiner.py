"""The joiner's half of a state transfer: ask a member for the application's state, and set it.

`connectors.client.state.state_transfer` has the protocol and its invariant.

The joiner asks the oldest other member first. When that leaves the view, or is silent for PATIENCE_S, the joiner asks
the next one. When all were asked in vain, the joiner begins again, twice as patient. A request is named by its letter's
(incarnation, local seqno), which every chunk of the answer repeats: chunks of an earlier request are dropped.

The lock. `_changed` guards the answer that is awaited. A request is sent under it, so that the answer is not read
before the request's number is known. docs/protocols/locks.md has the order of locks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from connectors.client.deliveries.cut import Cut, unpacked
from connectors.client.deliveries.deliveries import POLL_S
from connectors.client.state.state_letters import Chunk, Nothing, Request, RequestId, Send, StateAssembly
from connectors.client.tail.cast_hub import CastHub
from connectors.client.values.condition import Condition
from connectors.kafka.codec.letter_codec import WrittenLetter
from ordering.base.errors import NotOrderedInTime, ProtocolViolation, UsageError
from ordering.base.names import Address
from ordering.casts.delivery_status import DeliveryStatus
from ordering.membership.membership import MemberIncarnation
from ordering.participant.events import ViewChange

PATIENCE_S = 5.0
"""Seconds that a joiner first waits for the next chunk before it asks another member; doubled with each round."""

SetState = Callable[[bytes], object]
_logger = logging.getLogger(__name__)


class Fetched(NamedTuple):
    """The place of a state that was set: it has the messages up to `seqno`; with casts, the messages of `cut`."""

    seqno: int
    cut: Cut | None = None


class StateJoiner:
    """The joiner's half of one member's transfers. Thread-safe. `close` ends a `fetch`."""

    def __init__(self, address: Address, send: Send, set_state: SetState | None, *, casts: bool) -> None:
        """Ask nobody yet. `casts`: whether the member takes part in fifo and causal order."""
        self.address = address
        self.set_state = set_state
        self._send = send
        self._casts = casts
        self._changed = Condition()
        self._is_closed = False
        self._assembly: StateAssembly | None = None

    def close(self) -> None:
        """Wait no longer."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def accept(self, letter: WrittenLetter, answer: Chunk | Nothing) -> None:
        """Take a letter of the awaited answer; drop any other."""
        with self._changed:
            if self._assembly is not None and self._assembly.accept(letter, answer):
                self._assembly.heard_at = time.monotonic()
                self._changed.notify_all()

    def fetch(
        self,
        joined: ViewChange,
        current: Callable[[], ViewChange | None],
        timeout: float,
        hub: CastHub | None,
    ) -> Fetched | None:
        """Get the state and set it, as `StateTransfer.fetch` says."""
        own, deadline, patience = str(self.address), time.monotonic() + timeout, PATIENCE_S
        try:
            asked: set[MemberIncarnation] = set()
            without_state, said_in = set[MemberIncarnation](), joined  # members without a state, as of that view
            while True:
                view = current() or joined
                others = [member for member in view.incarnations if member.address != own]
                if view != said_in:
                    without_state, said_in = set(), view
                if without_state >= set(others):
                    return None
                supplier = next((member for member in others if member not in asked), None)
                if supplier is None:
                    asked.clear()
                    patience *= 2
                    continue
                asked.add(supplier)
                assembly = self._ask(supplier, joined.seqno)
                self._wait(assembly, supplier, current, patience, deadline)
                if assembly.is_complete and (fetched := self._install(assembly, hub, patience)) is not None:
                    return fetched
                if assembly.is_nothing:
                    without_state.add(supplier)
                elif time.monotonic() >= deadline:
                    raise NotOrderedInTime(
                        f"{own} has joined, but got no state within {timeout:g} s; the last one it asked was "
                        f"{supplier.address}. Has an older member get_state, and does it iterate its deliveries()? "
                        "Then connect(state=True) again, with a longer timeout for a large state."
                    )
        finally:
            self._assembly = None

    def _ask(self, supplier: MemberIncarnation, seqno: int) -> StateAssembly:
        request = Request(seqno, self._casts)
        with self._changed:  # the answer must not be read before the request's number is known
            receipt = self._send(Address.parse(supplier.address), b"", request.headers())
            number = RequestId(receipt.incarnation, receipt.local_seqno)
            self._assembly = StateAssembly(supplier.address, number, time.monotonic(), incarnation=supplier.incarnation)
            return self._assembly

    def _wait(
        self,
        assembly: StateAssembly,
        supplier: MemberIncarnation,
        current: Callable[[], ViewChange | None],
        patience: float,
        deadline: float,
    ) -> None:
        """Wait until the answer is complete, or none comes. Raises UsageError if the member is closed."""
        with self._changed:
            while not (assembly.is_complete or assembly.is_nothing):
                if self._is_closed:
                    raise UsageError(f"{self.address} is closed.")
                view, now = current(), time.monotonic()
                if view is not None and supplier not in view.incarnations:
                    return
                if now >= deadline or now - assembly.heard_at >= patience:
                    return
                self._changed.wait(POLL_S)

    def _install(self, assembly: StateAssembly, hub: CastHub | None, patience: float) -> Fetched | None:
        """Set the state, and return its place; return None if it is void, which is logged. Raises as `set_state`."""
        assert assembly.answer is not None
        assert self.set_state is not None
        self._assembly = None
        state, cut = b"".join(assembly.chunks), None
        assembly.chunks.clear()
        if hub is not None:
            try:
                cut, state = unpacked(state)
            except ProtocolViolation as error:
                _logger.warning("%s: the state that %s sent can't be used: %s", self.address, assembly.supplier, error)
                return None
            status = hub.delivery_status_of_state(cut.state.causal, patience)
            if status is not DeliveryStatus.DELIVERED:
                why = f"some messages in it are {status.value} delivered in the group"
                _logger.warning("%s: the state that %s sent can't be used: %s", self.address, assembly.supplier, why)
                return None
        self.set_state(state)
        return Fetched(assembly.answer[1] if cut is None else cut.seqno, cut)
