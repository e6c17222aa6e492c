"""The hub: deliver a group's messages of all orders in this process, and keep the vector that stamps its casts.

Source: Group Communication (docs/sources.md): each node maintains a vector of the messages that it has received.

One thread reads DATA and casts for all members of the process at one site. The applications' deliveries are read apart.

Invariant. No application of the process gets a message that the hub has not delivered (`delivery_status`,
`delivery_status_of_state`). So the hub's vector covers everything that the application knows when it sends. A stamp may
say more than the application has seen, and then others wait for messages that are in the logs already. It never says
less.

The hub begins before its members ask to join, at a point of DATA outside of a flush, as a newcomer. So it knows the
vector of the first view that has one of them. A member's own deliveries begin with that view; `begins` has the place.

A crash loses nothing but the vector: the next process begins as a newcomer, too.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from connectors.client.tail.cast_reader import CastTopics
from connectors.client.tail.log_tailer import LogTailer
from connectors.client.tail.merged_log import Begin, MergedLog, ordered
from connectors.client.values.condition import Condition
from connectors.client.values.promise import copied
from connectors.client.values.thread_on_demand import ThreadOnDemand
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.metadata_client import MetadataClient
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.effective import Effective
from ordering.base.errors import AbcastError, Blocked, HistoryUnavailable, NotOrderedInTime
from ordering.base.records import INCARNATIONS_A_MS, VIEW
from ordering.casts.casts import Cast, OrderedRecord
from ordering.casts.causal import CausalReceiver, CausalState
from ordering.casts.delivery_status import DeliveryStatus, fate_of_record, fate_of_state
from ordering.casts.merging import newcomer
from ordering.membership.membership import MemberIncarnation

POLL_S = 0.1
JOIN_S = 15.0
FLUSH_S = 30.0
"""Seconds for which a hub waits for the end of a flush that it can't read."""
CLOCKS_DIFFER_S = 60
"""Seconds by which the clocks of members, and of brokers, may differ."""

_logger = logging.getLogger(__name__)
T = TypeVar("T")


class CastingIncarnation(Protocol):
    """An incarnation that sends casts. Called by the hub's thread, without its lock."""

    @property
    def member(self) -> MemberIncarnation:
        """Return its address and number."""

    def heard(self, read: Sequence[Cast], delivered: Sequence[Cast | OrderedRecord]) -> None:
        """Take casts of its address that were read from the log, and all records delivered since, in order."""

    def failed(self, error: Exception) -> None:
        """Take the error after which nothing more is delivered."""


def since_now() -> int:
    """Return the highest incarnation that any sender may have begun by now, by whatever clock.

    An incarnation that begins within the next CLOCKS_DIFFER_S counts as begun. That costs nothing, unless its very
    first cast has to be sent again.
    """
    return (time.time_ns() + CLOCKS_DIFFER_S * 10**9) * INCARNATIONS_A_MS // 10**6


