"""The reading half of a member: the group's messages, and the member's letters. It takes no incarnation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload
from weakref import WeakSet

from connectors.client.deliveries.cut import Cut
from connectors.client.deliveries.deliveries import Deliveries, PositionUse
from connectors.client.deliveries.in_arrow import ArrowStream, checked
from connectors.client.deliveries.merged_deliveries import MergedDeliveries, MergedSource
from connectors.client.incarnation.sender import Sender
from connectors.client.letters.inbox import Inbox
from connectors.client.state.start_position import StartPosition
from connectors.client.state.state_transfer import StateTransfer
from connectors.client.values.arguments import number, silence, switch
from connectors.client.values.delivery import Delivery, Deserializer
from connectors.client.values.letter import Letter
from connectors.client.values.stream import Stream
from connectors.kafka.connection.connection import Connection
from connectors.storage.location import Location
from connectors.tracing import delivering
from ordering.base.errors import UsageError
from ordering.base.names import Address
from ordering.participant.events import Event

S = TypeVar("S", bound=Stream[Any])


class ReadingHalf:
    """The reading half of `Member`. Thread-safe, except that each iterator is for one thread."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        address: Address,
        ledger: Location | None,
        transfer: StateTransfer | None,
        sending: Sender,
        deserializer: Deserializer | None = None,
    ) -> None:
        self.connection = connection
        self.group = group
        self.address = address
        self.ledger = ledger
        self._sending = sending
        self._deserializer = deserializer
        self._start_position = StartPosition(connection, group, address, ledger, transfer)
        if sending.has_casts:
            self._start_position.sources = self._source
            self._start_position.hub = lambda: sending.hub
        self._streams: WeakSet[Stream[Any]] = WeakSet()
        self._newest_run: Deliveries | None = None

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
        """Return an iterator over the group's messages in total order, as they come; for one thread.

        With `casts`, it also returns those in fifo and causal order, each behind everything that it depends on.
        docs/orders.md says with which of them a new iterator begins.

        A message is *taken* when the next one is asked for, or when the iterator's `taken()` is called. If the loop
        ends otherwise (an exception, a `break`, `close`), the next iterator returns the last message again. Kafka keeps
        the position of the last taken message under the member's name. It is saved twice a second and at the end. So
        after a kill -9 an application may see the messages of the last half second again; it knows them by their
        seqnos. Use one iterator at a time that goes on from the saved position. Iterators with `from_seqno` may run
        beside it, and do not move it.

        Args:
            from_seqno: start at exactly this seqno, 1 or more; it may be in the future. Default: behind the last
                message taken under this member's name, or at the group's first; after `connect`, as described there.
            timeout: end after this many seconds without a message (None: never; `close` ends the iterator). All
                messages that are there at the start are returned first.
            events: return `ViewChange`, `Block` and `Unblock` in their places among the messages, too, and in a mesh
                `RemoteView`.
            remember: with `from_seqno`, make this iterator the one that moves the member's saved position.

        Raises UsageError if an argument is bad or the member is closed. Raises (when iterated):
            BrokerUnreachable: no broker answers at the start. Later, the iterator waits until one does.
            HistoryUnavailable: Kafka's retention has dropped the next message, and no ledger was given, or it lacks
                the message. A member with casts reads none.
            PositionLost: Kafka has lost the saved position of this name.
            CastMissing: with `casts`, a message depends on a cast that does not exist.
            ProtocolViolation: DATA was made anew or has lost its end (HistoryChanged while the iterator runs), or has
                a format of a later version (LaterVersion).
        """
        run = self._run(from_seqno, timeout, switch("events", events), switch("remember", remember))
        return self._stream(Stream(run, self._deserializer, delivering(self.group, self.address)))

    def deliveries_arrow(
        self,
        from_seqno: int | None = None,
        timeout: float | None = None,
        *,
        remember: bool = False,
        most: int = 10_000,
        wait_s: float | None = 0.0,
    ) -> ArrowStream:
        """Return an iterator over the messages of `deliveries` as `pyarrow.RecordBatch`es; for one thread.

        A row is a message. The columns have the names and types of the ledger's table: `seqno`, `sender`,
        `incarnation`, `local_seqno`, `payload`, `headers`, `view_id`, `epoch`, `forwarded_at`, `sequenced_at`; and
        `order`, the message's. `Delivery` has their meaning; a time that it has as 0 is null.

        A batch is to this iterator as a list is to `deliveries().batches(most, wait_s)`: it has 1 to `most` messages,
        comes as soon, and is taken as a whole. It also ends at 64 MiB of payloads and headers, or with the read that
        passes them. Packs cost a fraction of the time for each message that they cost as objects.

        `from_seqno`, `timeout` and `remember` mean the same as for `deliveries`. Raises as `deliveries` and `batches`
        do; UsageError if pyarrow is not installed (`pip install 'abcast[arrow]'`).
        """
        size = checked(most, wait_s)  # before the run, which the next one would continue
        run = self._run(from_seqno, timeout, False, switch("remember", remember))
        return self._stream(ArrowStream(run, delivering(self.group, self.address), size))

    def _run(self, from_seqno: int | None, timeout: float | None, events: bool, remember: bool) -> Deliveries:
        timeout = silence("timeout", timeout)
        if from_seqno is None and remember:
            raise UsageError("remember=True goes with from_seqno: without it, the position is remembered anyway.")
        self._sending.check_process()
        if from_seqno is None:
            self._newest_run = self._start_position.deliveries(timeout, events=events)
            return self._newest_run
        first, position = number("from_seqno", from_seqno), PositionUse.ANEW if remember else PositionUse.BESIDE
        run: Deliveries
        if self._sending.has_casts:
            source = self._source(False)
            run = MergedDeliveries(source, first, timeout, is_shared=False, events=events, position=position)
        else:
            place = self.connection, self.group, self.address
            run = Deliveries(*place, first, timeout, self.ledger, events=events, position=position)
        self._newest_run = run
        return run

    def _source(self, with_view: bool, cut: Cut | None = None) -> MergedSource:
        """Return a source of deliveries in all orders.

        It begins at `cut`; without one, at the incarnation's first view if `with_view`, else at the run's first seqno.
        """
        forwarder = self._sending.forwarder
        hub = forwarder.hub if forwarder is not None else None
        incarnation = forwarder.participant.member if forwarder is not None and with_view else None
        return MergedSource(self.connection, self.group, self.address, hub, incarnation, cut)

    def inbox(self, timeout: float | None = None, *, from_beginning: bool = False) -> Stream[Letter]:
        """Return an iterator over the letters to this member, each sender's in order, as they come; for one thread.

        It begins behind the last letter taken under this member's name. *Taken* means the same as in `deliveries`: so
        after a kill -9 an application may see the letters of the last half second again, and knows them by
        `(sender, incarnation, local_seqno)`. Use one iterator at a time. Its start reads the inbox's partition from the
        beginning.

        Args:
            timeout: end after this many seconds without a letter (None: never; `close` ends the iterator). All
                letters that are there at the start are returned first.
            from_beginning: return all letters that are left again, and set the saved position back to the beginning.

        Raises UsageError if an argument is bad or the member is closed. Raises (when iterated):
            BrokerUnreachable: no broker answers at the start. Later, the iterator waits until one does.
            TopicMissing: the site has no inbox topic.
            HistoryChanged: the inbox topic was made anew, or has lost its end.
            HistoryUnavailable: letters were deleted before this name took them (by `abcast maintain`, or by retention).
            PositionLost: Kafka has lost the position up to which this name has taken its letters.
        """
        limit, anew = silence("timeout", timeout), switch("from_beginning", from_beginning)
        run = Inbox(self.connection, self.group, self.address, limit, from_beginning=anew)
        return self._stream(Stream(run, self._deserializer))

    def _stream(self, stream: S) -> S:
        self._sending.check_process()
        with self._sending.lock:
            self._sending.check_open()
            self._streams.add(stream)
        return stream

    def _stop_streams(self) -> Callable[[], None]:
        """Tell all iterators to end; return a function that closes them, and waits for those in use by a thread."""
        streams = list(self._streams)
        for stream in streams:
            stream.stop()

        def wait() -> None:
            for stream in streams:
                stream.end(self.connection.timeout)
            self._start_position.close()

        return wait
