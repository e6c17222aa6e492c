"""What this process has delivered of a group in all orders: the vector that its members' messages are stamped with.

Source: Group Communication (docs/sources.md): each node maintains a vector of what it has received.

One thread reads DATA and casts for all members of the process at one site. Applications read by themselves.

Invariant. No application of the process is given anything that the hub has not delivered (`fate`,
`fate_of_state`). So the hub's vector covers all that the application knows when it sends: a stamp may say more than
the application has seen, and then others wait for what stands in the logs already, but never less.

It begins before its members ask to join, at a place where no flush is in hand, as a newcomer: so it knows the vector of
the first view that has one of them. With that view begin the member's own deliveries, where the hub has kept `begins`.

A crash loses nothing but the process's knowledge: the next one begins as a newcomer, too.
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
from connectors.client.values.promise import copied
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.metadata_client import MetadataClient
from connectors.kafka.log.data_log import DataLog, Start
from connectors.kafka.log.effective import Effective
from ordering.base.errors import AbcastError, HistoryUnavailable, NotOrderedInTime
from ordering.base.reader import Reader
from ordering.base.records import VIEW
from ordering.casts.casts import Cast, OrderedRecord
from ordering.casts.causal import CausalReceiver, CausalState
from ordering.casts.delivery_status import DeliveryStatus, fate_of_record, fate_of_state
from ordering.casts.merging import newcomer
from ordering.membership.membership import MemberIncarnation
from ordering.sequencer.sequencer import SequencerState

POLL_S = 0.1
JOIN_S = 15.0
CLOCKS_DIFFER_S = 60
"""The clocks of members, and of brokers, may differ by so much."""

NANOSECONDS_A_STEP = 10
"""Incarnations are times in units of so many nanoseconds."""

_logger = logging.getLogger(__name__)
T = TypeVar("T")


class CastingIncarnation(Protocol):
    """A life that sends casts. Called by the hub's thread, without its lock."""

    @property
    def life(self) -> MemberIncarnation:
        """Who it is."""

    def heard(self, read: Sequence[Cast], delivered: Sequence[Cast | OrderedRecord]) -> None:
        """Casts of its address stand in the log; this was delivered, in its order."""

    def failed(self, error: Exception) -> None:
        """Nothing more is delivered."""


def since_now() -> int:
    """The highest incarnation that a life may have which has begun already, by whatever clock.

    One that begins within CLOCKS_DIFFER_S from here on counts as begun; that costs nothing, unless its very first cast
    has to be sent again.
    """
    return (time.time_ns() + CLOCKS_DIFFER_S * 10**9) // NANOSECONDS_A_STEP


