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

import contextlib
import itertools
import logging
import threading
import time
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from connectors.client.api.reading import ReadingHalf
from connectors.client.api.sending import SendingHalf
from connectors.client.incarnation.callbacks import Callback, Callbacks
from connectors.client.incarnation.incarnations import Incarnations
from connectors.client.incarnation.quiet_points import QuietPoints
from connectors.client.incarnation.rejoin import Rejoin
from connectors.client.memory.ledger_reader import check_can_read_a_ledger
from connectors.client.memory.member_memory import MemberMemory
from connectors.client.memory.outbox import Outbox
from connectors.client.state.start_position import Choice
from connectors.client.state.state_transfer import GetState, SetState, StateTransfer
from connectors.client.tail.sharing import share
from connectors.client.values.arguments import function, location, number, path, positive_seconds, seconds, switch, text
from connectors.client.values.delivery import Deserializer
from connectors.client.values.message import Serializer
from connectors.client.values.sending_limits import SendingLimits
from connectors.kafka.connection.client_configuration import ClientConfiguration
from connectors.kafka.connection.connection import Connection
from connectors.kafka.login.configuration import configured
from connectors.storage.location import Location
from ordering.base.errors import AbcastError, UsageError
from ordering.base.names import DEFAULT_SITE, RESERVED_PREFIX, Address, check_group, check_site
from ordering.participant.events import ViewChange

CLOSE_TIMEOUT_S = 10.0
_logger = logging.getLogger(__name__)


