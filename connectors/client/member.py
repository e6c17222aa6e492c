"""The member: a process that broadcasts to its group and delivers what the group has ordered.

    with Member("orders", "nyc/alice", bootstrap_servers="127.0.0.1:9092") as alice:
        receipt = alice.broadcast(b"buy 100")
        seqno = receipt.result(timeout=10)
        for delivery in alice.deliveries():
            ...

Sending and delivering are independent: a member that only delivers takes no incarnation, one that only sends keeps no
position. A `Member` that has not called `connect` only sends and observes; it changes no view.
"""

from __future__ import annotations

import itertools
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar, overload
from weakref import WeakSet

from connectors.client.callbacks import Callback, Callbacks
from connectors.client.deliveries import Deliveries, Position
from connectors.client.delivery import Delivery
from connectors.client.entrance import Choice, Entrance
from connectors.client.inbox import Inbox
from connectors.client.letter import Letter, LetterReceipt
from connectors.client.lives import Lives, SendingLimits
from connectors.client.member_memory import MemberMemory
from connectors.client.message import GivenHeaders, check_message
from connectors.client.outbox import Outbox
from connectors.client.receipt import Receipt
from connectors.client.state_transfer import GetState, SetState, StateTransfer
from connectors.client.stream import Stream
from connectors.client.succession import Succession
from connectors.kafka.connection import DEFAULT_BOOTSTRAP_SERVERS, Connection
from ordering.errors import (
    AbcastError,
    Excluded,
    FlushFailed,
    NotOrderedInTime,
    NotWrittenInTime,
    Superseded,
    UsageError,
)
from ordering.events import Event, ViewChange
from ordering.names import DEFAULT_SITE, RESERVED_PREFIX, Address, check_group
from ordering.records import STATE, Headers

CLOSE_TIMEOUT_S = 10.0
T = TypeVar("T")