class CastHub:
    """Thread-safe. It runs while somebody uses it."""

    def __init__(
        self, connection: Connection, group: str, site: str, metadata: MetadataClient, tailer: LogTailer
    ) -> None:
        """Opens nothing yet."""
        self.connection = connection
        self.group = group
        self.site = site
        self.lock = threading.Condition(threading.Lock())
        """Held while the receiver is looked at, or changes. A leaf."""
        self.has_failed = False
        self.begins: dict[MemberIncarnation, Begin] = {}
        self._topics = CastTopics(connection, metadata, group, site)
        self._tailer = tailer
        self._starting = threading.Lock()
        self._users = 0
        self._log: MergedLog | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._senders: dict[MemberIncarnation, CastingIncarnation] = {}
        self._failure: Exception | None = None

    @property
    def receiver(self) -> CausalReceiver:
        """What was delivered. To be looked at under the lock."""
        assert self._log is not None
        return self._log.merger.causal

    def acquire(self) -> None:
        """One more uses it. Raises BrokerUnreachable, TopicMissing."""
        with self._starting:
            if self._thread is None:
                self._log = MergedLog(self._tailer, self._topics, self._begin())
                self._stopping = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._log, self._stopping), name=f"abcast-{self.group}-orders", daemon=True
                )
                self._thread.start()
            self._users += 1

    def release(self) -> None:
        """One less uses it."""
        with self._starting:
            self._users -= 1
            if self._users:
                return
            thread, self._thread = self._thread, None
            self._stopping.set()
        with self.lock:
            self.lock.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_S)

    def add(self, sender: CastingIncarnation) -> None:
        """It sends casts from here on. Raises AbcastError if nothing is delivered any more."""
        with self.lock:
            self._see_failure()
            self._senders[sender.life] = sender

    def remove(self, sender: CastingIncarnation) -> None:
        """It does not any more."""
        with self.lock:
            self._senders.pop(sender.life, None)

    def delivery_status(self, record: Cast | OrderedRecord, timeout: float) -> DeliveryStatus:
        """How it stands here, once that is known, or after so many seconds. Raises what the hub has failed with."""
        if isinstance(record, OrderedRecord) and self.receiver.seqno >= record.seqno:
            return DeliveryStatus.DELIVERED
        return self._delivery_status(fate_of_record, record, timeout)

    def fate_of_state(self, state: CausalState, timeout: float) -> DeliveryStatus:
        """The same of another member's state."""
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
        """Raise what the hub has failed with: an error of abcast's as itself, which says what to do."""
        if isinstance(self._failure, AbcastError):
            raise copied(self._failure) from self._failure
        if self._failure is not None:
            raise AbcastError(f"the orders of {self.group} can't be kept: {self._failure}") from self._failure

    def wait_for_seqno(self, seqno: int, timeout: float | None) -> None:
        """Until that is delivered here, or nothing more is. Raises NotOrderedInTime."""
        with self.lock:
            stopping = self._stopping
            self.lock.wait_for(
                lambda: self._failure is not None or stopping.is_set() or self.receiver.seqno >= seqno, timeout
            )
            if self.receiver.seqno < seqno:
                raise NotOrderedInTime(f"seqno {seqno} is ordered, but waits for what it depends on.")

    def wait_for_begin(self, life: MemberIncarnation, timeout: float) -> Begin | None:
        """Where the deliveries of a life begin, once its first view is delivered here."""
        with self.lock:
            self.lock.wait_for(lambda: self._failure is not None or life in self.begins, timeout)
            return self.begins.get(life)

    def _begin(self) -> Begin:
        # Casts first: what is written later belongs to a later view than DATA shows, or follows in this one.
        with contextlib.closing(self.connection.consumer()) as consumer, self.connection.reachable():
            places = self._topics.partitions()
            offsets = {place: int(end) for place, end in consumer.end_offsets(places).items()}
        start, state = self._tailer.end()
        if state.membership.flush.id:
            start, state = self._before_the_flush(start, state)
        return Begin(start, newcomer(state, since_now()), offsets)

    def _before_the_flush(self, start: Start, state: SequencerState) -> tuple[Start, SequencerState]:
        """What its members have said in it is told by DATA; so it is read from there."""
        with DataLog(self.connection, self.group, self.site) as log:
            try:
                begin = log.after(state.membership.flush.id - 1)
                known = log.state(begin.offset)
            except HistoryUnavailable:
                return start, state
        return Start(begin.offset, Reader(known.epoch, known.seqno)), known

    def _run(self, log: MergedLog, stopping: threading.Event) -> None:
        try:
            while not stopping.is_set():
                self._poll(log)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            why = error if isinstance(error, AbcastError) else repr(error)
            _logger.error("the orders of %s can't be kept: %s", self.group, why)
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
        own: dict[str, list[Cast]] = {sender.life.address: [] for sender in senders}
        for found in read:
            if found.cast.sender in own:
                own[found.cast.sender].append(found.cast)
        for sender in senders:
            try:
                sender.heard(own[sender.life.address], delivered)
            except Exception as error:  # noqa: BLE001 - one member's failure is told to that member
                self.remove(sender)
                sender.failed(error)

    def _note_begins(self, log: MergedLog, delivered: Sequence[Cast | OrderedRecord]) -> None:
        """The first view of each life that sends. A view that has no vector is delivered without its lives."""
        for at, record in enumerate(delivered):
            if isinstance(record, Cast) or record.kind != VIEW or not isinstance(record.record, Effective):
                continue
            fresh = [life for life in ordered(record.record).lives if life in self._senders and life not in self.begins]
            if fresh:
                begin = log.behind._replace(first=tuple(delivered[at:]))
                self.begins.update(dict.fromkeys(fresh, begin))