class CastHub:
    """The deliveries of all orders in one process, of one group at one site. Thread-safe. It runs while it has users.

    docs/protocols/locks.md has the order of locks.
    """

    def __init__(
        self, connection: Connection, group: str, site: str, metadata: MetadataClient, tailer: LogTailer
    ) -> None:
        """Open nothing yet."""
        self.connection = connection
        self.group = group
        self.site = site
        self.lock = Condition()
        """Held while the receiver is read or changed. Only `CastBuffer._lock` is taken under it."""
        self.has_failed = False
        self.begins: dict[MemberIncarnation, Begin] = {}
        """The place of the first view of each incarnation that `add` was called for, until `forget`."""
        self._topics = CastTopics(connection, metadata, group, site)
        self._tailer = tailer
        self._starting = threading.Lock()
        self._users = 0
        self._log: MergedLog | None = None
        self._thread: ThreadOnDemand | None = None
        self._stopping = threading.Event()
        self._senders: dict[MemberIncarnation, CastingIncarnation] = {}
        self._failure: Exception | None = None

    @property
    def receiver(self) -> CausalReceiver:
        """Return the receiver of casts, with the vector of deliveries. Called, and read, under the lock."""
        assert self._log is not None
        return self._log.merger.causal

    def acquire(self) -> None:
        """Acquire a reference; the first one starts the thread.

        Raises BrokerUnreachable, TopicMissing, HistoryChanged; Blocked if retention has dropped the beginning of a
        flush that does not end within FLUSH_S.
        """
        with self._starting:
            if self._thread is None:
                self._stopping = threading.Event()
                thread = ThreadOnDemand(f"abcast-{self.group}-orders", self._run)
                self._log = MergedLog(self._tailer, self._topics, self._begin())
                try:
                    thread.begin(self._log, self._stopping)
                    self._thread = thread
                except BaseException:
                    self._thread = None
                    self._stopping.set()
                    if not thread.has_begun:
                        self._log.close()
                    raise
            self._users += 1

    def release(self) -> None:
        """Release a reference; the last one ends the thread."""
        with self._starting:
            self._users -= 1
            if self._users:
                return
            thread, self._thread = self._thread, None
            self._stopping.set()
        with self.lock:
            self.lock.notify_all()
        if thread is not None:
            thread.join(JOIN_S)

    def add(self, sender: CastingIncarnation) -> None:
        """Call `sender` from here on. Raises AbcastError if the hub has failed."""
        with self.lock:
            self._see_failure()
            self._senders[sender.member] = sender

    def remove(self, sender: CastingIncarnation) -> None:
        """Call `sender` no more."""
        with self.lock:
            self._senders.pop(sender.member, None)

    def forget(self, member: MemberIncarnation) -> None:
        """Forget where the deliveries of an incarnation, and of its address's earlier ones, begin."""
        with self.lock:
            self.begins = {
                each: begin
                for each, begin in self.begins.items()
                if each.address != member.address or each.incarnation > member.incarnation
            }

    def delivery_status(self, record: Cast | OrderedRecord, timeout: float) -> DeliveryStatus:
        """Return whether the hub has delivered the record; wait up to `timeout` seconds while it may still.

        Raises the error that has ended the hub.
        """
        if isinstance(record, OrderedRecord) and self.receiver.seqno >= record.seqno:
            return DeliveryStatus.DELIVERED
        return self._delivery_status(fate_of_record, record, timeout)

    def delivery_status_of_state(self, state: CausalState, timeout: float) -> DeliveryStatus:
        """Return whether the hub has delivered everything that a member's state counts. As `delivery_status` else."""
        return self._delivery_status(fate_of_state, state, timeout)

    def _delivery_status(
        self, judge: Callable[[CausalReceiver, T], DeliveryStatus], what: T, timeout: float
    ) -> DeliveryStatus:
        deadline = time.monotonic() + timeout
        with self.lock:
            while True:
                self._see_failure()
                delivery_status = judge(self.receiver, what)
                left = deadline - time.monotonic() if delivery_status is DeliveryStatus.NOT_YET else 0.0
                if left <= 0:
                    return delivery_status
                self.lock.wait(left)

    def _see_failure(self) -> None:
        """Raise the error that has ended the hub, if one has: an AbcastError as it is, since it says what to do."""
        if isinstance(self._failure, AbcastError):
            raise copied(self._failure) from self._failure
        if self._failure is not None:
            raise AbcastError(f"the casts of {self.group} can't be delivered: {self._failure}") from self._failure

    def wait_for_seqno(self, seqno: int, timeout: float | None) -> None:
        """Wait until the hub has delivered `seqno`. Raises NotOrderedInTime after `timeout` seconds, or if it ends."""
        with self.lock:
            stopping = self._stopping
            self.lock.wait_for(
                lambda: self._failure is not None or stopping.is_set() or self.receiver.seqno >= seqno, timeout
            )
            if self.receiver.seqno < seqno:
                raise NotOrderedInTime(f"seqno {seqno} is ordered, but waits for casts that it depends on.")

    def wait_for_begin(self, member: MemberIncarnation, timeout: float) -> Begin | None:
        """Wait for the first view of an incarnation; return the place where its deliveries begin.

        Return None if the view does not come within `timeout` seconds. Raises the error that has ended the hub before.
        """
        with self.lock:
            self.lock.wait_for(lambda: self._failure is not None or member in self.begins, timeout)
            if member not in self.begins:
                self._see_failure()
            return self.begins.get(member)

    def _begin(self) -> Begin:
        # Casts first: later ones belong to a later view than the one in DATA now, or follow in this one.
        with contextlib.closing(self.connection.consumer()) as consumer, self.connection.reachable():
            places = self._topics.partitions()
            offsets = {place: int(end) for place, end in consumer.end_offsets(places).items()}
        deadline = time.monotonic() + FLUSH_S
        start, state = end = self._tailer.end()
        while state.membership.flush.id:  # the members' answers in it have to be read: they tell the vector
            try:
                with DataLog(self.connection, self.group, self.site) as log:
                    start, state = log.outside_of_a_flush(start)
            except HistoryUnavailable:
                if time.monotonic() > deadline:
                    raise Blocked(
                        f"a flush runs in group {self.group}, and DATA has lost its beginning, so casts begin when it "
                        "has ended. Does a sequencer run (`abcast status`)? Then try again."
                    ) from None
                time.sleep(POLL_S)
                start, state = end = self._tailer.end()
        # The place before a flush may lie before views whose casts are below the offsets.
        return Begin(start, newcomer(state, since_now()), offsets, new_up_to=end[1].seqno)

    def _run(self, log: MergedLog, stopping: threading.Event) -> None:
        try:
            while not stopping.is_set():
                self._poll(log)
        except Exception as error:  # noqa: BLE001 - any error must reach the waiting threads
            why = error if isinstance(error, AbcastError) else repr(error)
            _logger.error("the casts of %s can't be delivered: %s", self.group, why)
            with self.lock:
                self.has_failed, self._failure = True, error
                senders = list(self._senders.values())
                self.lock.notify_all()
            for sender in senders:
                sender.failed(error)
        finally:
            log.close()

    def _poll(self, log: MergedLog) -> None:
        read = log.read(POLL_S)
        with self.lock:
            log.step(read)
            delivered = tuple(log.ready)
            log.ready.clear()
            self._note_begins(log, delivered)
            senders = list(self._senders.values())
            if delivered:
                self.lock.notify_all()
        if not read and not delivered:
            return
        own: dict[str, list[Cast]] = {sender.member.address: [] for sender in senders}
        for found in read:
            if found.cast.sender in own:
                own[found.cast.sender].append(found.cast)
        for sender in senders:
            try:
                sender.heard(own[sender.member.address], delivered)
            except Exception as error:  # noqa: BLE001 - one member's failure is told to that member
                self.remove(sender)
                sender.failed(error)

    def _note_begins(self, log: MergedLog, delivered: Sequence[Cast | OrderedRecord]) -> None:
        """Note the place of the first view of each sender. A view without a vector is delivered with no members."""
        for at, record in enumerate(delivered):
            if isinstance(record, Cast) or record.kind != VIEW or not isinstance(record.record, Effective):
                continue
            fresh = [
                member
                for member in ordered(record.record).members
                if member in self._senders and member not in self.begins
            ]
            if fresh:
                begin = log.behind._replace(first=tuple(delivered[at:]))
                self.begins.update(dict.fromkeys(fresh, begin))
