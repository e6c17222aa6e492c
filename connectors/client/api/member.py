"""The member: a process that broadcasts to its group and delivers what the group has ordered.

    with Member("orders", "nyc/alice", bootstrap_servers="127.0.0.1:9092") as alice:
        receipt = alice.broadcast(b"buy 100")
        seqno = receipt.result(timeout=10)
        for delivery in alice.deliveries():
            ...

Sending and delivering are independent: a member that only delivers takes no incarnation (unless it has an outbox), and
one that only sends keeps no position. Without `connect`, a `Member` sends and delivers, but is in no view.
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
from connectors.client.incarnation.sender import Sender
from connectors.client.memory.ledger_reader import check_can_read_a_ledger
from connectors.client.memory.member_memory import MemberMemory
from connectors.client.memory.outbox import Outbox
from connectors.client.state.start_position import Choice
from connectors.client.state.state_joiner import SetState
from connectors.client.state.state_supplier import GetState
from connectors.client.state.state_transfer import StateTransfer
from connectors.client.tail.sharing import share
from connectors.client.values.arguments import function, location, number, path, positive_seconds, seconds, switch, text
from connectors.client.values.delivery import Deserializer
from connectors.client.values.member_metrics import MemberMetrics
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
    """A member of a group: it broadcasts messages, and delivers what the group has ordered.

    Thread-safe, except that each iterator of `deliveries` and `inbox` is for one thread. Close it after use, or use it
    in a `with`. A name belongs to one sending process at a time: a later process supersedes an earlier one.
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
            connection: an `abcast.Connection`, in place of `bootstrap_servers` and `connect_timeout`. Without it,
                variables ABCAST_KAFKA_* and the table `[kafka]` of ./abcast.toml say how to log in.
            connect_timeout: seconds that each Kafka client waits for its first answer; above 0.
            default_site: the site of a `member` given without one. Default: the variable ABCAST_SITE, else `site` in
                ./abcast.toml, else `local`.
            outbox: a file that keeps each broadcast message until it is ordered, but no letters. After a kill at any
                moment, the next start sends the messages in it, and each is ordered exactly once. (A power failure may
                lose the last ones.) One file per member. With it, the member takes an incarnation here.
            ledger: the directory or URL of the group's ledger. `deliveries` reads from it the messages that Kafka's
                retention has dropped; not together with `casts`. It needs the packages of
                `pip install 'abcast[jobs]'`.
            max_pending_records: the number of messages that may wait to be ordered; above 0. `broadcast` blocks at that
                limit. As many messages in fifo or causal order, and as many letters, may wait to be written.
            max_pending_bytes: the same in bytes of payloads and headers; above 0.
            resend_after_s: if no waiting message is ordered for so many seconds, all are sent again; above 0. Each
                resend in vain doubles the time, up to 30 s.
            block: a function without arguments, called when a flush begins, in a thread of the member. It may
                broadcast the messages that have to come before the flush. When it returns, sending is blocked until
                the flush is over. Its errors are only logged.
            unblock: the same for the end of the flush: a function without arguments, called in that thread.
            get_state: a function without arguments that returns the application's state as bytes, for a member that
                joins: the effect of all messages that `deliveries()` (without `from_seqno`) has returned so far. The
                thread that iterates `deliveries()` calls it, between two messages; while none does, no state is
                supplied. Give it only to a member with the whole state: a member of the group's first view, or one that
                connects with `state`, `from_ledger` or `from_seqno`.
            set_state: a function that takes such bytes. `connect(state=True)` calls it.
            serializer: a function that makes bytes of each payload given to `broadcast` and `send`.
            deserializer: a function that makes the `value` of a delivery or letter from its payload, when `value` is
                read.
            casts: whether to take part in fifo and causal order: `broadcast` sends such messages, and `deliveries`
                returns them.

        Raises:
            UsageError: a name or an option is bad; `ledger` and `casts` were given together; the outbox is another
                member's, or in use; the packages that `ledger` needs are missing.
            BrokerUnreachable: no broker answered within `connect_timeout`.
            KafkaRefused: Kafka refuses the login, or the user lacks a right.
            TopicMissing: the group's topics were not created at this site.
            Superseded: the outbox belongs to an incarnation that another process has superseded, or DATA does not tell
                any more which of its messages were ordered.
            EnvironmentProblem: the outbox can't be read or written.
            ProtocolViolation: the outbox and DATA contradict each other: the group's topics were made anew, say.
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
            if switch("casts", casts):
                raise UsageError(
                    "take ledger= or casts=True: deliveries with casts come from Kafka alone. Read older messages with "
                    "a Member without casts, or with `abcast query`."
                )
            check_can_read_a_ledger()
        for name, call in (("block", block), ("unblock", unblock), ("get_state", get_state), ("set_state", set_state)):
            function(name, call)
        function("serializer", serializer)
        function("deserializer", deserializer)
        connection = _connection(connection, bootstrap_servers, connect_timeout).named(f"abcast-{address}")
        limits = SendingLimits(max_pending_records, max_pending_bytes, resend_after_s)
        limits.validate()
        self._callbacks = Callbacks(str(address), block, unblock)
        self._incarnations = Incarnations(address, limits, casts=switch("casts", casts))
        sending = Sender(connection, group, self._incarnations, self._callbacks)
        self._transfer: StateTransfer | None = None
        if get_state is not None or set_state is not None:
            self._transfer = StateTransfer(
                connection,
                group,
                address,
                sending.send_state,
                get_state,
                set_state,
                lambda: sending.known.view,
                casts=self._incarnations.casts,
            )
        ReadingHalf.__init__(self, connection, group, address, ledger_directory, self._transfer, sending, deserializer)
        SendingHalf.__init__(self, sending, QuietPoints(address, self._callbacks), site, serializer)
        self._connecting = threading.Lock()
        self._shared = share(connection)  # keeps it open as long as the member
        try:
            if outbox_file is None:
                MemberMemory(connection, group, address).close()  # raises now if the address is wrong
            else:
                self._incarnations.outbox = Outbox(outbox_file, group, str(address))
                self._sending.start()
        except BaseException:
            if self._incarnations.outbox is not None:
                self._incarnations.outbox.close()
            self._shared.release()
            raise

    def __repr__(self) -> str:
        return f"<Member {self.address} of {self.group}{', closed' if self._sending.is_closed else ''}>"

    @property
    def incarnation(self) -> int | None:
        """Return the number of the incarnation that this member sends under; None while it has none.

        Its first broadcast, letter or `connect` takes one; with an outbox, the constructor.
        """
        forwarder = self._sending.forwarder
        return forwarder.incarnation if forwarder is not None else None

    @property
    def view(self) -> ViewChange | None:
        """Return the newest view that this member knows of; None while it has no incarnation, or the group no view.

        It may be ahead of `deliveries(events=True)`, which returns each view in its place.
        """
        return self._sending.known.view

    @property
    def remote_views(self) -> Mapping[str, tuple[str, ...]]:
        """Return the members at each neighbouring site of a mesh, oldest first, as far as this member knows.

        A site that is unreachable or has no members has an empty tuple. Sites behind a neighbour are not listed. The
        mapping is empty while this member has no incarnation.
        """
        return {site: view.members for site, view in self._sending.known.remote.items()}

    @property
    def global_view(self) -> tuple[str, ...]:
        """Return the members of `view`, then those in `remote_views`, in the order of the sites' names."""
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
        """Join the group; return the first view with this member, or the newest view if it is connected already.

        `close` leaves the group. A member that the group has taken for dead (it was suspended, or cut off for too
        long) joins again by itself, as a new member.

        `deliveries` begins with the first view, unless one of these is given:

        * `from_ledger`: it begins with the group's first message, from the ledger if Kafka has dropped that.
        * `from_seqno`: it begins there. For a replica that keeps its own state, and knows the last seqno in it.
        * `state`: it begins behind the state of another member. The oldest member that answers supplies the state,
          `set_state` gets it, and `deliveries` then returns the messages that the state does not count.

        With `state`, it may be that no other member has a state: this one is the first, say. If no message was ordered
        before, `set_state` is not called, and `deliveries` begins with the view. If there were messages (after a total
        restart, say), `connect` raises StateUnavailable; with `or_history`, `deliveries` begins with the group's first
        message instead.

        Raises (`set_state`'s own errors, too):
            UsageError: `state` was given without `set_state`; `or_history` without `state`; more than one of `state`,
                `from_ledger` and `from_seqno`, or one of them to a connected member; the member was closed.
            StateUnavailable: there were messages, and no member has their state. This one has joined nevertheless:
                call `connect` again, with another choice.
            NotOrderedInTime: no view came within `timeout` seconds, or no state. In the second case this one has
                joined. Call `connect` again, or close the member.
            BrokerUnreachable: no broker answers.
            Superseded: another process has started under this name.
            TopicMissing: a topic of the group is missing.
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
            self._start_position.check(choice)
            view = self.view
            self._sending.start().check()
            if self._start_position.is_ready and view is not None:
                return view
            if self._transfer is not None:
                self._transfer.start()
            view = self._sending.join(timeout)
            self._is_connected = True
            self._start_position.enter(view, choice, lambda: self.view, max(0.0, deadline - time.monotonic()))
            return view

    def flush(self, timeout: float = 30.0) -> AbstractContextManager[None]:
        """Return a context manager for a quiet point: inside the `with`, no member sends.

        Every member's `block` has returned, and everything that the members sent before is ordered. (In an open group,
        senders that are no members may still send.) The group ends a flush that takes longer than its
        `flush_timeout_ms`. If that, or the exclusion of this member, ends the quiet point early, the end of the `with`
        raises an error, unless its body has raised one.

        Args:
            timeout: seconds to wait for the quiet point, and at its end again for the group to go on.

        The start of the `with` raises:
            UsageError: the member is not connected; the call comes from its `block` or `unblock`.
            FlushFailed: another flush runs, or a member was not quiet in time. The flush is given up.
            Excluded: the group has taken this member for dead.

        Its end raises:
            FlushFailed, Excluded: the quiet point was over before, so others may have sent in it.
            NotOrderedInTime: the end of the flush was not ordered within `timeout`.
        """
        self._sending.check_process()
        limit = seconds("timeout", timeout)
        return self._quiet.point(self._sending.session if self._is_connected else None, limit)

    def metrics(self) -> MemberMetrics:
        """Return the figures of this member, for monitoring. It asks nothing, and waits for nothing.

        `abcast.prometheus.MemberCollector` gives them to Prometheus.
        """
        forwarder, run, figures = self._sending.forwarder, self._newest_run, self._incarnations.figures
        newest = self._shared.tailer(self.group, self.address.site).newest_seqno
        return MemberMetrics(
            0 if forwarder is None else forwarder.pending,
            figures.order_seconds,
            figures.resends,
            None if run is None else run.taken_seqno,
            None if run is None else run.behind(newest),
        )

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Finish sending, leave the group, end all iterators, and disconnect.

        It waits up to `timeout` seconds until all letters are written and all broadcasts are ordered. It may be called
        twice. In a fork of the process that opened the member, it only logs a warning.

        Raises (after it has closed):
            NotOrderedInTime: a message, or the LEAVE, was not ordered, and there is no outbox: no process sends it
                again. (With an outbox, the next start sends it.)
            NotWrittenInTime: a letter, or without an outbox a message in fifo or causal order, was not written.
            Superseded: another process has started under this name. Not raised again if an earlier call or a receipt
                has raised it.
            HistoryUnavailable: the member stopped sending before, and does not know which messages were ordered. Not
                raised again, either.
        """
        if self._sending.is_forked:
            _logger.warning("%s stays open: the parent of this process opened it", self.address)
            return
        timeout = seconds("timeout", timeout)
        deadline = time.monotonic() + timeout
        if not self._sending.shut(timeout):
            return
        with contextlib.ExitStack() as closing:  # all of them, even if Ctrl-C ends one; in reverse order
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
        """Close. After an exception in the `with`, do not wait, and give a ResourceWarning where `close` raises."""
        if kind is None:
            self.close()
            return
        try:
            self.close(timeout=0)
        except AbcastError as second:
            warnings.warn(str(second), ResourceWarning, stacklevel=2)


def _connection(connection: Connection | None, bootstrap_servers: str | None, timeout: float) -> Connection:
    """Return the connection that the arguments of `Member` describe. Raises UsageError."""
    timeout = positive_seconds("connect_timeout", timeout)
    if connection is None:
        servers = None if bootstrap_servers is None else text("bootstrap_servers", bootstrap_servers)
        return ClientConfiguration(servers).connection(timeout)
    if bootstrap_servers is not None:
        raise UsageError("take connection= or bootstrap_servers=, not both: each says where Kafka is.")
    if not isinstance(connection, Connection):
        raise UsageError(f"connection is a Connection, not {type(connection).__name__}.")
    return connection
