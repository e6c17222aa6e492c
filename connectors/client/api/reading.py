"""The reading half of a member: the group's messages, and the member's letters. It takes no incarnation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload
from weakref import WeakSet

from connectors.client.deliveries.cut import Cut
from connectors.client.deliveries.deliveries import Deliveries, PositionUse
from connectors.client.deliveries.merged_deliveries import MergedDeliveries, MergedSource
from connectors.client.incarnation.rejoin import Rejoin
from connectors.client.letters.inbox import Inbox
from connectors.client.state.start_position import StartPosition
from connectors.client.state.state_transfer import StateTransfer
from connectors.client.values.arguments import number, silence, switch
from connectors.client.values.delivery import Delivery, Deserializer
from connectors.client.values.letter import Letter
from connectors.client.values.stream import Stream
from connectors.kafka.connection.connection import Connection
from connectors.storage.location import Location
from ordering.base.errors import UsageError
from ordering.base.names import Address
from ordering.participant.events import Event

T = TypeVar("T")


class ReadingHalf:
    """What `Member` has to read. Thread-safe, except that each `deliveries` and `inbox` is for one thread."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        address: Address,
        ledger: Location | None,
        transfer: StateTransfer | None,
        sending: Rejoin,
        deserializer: Deserializer | None = None,
    ) -> None:
        self.connection = connection
        self.group = group
        self.address = address
        self.ledger = ledger
        self._sending = sending
        self._deserializer = deserializer
        self._entrance = StartPosition(connection, group, address, ledger, transfer)
        if sending.has_casts:
            self._entrance.sources = self._source
            self._entrance.hub = lambda: sending.hub
        self._streams: WeakSet[Stream[Any]] = WeakSet()

    @overload
    def deliveries(
        self,
        from_seqno: int | None = None,
        timeout: float | None = None,
        *,
        events: Literal[False] = False,
        remember: bool = False,
    ) -> Stream[Delivery]: ...

    @overload
    def deliveries(
        self,
        from_seqno: int | None = None,
        timeout: float | None = None,
        *,
        events: Literal[True],
        remember: bool = False,
    ) -> Stream[Delivery | Event]: ...

    def deliveries(
        self,
        from_seqno: int | None = None,
        timeout: float | None = None,
        *,
        events: bool = False,
        remember: bool = False,
    ) -> Stream[Any]:
        """The group's messages in the total order, as they come. An iterator, for one thread.

        Of a member with `casts`, also those in fifo and causal order, each as soon as all is there that comes before
        it. What a start begins with, docs/orders.md says.

        A message counts as taken when the next one is asked for, or when the iterator's `taken()` is called. What is in
        hand when the loop ends otherwise (an exception, a `break`, `close`) is given again by the next one.
        What was taken is remembered in Kafka under the member's name twice a second and at the end. So after kill -9
        an application may see the last half second's messages again: their seqnos tell. One iterator at a time
        should go on from the remembered position; those with `from_seqno` may run beside it, and do not move it.

        Args:
            from_seqno: start at this seqno exactly (which may be still to come). Default: after the last message
                that this member's name took, or at the group's first.
            timeout: end after so many seconds without a message (None: never; `close` ends it). What stood there
                before the start is given in any case.
            events: among the messages, in their place in the order, also `ViewChange`, `Block` and `Unblock`, and
                in a mesh `RemoteView`.
            remember: with `from_seqno`, make this the member's position, which moves with it from here on.

        Raises (when iterated):
            BrokerUnreachable: no broker answers at the start. Later, it waits until one does.
            HistoryUnavailable: Kafka's retention has dropped what comes next, and the ledger was not given or has
                it not.
            PositionLost: Kafka has forgotten how far this name was.
        """
        timeout, events, remember = silence("timeout", timeout), switch("events", events), switch("remember", remember)
        if from_seqno is None and remember:
            raise UsageError("remember=True goes with from_seqno: without it, the position is remembered anyway.")
        self._sending.check_process()
        if from_seqno is not None and self._sending.has_casts:
            position = PositionUse.ANEW if remember else PositionUse.BESIDE
            run: Deliveries = MergedDeliveries(
                *(self._source(False), number("from_seqno", from_seqno), timeout, self.ledger),
                is_shared=False,
                events=events,
                position=position,
            )
        elif from_seqno is not None:
            position = PositionUse.ANEW if remember else PositionUse.BESIDE
            run = Deliveries(
                *(self.connection, self.group, self.address, number("from_seqno", from_seqno), timeout, self.ledger),
                events=events,
                position=position,
            )
        else:
            run = self._entrance.deliveries(timeout, events=events)
        return self._stream(Stream(run, self._deserializer))

    def _source(self, with_view: bool, cut: Cut | None = None) -> MergedSource:
        """What is delivered in all orders; from a cut on, or from the first view of the life in hand."""
        forwarder = self._sending.forwarder
        hub = forwarder.hub if forwarder is not None else None
        life = forwarder.participant.life if forwarder is not None and with_view else None
        return MergedSource(self.connection, self.group, self.address, hub, life, cut)

    def inbox(self, timeout: float | None = None, *, from_beginning: bool = False) -> Stream[Letter]:
        """The letters to this member, each sender's in order, as they come. An iterator, for one thread.

        It goes on after the last letter that this member's name took; *taken* means what it does in `deliveries`, so
        after kill -9 an application may see the last half second's letters again: their (sender, incarnation,
        local_seqno) tell. One iterator at a time. A start reads the inbox's partition from its beginning.

        Args:
            timeout: end after so many seconds without a letter (None: never; `close` ends it). What stood there
                before the start is given in any case.
            from_beginning: give all letters again, and remember from there.

        Raises (when iterated):
            BrokerUnreachable: no broker answers at the start. Later, it waits until one does.
            TopicMissing: the site has no inbox topic.
            HistoryChanged: the inbox topic was made anew, or has lost its end.
            HistoryUnavailable: the beginning of the inbox topic was dropped.
            PositionLost: Kafka has forgotten which letters this name has taken.
        """
        limit, anew = silence("timeout", timeout), switch("from_beginning", from_beginning)
        run = Inbox(self.connection, self.group, self.address, limit, from_beginning=anew)
        return self._stream(Stream(run, self._deserializer))

    def _stream(self, stream: Stream[T]) -> Stream[T]:
        self._sending.check_process()
        with self._sending.lock:
            self._sending.check_open()
            self._streams.add(stream)
        return stream

    def _stop_streams(self) -> Callable[[], None]:
        """Let all iterators end; returns what waits until they have."""
        streams = list(self._streams)
        for stream in streams:
            stream.stop()

        def wait() -> None:
            for stream in streams:
                stream.end(self.connection.timeout)
            self._entrance.close()

        return wait