class Member(SendingHalf, ReadingHalf):
    """One member of one group. Thread-safe, except that each `deliveries` and `inbox` is for one thread.

    Close it after use. A name belongs to one sending process at a time: a later one supersedes an earlier one.
    """

    def __init__(
        self,
        group: str,
        member: str,
        *,
        bootstrap_servers: str | None = None,
        connection: Connection | None = None,
        connect_timeout: float = 10.0,
        default_site: str | None = None,
        outbox: Path | str | None = None,
        ledger: Location | str | None = None,
        max_pending_records: int = 10_000,
        max_pending_bytes: int = 64 * 1024 * 1024,
        resend_after_s: float = 20.0,
        block: Callback | None = None,
        unblock: Callback | None = None,
        get_state: GetState | None = None,
        set_state: SetState | None = None,
        serializer: Serializer | None = None,
        deserializer: Deserializer | None = None,
        casts: bool = False,
    ) -> None:
        """Connect to the site's Kafka.

        Args:
            group: the group's name.
            member: `SITE/NAME`, or `NAME` for a member at `default_site`.
            bootstrap_servers: Kafka's `HOST:PORT`, several separated by commas. Default: the variable
                ABCAST_BOOTSTRAP_SERVERS, else `bootstrap_servers` in ./abcast.toml, else 127.0.0.1:9092.
            connection: in the place of `bootstrap_servers` and `connect_timeout`. Without it, variables ABCAST_KAFKA_*
                and the table `[kafka]` of ./abcast.toml say how to log in.
            connect_timeout: how long to wait for Kafka's first answer, in seconds.
            default_site: the site of a `member` given without one. Default: the variable ABCAST_SITE, else `site` in
                ./abcast.toml, else `local`.
            outbox: a file that keeps what was broadcast until it is ordered. With it, a member killed at any moment
                and started again sends what is missing, exactly once. One file per member.
            ledger: the directory or URL of the group's ledger, to deliver from what Kafka's retention has dropped. It
                needs what `pip install 'abcast[jobs]'` brings.
            max_pending_records: how many messages may wait to be ordered; `broadcast` blocks at that limit. As many
                letters may wait to be written; `send` blocks at that limit.
            max_pending_bytes: the same in bytes of payloads and headers.
            resend_after_s: after so many seconds in which none of the waiting messages was ordered, all are sent
                again; each time in vain doubles it, up to 30 s.
            block: called, in a thread of the member's, when a flush begins: finish what you have to say. It may
                broadcast; when it returns, sending is blocked until the flush is over.
            unblock: called when the flush is over.
            get_state: returns the application's state, for a member that joins: what it has made of all messages that
                its `deliveries()` (without `from_seqno`) has given so far. Called there, by the application's thread,
                between two of them. Only for members that have the whole state: those of the group's first view, and
                those that connect with `state`, `from_ledger` or `from_seqno`.
            set_state: takes such a state, in `connect(state=True)`.
            serializer: makes the bytes of whatever `broadcast` and `send` are given.
            deserializer: makes the `value` of a delivery or a letter from its payload, when that is asked for.
            casts: take part in fifo and causal order, too: `broadcast` sends them, `deliveries` gives them.

        Raises:
            UsageError: a bad name or option; the outbox is another member's or in use.
            BrokerUnreachable: no broker answered within `connect_timeout`.
            TopicMissing: the group's topics were not created at this site.
            Superseded: the outbox belongs to an incarnation that another process has superseded.
            EnvironmentProblem: the outbox can't be read.
        """
        group = check_group(text("group", group))
        site = check_site(
            configured("site", DEFAULT_SITE) if default_site is None else text("default_site", default_site)
        )
        address = Address.parse(text("member", member), check_site(site))
        if address.name.startswith(RESERVED_PREFIX):
            raise UsageError(f"member {member!r} can't be used: a name that begins with {RESERVED_PREFIX} is reserved.")
        ledger_directory, outbox_file = location("ledger", ledger), path("outbox", outbox)
        if ledger_directory is not None:
            check_can_read_a_ledger()
        for name, call in (("block", block), ("unblock", unblock), ("get_state", get_state), ("set_state", set_state)):
            function(name, call)
        function("serializer", serializer)
        function("deserializer", deserializer)
        connection = _connection(connection, bootstrap_servers, connect_timeout).named(f"abcast-{address}")
        limits = SendingLimits(max_pending_records, max_pending_bytes, resend_after_s)
        limits.validate()
        self._callbacks = Callbacks(str(address), block, unblock)
        self._lives = Incarnations(address, limits, casts=switch("casts", casts))
        sending = Rejoin(connection, group, self._lives, self._callbacks)
        self._transfer: StateTransfer | None = None
        if get_state is not None or set_state is not None:
            give_and_take = get_state, set_state
            self._transfer = StateTransfer(
                *(connection, group, address, sending.send_state, *give_and_take),
                lambda: sending.known.view,
                casts=self._lives.casts,
            )
        ReadingHalf.__init__(self, connection, group, address, ledger_directory, self._transfer, sending, deserializer)
        SendingHalf.__init__(self, sending, QuietPoints(address, self._callbacks), site, serializer)
        self._connecting = threading.Lock()
        self._shared = share(connection)  # so that it stays open as long as the member
        try:
            if outbox_file is None:
                MemberMemory(connection, group, address).close()  # a wrong address shows now, not later
            else:
                self._lives.outbox = Outbox(outbox_file, group, str(address))
                self._sending.start()
        except BaseException:
            if self._lives.outbox is not None:
                self._lives.outbox.close()
            self._shared.release()
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
        return self._sending.known.view

    @property
    def remote_views(self) -> Mapping[str, tuple[str, ...]]:
        """In a mesh: the members at each neighbouring site, oldest first, as far as this member's sending half knows.

        None at a site that is unreachable, or has no members. Empty before `connect`, and for sites behind a neighbour.
        """
        return {site: view.members for site, view in self._sending.known.remote.items()}

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
        self._sending.check_process()
        timeout = seconds("timeout", timeout)
        deadline = time.monotonic() + timeout
        choice = Choice(
            switch("from_ledger", from_ledger),
            switch("state", state),
            switch("or_history", or_history),
            None if from_seqno is None else number("from_seqno", from_seqno),
        )
        with self._connecting:
            self._entrance.check(choice)
            view = self.view
            self._sending.start().check()
            if self._entrance.is_ready and view is not None:
                return view
            if self._transfer is not None:
                self._transfer.start()
            view = self._sending.join(timeout)
            self._is_connected = True
            self._entrance.enter(view, choice, lambda: self.view, max(0.0, deadline - time.monotonic()))
            return view

    def flush(self, timeout: float = 30.0) -> AbstractContextManager[None]:
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
        self._sending.check_process()
        limit = seconds("timeout", timeout)
        return self._quiet.point(self._sending.session if self._is_connected else None, limit)

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait up to `timeout` seconds until all letters are written and all broadcasts ordered, end all deliveries and
        inboxes, disconnect.

        Raises (after it has closed) NotWrittenInTime if a letter was not written and, without an outbox,
        NotOrderedInTime if something was not ordered: nobody will send it again. With an outbox the next start sends
        its broadcasts. Superseded, unless that was raised before. May be called twice. In a fork of the process that
        opened it, it does nothing but say so.
        """
        if self._sending.is_forked:
            _logger.warning("%s stays open: another process opened it, of which this one is a fork", self.address)
            return
        timeout = seconds("timeout", timeout)
        deadline = time.monotonic() + timeout
        if not self._sending.shut(timeout):
            return
        with contextlib.ExitStack() as closing:  # each, also if Ctrl-C ends one of them; the last one first
            closing.callback(self._shared.release)
            closing.callback(self._stop_streams())
            closing.callback(lambda: self._sending.finish(max(0.0, deadline - time.monotonic())))
            if self._transfer is not None:
                self._transfer.close()

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


def _connection(connection: Connection | None, bootstrap_servers: str | None, timeout: float) -> Connection:
    """What the arguments of `Member` name. Raises UsageError."""
    timeout = positive_seconds("connect_timeout", timeout)
    if connection is None:
        servers = None if bootstrap_servers is None else text("bootstrap_servers", bootstrap_servers)
        return ClientConfiguration(servers).connection(timeout)
    if bootstrap_servers is not None:
        raise UsageError("take connection= or bootstrap_servers=, not both: each says where Kafka is.")
    if not isinstance(connection, Connection):
        raise UsageError(f"connection is a Connection, not {type(connection).__name__}.")
    return connection
