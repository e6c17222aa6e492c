"""The sending half of a member: messages in each order, and letters. The first one sent takes an incarnation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, overload

from connectors.client.incarnation.forwarder import Forwarder
from connectors.client.incarnation.quiet_points import QuietPoints
from connectors.client.incarnation.sender import Sender
from connectors.client.values.arguments import seconds
from connectors.client.values.cast_receipt import CastReceipt
from connectors.client.values.letter import LetterReceipt
from connectors.client.values.message import GivenHeaders, Serializer, check_headers, check_payload, check_payloads
from connectors.client.values.receipt import Receipt
from connectors.tracing import sending
from ordering.base.errors import UsageError
from ordering.base.names import Address
from ordering.base.records import Headers
from ordering.casts.casts import ORDERS, TOTAL


class SendingHalf:
    """The sending half of `Member`. Thread-safe."""

    group: str
    address: Address

    def __init__(self, sending: Sender, quiet: QuietPoints, default_site: str, serializer: Serializer | None) -> None:
        self._sending = sending
        self._quiet = quiet
        self._default_site = default_site
        self._serializer = serializer
        self._max_bytes = sending.limits.max_pending_bytes
        self._is_connected = False  # whether `connect` has joined the group

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
        """Send a message to the group; return its receipt at once, when it is in the forward table (and the outbox).

        `receipt.result()` returns the seqno when the message is ordered. One member's messages are ordered as they were
        broadcast. Calls from several threads are ordered as they enter the member. The first call also takes an
        incarnation, which needs an answer from Kafka.

        Args:
            payload: bytes, a bytearray or a memoryview, at most MAX_PAYLOAD_BYTES; with a `serializer`, anything that
                it takes.
            headers: `(str, bytes)` pairs, or a dict of them.
            timeout: seconds to wait while the forward table is full, or a flush runs (None: as long as it takes).
            order: `total` goes through the sequencer. `fifo` and `causal` go straight to the members, and need a
                member with `casts`. Both keep their sender's order. A `causal` message also comes after everything that
                the sender had delivered, and needs a view of a group with flush. Receipts of both are resolved when the
                message is written; until then, an outbox keeps it.

        Raises:
            UsageError: the payload is not bytes or too long; a header is bad; the member is closed; the group is
                closed, and the member did not `connect`; the call is inside the `with` of this member's `flush`; the
                order is unknown, or can't be kept (no `casts`; `causal` without such a view).
            ForwardTableFull: there was no room within `timeout`. Nothing was sent; try again later.
            Blocked: a flush of the group took longer than `timeout`; in fifo or causal order also: the view that the
                message has to wait for did not come. Nothing was sent; try again later.
            Excluded: the group has taken this member for dead, and it is joining again. Nothing was sent.
            Superseded: another process has started under this name.
            BrokerUnreachable: no broker answers while the call takes an incarnation, or checks an old one.
            EnvironmentProblem: the outbox can't be written.
        """
        self._sending.check_process()
        kept, checked, limit = (
            check_payload(payload, self._serializer),
            check_headers(headers),
            seconds("timeout", timeout),
        )
        if order not in ORDERS:
            raise UsageError(f"there is no order {order!r}: take one of {', '.join(ORDERS)}.")
        span = sending(self.group, self.address, (kept,), checked, self._max_bytes)
        if span is None:
            return self._broadcast(order, kept, checked, limit)
        with span:
            receipt = self._broadcast(order, kept, span.headers, limit)
            if isinstance(receipt, Receipt):
                span.accepted(receipt.message_id)
            return receipt

    def broadcast_many(
        self, payloads: Iterable[Any], headers: GivenHeaders = (), timeout: float | None = 30.0
    ) -> Receipt:
        """Send messages to the group in total order, as one call; return one receipt for all of them.

        All messages are accepted, or none. With an outbox they enter it in one step. So a member that is killed then
        sends all of them later, or none. This costs less for each message than `broadcast`, and least in a group of
        format 3: there a member sends packs.

        The messages are ordered as they are given, behind what this member has broadcast before. Messages of other
        members may come between them, and a view. `receipt.result()` returns the seqno of the
        last one, when all are ordered. Their local seqnos are consecutive; `receipt.message_id` is that of the last. If
        the receipt has an error, some of the first messages may be ordered.

        Args:
            payloads: one or more, each as for `broadcast`; as many as the member's `max_pending_records` and
                `max_pending_bytes` allow. They wait until there is room for all: a tenth of that is quicker.
            headers: as for `broadcast`, for each of the messages.
            timeout: seconds to wait while the forward table lacks room for all, or a flush runs (None: as long as it
                takes).

        Raises as `broadcast` does; UsageError also if there is no payload, or more than the limits allow.
        """
        self._sending.check_process()
        kept, checked, limit = (
            check_payloads(payloads, self._serializer),
            check_headers(headers),
            seconds("timeout", timeout),
        )
        span = sending(self.group, self.address, kept, checked, self._max_bytes)
        if span is None:
            return self._may_broadcast().broadcast(kept, checked, limit)
        with span:
            many = self._may_broadcast().broadcast(kept, span.headers, limit)
            span.accepted(many.message_id)
            return many

    def _broadcast(self, order: str, payload: bytes, headers: Headers, timeout: float | None) -> Receipt | CastReceipt:
        forwarder = self._may_broadcast()
        if order == TOTAL:
            return forwarder.broadcast((payload,), headers, timeout)
        return forwarder.cast(order, payload, headers, timeout)

    def _may_broadcast(self) -> Forwarder:
        """Return the forwarder, if the member may broadcast now. Raises UsageError."""
        if self._quiet.is_mine:
            raise UsageError(
                "no member may send in a flush, not even the one that asked for it: leave the `with` first."
            )
        forwarder = self._sending.forwarder or self._sending.start()
        if not self._is_connected and forwarder.participant.settings.closed:
            raise UsageError(
                f"group {self.group} is closed, and {self.address} is not a member: call connect() first. (`abcast "
                "publish` can't.)"
            )
        return forwarder

    def broadcast_sync(self, payload: Any, headers: GivenHeaders = (), timeout: float | None = 30.0) -> int:
        """Send a message in total order; return its seqno once this member has delivered it.

        At every member it comes after everything that this member had sent or delivered before, and before its next
        total and causal messages; a fifo message may overtake it. (`deliveries()` returns it like any other: delivered
        means that an iterator could return it.) `timeout` is in seconds, for each wait: for room in the forward table,
        for the order, and with `casts` for the delivery. Raises as `broadcast` and `Receipt.result` do; also
        NotOrderedInTime if the message is ordered, but was not delivered in time.
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
        """Send a letter to one member, and no other; return its receipt at once, when the letter has its number.

        Letters from one member to another arrive in the order of their sending, each once, even if the receiver does
        not run now. They need no sequencer, and have no place in the total order. `receipt.result()` returns when the
        letter is durable in Kafka. No outbox keeps letters: a kill may lose those without a result. The first call
        takes an incarnation, as `broadcast` does (letters have one of their own if the member continues an outbox).

        Args:
            address: the receiver, `SITE/NAME` (or `NAME` at the default site), such as a delivery's `sender`.
            payload: as for `broadcast`.
            headers: as for `broadcast`.
            timeout: seconds to wait while as many letters wait for Kafka as the member's limits allow (None: as long
                as it takes).

        Raises:
            UsageError: the address, the payload or a header is bad; the member is closed.
            TopicMissing: this Kafka has no inbox topic of the receiver's site.
            LetterTableFull: there was no room within `timeout`. Nothing was sent; try again later.
            Superseded: another process has sent under this name while the call takes an incarnation.
            BrokerUnreachable: no broker answers while the call takes an incarnation, or looks up the inbox of a site.
            KafkaRefused: the user lacks a right.
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
        """Wait until all messages broadcast in total order so far are ordered.

        Return the seqno of the last record of this member in the order, a JOIN included; None if its incarnation has
        none. Messages that an outbox kept from an earlier run count, too, if they were not ordered before this start.
        `timeout` is in seconds (None: as long as it takes).

        Raises:
            NotOrderedInTime: some were not ordered within `timeout`.
            Excluded: the group has taken this member for dead, and some may be lost.
            Superseded: another process has started under this name.
        """
        self._sending.check_process()
        return self._sending.wait_ordered(seconds("timeout", timeout))