class Member:
    """One member of one group. Thread-safe, except that each `deliveries` and `inbox` is for one thread.

    Close it after use. A name belongs to one sending process at a time: a later one supersedes an earlier one.
    """

    def __init__(
        self,
        group: str,
        member: str,
        *,
        bootstrap_servers: str = DEFAULT_BOOTSTRAP_SERVERS,
        connection: Connection | None = None,
        connect_timeout: float = 10.0,
        default_site: str = DEFAULT_SITE,
        outbox: Path | str | None = None,
        ledger: Path | str | None = None,
        max_pending_records: int = 10_000,
        max_pending_bytes: int = 64 * 1024 * 1024,
        resend_after: float = 20.0,
        block: Callback | None = None,
        unblock: Callback | None = None,
        get_state: GetState | None = None,
        set_state: SetState | None = None,
    ) -> None:
        """Connect to the site's Kafka.

        Args:
            group: the group's name.
            member: `SITE/NAME`, or `NAME` for a member at `default_site`.
            bootstrap_servers: Kafka's `HOST:PORT`, several separated by commas.
            connection: in the place of `bootstrap_servers` and `connect_timeout`.
            connect_timeout: how long to wait for Kafka's first answer, in seconds.
            default_site: the site of a `member` given without one.
            outbox: a file that keeps what was broadcast until it is ordered. With it, a member killed at any moment
                and started again sends what is missing, exactly once. One file per member.
            ledger: the directory of the group's ledger, to deliver from what Kafka's retention has dropped.
            max_pending_records: how many messages may wait to be ordered; `broadcast` blocks at that limit. As many
                letters may wait to be written; `send` blocks at that limit.
            max_pending_bytes: the same in bytes of payloads and headers.
            resend_after: after so many seconds in which none of the waiting messages was ordered, all are sent
                again; each time in vain doubles it, up to 30 s.
            block: called, in a thread of the member's, when a flush begins: finish what you have to say. It may
                broadcast; when it returns, sending is blocked until the flush is over.
            unblock: called when the flush is over.
            get_state: returns the application's state, for a member that joins: what it has made of all messages that
                its `deliveries()` (without `from_seqno`) has given so far. Called there, by the application's thread,
                between two of them. Only for members that have the whole state: those of the group's first view, and
                those that connect with `state`, `from_ledger` or `from_seqno`.
            set_state: takes such a state, in `connect(state=True)`.

        Raises:
            UsageError: a bad name or option; the outbox is another member's or in use.
            BrokerUnreachable: no broker answered within `connect_timeout`.
            TopicMissing: the group's topics were not created at this site.
            Superseded: the outbox belongs to an incarnation that another process has superseded.
            EnvironmentProblem: the outbox can't be read.
        """
        for name, given in (("group", group), ("member", member)):
            if not isinstance(given, str):
                raise UsageError(f"{name} is a text, not {type(given).__name__}.")
        self.group = check_group(group)
        self.address = Address.parse(member, default_site)
        if self.address.name.startswith(RESERVED_PREFIX):
            raise UsageError(f"member {member!r} can't be used: a name that begins with {RESERVED_PREFIX} is reserved.")
        if connect_timeout <= 0:
            raise UsageError("connect_timeout must be greater than 0.")
        limits = SendingLimits(max_pending_records, max_pending_bytes, resend_after)
        limits.validate()
        self._default_site = default_site
        self.connection = connection or Connection(bootstrap_servers, connect_timeout)
        self.ledger = Path(ledger) if ledger is not None else None
        self._callbacks = Callbacks(str(self.address), block, unblock)
        self._lives = Lives(self.address, limits)
        self._sending = Succession(self.connection, self.group, self._lives, self._callbacks)
        self._transfer: StateTransfer | None = None
        if get_state is not None or set_state is not None:
            self._transfer = StateTransfer(
                self.connection, self.group, self.address, self._send_state_letter, get_state, set_state
            )
        self._entrance = Entrance(self.connection, self.group, self.address, self.ledger, self._transfer)
        self._connecting = threading.Lock()
        self._is_connected = False  # it is in the group, or was
        self._flushing = threading.Lock()
        self._flushing_thread: int | None = None
        self._streams: WeakSet[Stream[Any]] = WeakSet()
        if outbox is None:
            MemberMemory(self.connection, self.group, self.address).close()  # a wrong address shows now, not later
            return
        self._lives.outbox = Outbox(outbox, self.group, str(self.address))
        try:
            self._sending.start()
        except BaseException:
            self._lives.outbox.close()
            raise

    def __repr__(self) -> str:
        return f"<Member {self.address} of {self.group}{', closed' if self._sending.is_closed else ''}>"

    @property
    def incarnation(self) -> int | None:
        """This start's incarnation; None before the first broadcast."""
        forwarder = self._sending.forwarder
        return forwarder.incarnation if forwarder is not None else None

    @property
    def view(self) -> ViewChange | None:
        """The group's newest view, as far as this member's sending half knows; None before `connect`."""
        forwarder = self._sending.forwarder
        return forwarder.participant.known.view if forwarder is not None else None

    @property
    def remote_views(self) -> Mapping[str, tuple[str, ...]]:
        """In a mesh: the members at each neighbouring site, oldest first, as far as this member's sending half knows.

        None at a site that is unreachable, or has no members. Empty before `connect`, and for sites behind a neighbour.
        """
        forwarder = self._sending.forwarder
        remote = forwarder.participant.known.remote if forwarder is not None else {}
        return {site: view.members for site, view in remote.items()}

    @property
    def global_view(self) -> tuple[str, ...]:
        """The members of the own view, then those of the remote views, site by site in the order of their names."""
        own = self.view.members if self.view else ()
        return (*own, *itertools.chain.from_iterable(members for _, members in sorted(self.remote_views.items())))

    def connect(
        self,
        *,
        from_ledger: bool = False,
        state: bool = False,
        or_history: bool = False,
        from_seqno: int | None = None,
        timeout: float = 30.0,
    ) -> ViewChange:
        """Join the group; returns the first view with this member (of one that is connected already, the newest).

        `deliveries` then begins with that view; with `from_ledger`, with the group's first message; with `from_seqno`,
        there: for a replica that keeps its own state, and the seqno up to which that counts. `close` leaves the group.
        A member that the group has taken for dead (it was suspended, or cut off for too long) joins again by itself,
        as a new member.

        With `state`, the state of the application comes first: an older member supplies it (the oldest that answers),
        `set_state` gets it, and `deliveries` then gives the messages that it does not count. Who comes into a group
        without members has nobody to ask. If no message was ordered before, `set_state` is not called, and `deliveries`
        begins with the view. If there were some (after a total restart, say), `or_history` lets `deliveries` begin with
        the group's first message.

        Raises:
            UsageError: `state` without `set_state`, or of a member that is connected; two of `state`, `from_ledger` and
                `from_seqno`; it was closed.
            StateUnavailable: with `state` and without `or_history`: there were messages, and nobody has their state.
                It is a member all the same: call `connect` again, with another choice.
            NotOrderedInTime: there was no view within `timeout` seconds, or no state. Without its state it is a member
                all the same. Call `connect` again, or close it.
            BrokerUnreachable, Superseded, TopicMissing.
        """
        deadline = time.monotonic() + timeout
        choice = Choice(from_ledger, state, or_history, from_seqno)
        with self._connecting:
            self._entrance.check(choice)
            view = self.view
            session = self._sending.start_to_join()
            if self._entrance.is_ready and view is not None:
                return view
            if self._transfer is not None:
                self._transfer.start()
            view = session.join(timeout)
            self._is_connected = True
            self._entrance.enter(view, choice, lambda: self.view, max(0.0, deadline - time.monotonic()))
            return view

    @contextmanager
    def flush(self, timeout: float = 30.0) -> Iterator[None]:
        """A quiet point: inside the `with`, every member has called its `block`, and none of them sends.

        Everything they have sent before is ordered. (In an open group, who is not a member may send all the same.) The
        group ends the flush when it takes longer than its `flush_timeout_ms`. If that, or the exclusion of this
        member, ends the quiet point before the `with`, it raises at its end; not where the body has raised.

        Args:
            timeout: seconds to wait for the quiet point, and at its end for the group to go on.

        Raises:
            UsageError: the member is not connected; this is its `block` or `unblock`.
            FlushFailed: another flush runs, or a member was not quiet in time; nothing is blocked then. Or the quiet
                point was over before its end.
            Excluded: this member was taken for dead meanwhile.
            NotOrderedInTime: the end was not ordered within `timeout`.
        """
        session = self._sending.session
        if session is None or not self._is_connected:
            raise UsageError(f"{self.address} is not a member: call connect() first.")
        if self._callbacks.is_calling:
            raise UsageError("block() and unblock() can't call flush(): it would wait for them.")
        if not self._flushing.acquire(blocking=False):
            raise FlushFailed(f"a flush of {self.address} runs already.")
        try:
            session.start_flush(timeout)
            self._flushing_thread = threading.get_ident()
            try:
                yield
            except BaseException:
                session.give_up_flush()
                raise
            finally:
                self._flushing_thread = None
            session.stop_flush(timeout)
        finally:
            self._flushing.release()

    def broadcast(self, payload: bytes, headers: GivenHeaders = (), timeout: float | None = 30.0) -> Receipt:
        """Send a message to the group; returns as soon as it is in the forward table (and the outbox).

        The first call also takes an incarnation, which needs an answer from Kafka. Messages of one member are ordered
        as they were broadcast; of several threads, as they got hold of the member. While the forward table is full,
        it waits up to `timeout` seconds (None: as long as it takes).

        Raises:
            UsageError: the payload is no bytes object or over MAX_PAYLOAD_BYTES; a bad header; the member is closed;
                the group is closed, and the member did not `connect`.
            ForwardTableFull: nothing was sent; try again later.
            Blocked: the same, since a flush of the group took so long.
            Excluded: the same; the group has taken this member for dead, and it is joining again.
            Superseded: another process has started under this name.
            BrokerUnreachable: the first call takes an incarnation, or looks whether an old one still holds.
            EnvironmentProblem: the outbox can't be written.
        """
        checked = check_message(payload, headers)
        if self._flushing_thread == threading.get_ident():
            raise UsageError("nobody may send in a flush, its requester neither: leave the `with` first.")
        forwarder = self._sending.forwarder or self._sending.start()
        if not self._is_connected and forwarder.participant.settings.closed:
            raise UsageError(f"group {self.group} is closed, and {self.address} is not a member: call connect() first.")
        return forwarder.broadcast(payload, checked, timeout)

    def send(
        self,
        address: str | Address,
        payload: bytes,
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
        if not isinstance(address, str | Address):
            raise UsageError(f"address is a text such as a delivery's sender, not {type(address).__name__}.")
        receiver = Address.parse(str(address), self._default_site)
        checked = check_message(payload, headers)
        letters = self._sending.letters or self._sending.start_letters()
        return letters.send(receiver, payload, checked, timeout)

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
            HistoryUnavailable: the beginning of the inbox topic was dropped.
            PositionLost: Kafka has forgotten which letters this name has taken.
        """
        run = Inbox(self.connection, self.group, self.address, timeout, from_beginning=from_beginning)
        return self._stream(Stream(run))

    def _stream(self, stream: Stream[T]) -> Stream[T]:
        with self._sending.lock:
            self._sending.check_open()
            self._streams.add(stream)
        return stream

    def wait_ordered(self, timeout: float | None = None) -> int | None:
        """Wait until everything broadcast so far is ordered; the seqno of the last.

        None if there was nothing to wait for. What an outbox kept from an earlier run, and was not ordered before
        this start, counts too. Raises NotOrderedInTime (after `timeout` seconds; None: never), Superseded; Excluded if
        the group has taken this member for dead and some of it may be lost.
        """
        return self._sending.wait_ordered(timeout)

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
        if from_seqno is None and remember:
            raise UsageError("remember=True goes with from_seqno: without it, the position is remembered anyway.")
        if from_seqno is not None:
            position = Position.ANEW if remember else Position.BESIDE
            run = Deliveries(
                *(self.connection, self.group, self.address, from_seqno, timeout, self.ledger),
                events=events,
                position=position,
            )
        else:
            run = self._entrance.deliveries(timeout, events=events)
        return self._stream(Stream(run))

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait up to `timeout` seconds until all letters are written and all broadcasts ordered, end all deliveries and
        inboxes, disconnect.

        Raises (after it has closed) NotWrittenInTime if a letter was not written and, without an outbox,
        NotOrderedInTime if something was not ordered: nobody will send it again. With an outbox the next start sends
        its broadcasts. Superseded, unless that was raised before. May be called twice.
        """
        deadline = time.monotonic() + timeout
        sending = self._sending
        sending.settle(timeout)
        with sending.lock:
            if sending.is_closed:
                return
            sending.is_closed = True
            streams = list(self._streams)
        for stream in streams:
            stream.stop()
        if self._transfer is not None:
            self._transfer.close()
        was_told = sending.was_told
        not_written: NotWrittenInTime | None = None
        not_ordered: NotOrderedInTime | None = None
        try:
            try:
                if sending.letters is not None:
                    sending.letters.wait_written(max(0.0, deadline - time.monotonic()))
            except NotWrittenInTime as error:
                not_written = error
            sending.wait_ordered(max(0.0, deadline - time.monotonic()))
            sending.leave(max(0.0, deadline - time.monotonic()))
        except NotOrderedInTime as error:
            not_ordered = error
        except Excluded as error:
            not_ordered = NotOrderedInTime(str(error))
        except Superseded:
            if not was_told:
                raise
        finally:
            self._disconnect(streams)
        if not_written is not None:
            raise not_written
        if not_ordered is not None and self._lives.outbox is None:
            raise not_ordered

    def _send_state_letter(self, receiver: Address, payload: bytes, headers: Headers) -> LetterReceipt:
        return (self._sending.letters or self._sending.start_letters()).send(receiver, payload, headers, 30.0, STATE)

    def _disconnect(self, streams: Sequence[Stream[object]]) -> None:
        self._sending.close()
        self._callbacks.close()
        if self._lives.outbox is not None:
            self._lives.outbox.close()
        for stream in streams:
            stream.end(self.connection.timeout)

    def __enter__(self) -> Member:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close. After an exception, without waiting: a warning tells of what was not ordered."""
        if kind is None:
            self.close()
            return
        try:
            self.close(timeout=0)
        except AbcastError as second:
            warnings.warn(str(second), ResourceWarning, stacklevel=2)
