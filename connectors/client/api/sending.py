"""The sending half of a member: messages in each order, and letters. The first of them takes an incarnation."""

from __future__ import annotations

from typing import Any, Literal, overload

from connectors.client.incarnation.quiet_points import QuietPoints
from connectors.client.incarnation.rejoin import Rejoin
from connectors.client.values.arguments import seconds
from connectors.client.values.cast_receipt import CastReceipt
from connectors.client.values.letter import LetterReceipt
from connectors.client.values.message import GivenHeaders, Serializer, check_headers, check_payload
from connectors.client.values.receipt import Receipt
from ordering.base.errors import UsageError
from ordering.base.names import Address
from ordering.casts.casts import ORDERS, TOTAL


class SendingHalf:
    """What `Member` has to send. Thread-safe."""

    group: str
    address: Address

    def __init__(self, sending: Rejoin, quiet: QuietPoints, default_site: str, serializer: Serializer | None) -> None:
        self._sending = sending
        self._quiet = quiet
        self._default_site = default_site
        self._serializer = serializer
        self._is_connected = False  # it is in the group, or was

    @overload
    def broadcast(
        self,
        payload: Any,
        headers: GivenHeaders = (),
        timeout: float | None = 30.0,
        *,
        order: Literal["total"] = "total",
    ) -> Receipt: ...

    @overload
    def broadcast(
        self,
        payload: Any,
        headers: GivenHeaders = (),
        timeout: float | None = 30.0,
        *,
        order: Literal["fifo", "causal"],
    ) -> CastReceipt: ...

    def broadcast(
        self, payload: Any, headers: GivenHeaders = (), timeout: float | None = 30.0, *, order: str = TOTAL
    ) -> Receipt | CastReceipt:
        """Send a message to the group; returns as soon as it is in the forward table (and the outbox).

        `order`: `total`, through the sequencer; `fifo` and `causal` go straight to the members, of a member with
        `casts`. Each of them keeps its sender's order; `causal` also comes after all that the sender had delivered, and
        needs a view of a group with flush. Their receipts say when they are written; until then, an outbox keeps them.

        `payload`: bytes, a bytearray or a memoryview; with a `serializer`, what that takes.

        The first call also takes an incarnation, which needs an answer from Kafka. Messages of one member are ordered
        as they were broadcast; of several threads, as they got hold of the member. While the forward table is full,
        it waits up to `timeout` seconds (None: as long as it takes).

        Raises:
            UsageError: the payload is not bytes or over MAX_PAYLOAD_BYTES; a bad header; the member is closed;
                the group is closed, and the member did not `connect`; an order that can't be kept.
            ForwardTableFull: nothing was sent; try again later.
            Blocked: the same, since a flush of the group took so long.
            Excluded: the same; the group has taken this member for dead, and it is joining again.
            Superseded: another process has started under this name.
            BrokerUnreachable: the first call takes an incarnation, or looks whether an old one still holds.
            EnvironmentProblem: the outbox can't be written.
        """
        self._sending.check_process()
        kept, checked, limit = (
            check_payload(payload, self._serializer),
            check_headers(headers),
            seconds("timeout", timeout),
        )
        if self._quiet.is_mine:
            raise UsageError("nobody may send in a flush, its requester neither: leave the `with` first.")
        forwarder = self._sending.forwarder or self._sending.start()
        if not self._is_connected and forwarder.participant.settings.closed:
            raise UsageError(
                f"group {self.group} is closed, and {self.address} is not a member: call connect() first. (`abcast "
                "publish` can't.)"
            )
        if order == TOTAL:
            return forwarder.broadcast(kept, checked, limit)
        if order not in ORDERS:
            raise UsageError(f"there is no order {order!r}: take one of {', '.join(ORDERS)}.")
        return forwarder.cast(order, kept, checked, limit)

    def broadcast_sync(self, payload: Any, headers: GivenHeaders = (), timeout: float | None = 30.0) -> int:
        """Broadcast in total order, and return the seqno when this member has delivered it: that is its sending.

        All that this member had sent or delivered before comes before it, everywhere; its next total and causal
        messages come after, and a fifo message may overtake it. (Its own `deliveries()` give the message as any other:
        it is delivered when they can.) `timeout`: seconds to wait for room, and again for the order. Raises as
        `broadcast` and `Receipt.result` do.
        """
        receipt = self.broadcast(payload, headers, timeout)
        seqno = receipt.result(timeout)
        forwarder = self._sending.forwarder
        if forwarder is not None and forwarder.hub is not None:
            forwarder.hub.wait_for_seqno(seqno, timeout)
        return seqno

    def send(
        self,
        address: str | Address,
        payload: Any,
        headers: GivenHeaders = (),
        timeout: float | None = 30.0,
    ) -> LetterReceipt:
        """Send a letter to one member of any site, such as a delivery's `sender`; returns as soon as it is numbered.

        Letters from one member to another arrive in the order of their sending, each once, also if the receiver does
        not run now; `receipt.result()` returns when the letter is durable in Kafka. No sequencer is needed, and they
        have no place in the total order. An outbox does not keep them. The first call takes an incarnation, as
        `broadcast` does (with an outbox that is continued, one of the letters' own). While as many letters wait for
        Kafka as the member's limits allow, it waits up to `timeout` seconds (None: as long as it takes).

        Raises:
            UsageError: a bad address, payload or header; the member is closed.
            TopicMissing: this Kafka has no inbox topic of the receiver's site.
            LetterTableFull: nothing was sent; try again later.
            Superseded: the outbox belongs to an incarnation that another process has superseded.
        """
        self._sending.check_process()
        if not isinstance(address, str | Address):
            raise UsageError(f"address is a text such as a delivery's sender, not {type(address).__name__}.")
        receiver = Address.parse(str(address), self._default_site)
        kept, checked, limit = (
            check_payload(payload, self._serializer),
            check_headers(headers),
            seconds("timeout", timeout),
        )
        letters = self._sending.letters or self._sending.start_letters()
        return letters.send(receiver, kept, checked, limit)

    def wait_ordered(self, timeout: float | None = None) -> int | None:
        """Wait until everything broadcast so far is ordered; the seqno of the last.

        None if there was nothing to wait for. What an outbox kept from an earlier run, and was not ordered before
        this start, counts too. Raises NotOrderedInTime (after `timeout` seconds; None: never), Superseded; Excluded if
        the group has taken this member for dead and some of it may be lost.
        """
        self._sending.check_process()
        return self._sending.wait_ordered(seconds("timeout", timeout))
