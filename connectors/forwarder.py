"""The sending half of a member: its forward table, the producer, and the thread that sees its own DATA come back.

Source: SEQUENCER.txt, "Design" and "Reliability on failover": keep a message until its own DATA is seen; when in
doubt, send everything in the table again in increasing order of local seqnos. The sequencer drops duplicates, and
messages that follow a gap, so a resend never does harm and always repairs.

Two rules keep it simple:

* Whoever sends holds the lock, broadcasts and resends alike. So the FORWARD log has this member's messages in order,
  except where a produce request failed.
* After a failed produce request nothing more is sent by that producer: broadcasts only enter the table, until the
  thread has a new producer and sends the table from its beginning. (kafka-python's idempotent producer fails the
  batches in flight when its epoch is bumped, and may then be in a fatal state; a new one is in a known state.)
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from kafka import KafkaProducer
from kafka.errors import KafkaError
from kafka.future import Future

from connectors.codec import H_INCARNATION, H_KIND, H_LOCAL_SEQNO, H_SENDER, forward_headers
from connectors.connection import Connection
from connectors.data_cursor import DataCursor, Effective
from connectors.data_log import DataLog, Start
from connectors.member_memory import MemberMemory
from connectors.outbox import Outbox
from connectors.receipt import Receipt, raised_again
from ordering.errors import (
    AbcastError,
    Blocked,
    BrokerUnreachable,
    ForwardTableFull,
    HistoryUnavailable,
    NotOrderedInTime,
    ProtocolViolation,
    Superseded,
    UsageError,
)
from ordering.forward_table import ForwardTable, Pending, message_bytes
from ordering.membership import Membership
from ordering.names import Address, Topic
from ordering.reader import Reader
from ordering.records import FLUSH_OK, HEARTBEAT, MESSAGE, Headers, MessageId
from ordering.sequencer import NOTHING_ACCEPTED, Accepted, SequencerState

LINGER_MS = 10
BATCH_BYTES = 256 * 1024
"""The producer collects records for so long, or so many bytes, into one batch. It is little beside what ordering takes;
with 5 ms, member and broker took a quarter of a core more for their requests at 1,000 records/s.
"""

POLL_S = 0.1
"""How often, at least, the thread looks whether something is to be sent again."""

FAILED_RESEND_S = 0.2
MAX_RESEND_S = 30.0
"""A failed produce request is repaired after the first; both it and `resend_after` double up to the second."""

STUCK_PRODUCER_S = 150.0
"""Longer than the 120 s in which a producer gives up on a record: if it did not, it is replaced."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SendingLimits:
    """Bounds of the forward table (records, bytes), and seconds without progress after which it is sent again."""

    max_pending_records: int = 10_000
    max_pending_bytes: int = 64 * 1024 * 1024
    resend_after: float = 20.0
    """What Kafka has acknowledged is hardly ever lost; a takeover, which takes less, is no time for a second copy."""

    def validate(self) -> None:
        """Raises UsageError."""
        for name in ("max_pending_records", "max_pending_bytes", "resend_after"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be greater than 0.")


class Forwarder:
    """One incarnation of a sender. Thread-safe. `close` it, or its thread runs (as a daemon) to the process's end."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        address: Address,
        limits: SendingLimits,
        outbox: Outbox | None,
        observer: Observer | None = None,
        *,
        anew: bool = False,
    ) -> None:
        """Take an incarnation (or continue the outbox's, sending again what is pending) and start the thread.

        `observer` is told of the group's control records. `anew`: a new incarnation in any case, under which the
        outbox's messages are sent again: only if none of them can still be ordered under the old one.

        Raises BrokerUnreachable, TopicMissing, Superseded.
        """
        self.connection = connection
        self.group = group
        self.address = address
        self.limits = limits
        self.is_continued = False  # whether the incarnation is that of an earlier start, from the outbox
        self._outbox = outbox
        self._sender = str(address).encode("ascii")
        self._topic = str(Topic(group, "forward", address.site))
        self._changed = threading.Condition(threading.Lock())
        self._stopping = threading.Event()
        self._failure: AbcastError | None = None
        self._receipts: deque[Receipt | None] = deque()  # in step with the table; None: accepted by an earlier run
        self._last_seqno: int | None = None
        self._newest: Future | None = None
        self._produce_failed = False
        self._resends = 0  # since the last progress
        self._progress_at = time.monotonic()

        self._observer = observer
        self._refusal: AbcastError | None = None  # why nothing more is taken, while what was is still sent
        self._flush_id = 0  # the flush in hand
        self._is_shut = False  # FLUSH_OK is in the table: no message may follow until the flush is over

        self._memory = MemberMemory(connection, group, address)
        try:
            # The log's end is taken before the first message is sent: nothing of ours can be missed behind it.
            start, state = self._end_of_data()
            self.incarnation, self._table = self._take_up(state, anew)
            self._cursor = DataCursor(self._memory.consumer, self._memory.data, start)
            self._key_headers = forward_headers(str(address), self.incarnation, 0)[:-1]
            self._use(self._new_producer())
        except BaseException:
            self._memory.close()
            raise
        if observer is not None:
            observer.begin(self, state.membership, state.view)
        with self._changed:
            self._send_table()
        self._thread = threading.Thread(target=self._run, name=f"abcast-{group}-{address}", daemon=True)
        self._thread.start()

    # --- starting ---

    def _end_of_data(self) -> tuple[Start, SequencerState]:
        with DataLog(self.connection, self.group, self.address.site) as log:
            end = log.end()
            state = log.state(end)
        return Start(end, Reader(state.epoch, state.seqno)), state

    def _take_up(self, state: SequencerState, anew: bool) -> tuple[int, ForwardTable]:
        """The incarnation to send under, and its forward table."""
        limits = self.limits
        ordered = state.received.get(str(self.address), NOTHING_ACCEPTED)
        outbox = self._outbox
        floor = state.membership.incarnation_floor
        if outbox is not None and 0 < outbox.incarnation <= floor and not ordered.incarnation:
            # It left the group long ago: its row is gone, and no record of that life will be taken any more.
            if any(not _is_control(pending) for pending in outbox.pending()):
                raise Superseded(
                    f"{self.address} left the group so long ago that the sequencer has forgotten which messages of the "
                    f"outbox {outbox.path} were ordered (the ledger knows). Delete the file to give them up."
                )
            anew = True
        if outbox is not None and outbox.incarnation and not anew and not self._has_lost_its_end(outbox, ordered):
            acknowledged = self._check_outbox(outbox, ordered)
            outbox.acknowledge(acknowledged, at_once=True)
            table = ForwardTable(limits.max_pending_records, limits.max_pending_bytes, last=acknowledged)
            for pending in outbox.pending():
                if table.append(pending.payload, pending.headers) != pending:
                    raise ProtocolViolation(
                        f"the outbox {outbox.path} lacks local seqno {table.last}: it was changed from outside."
                    )
                self._receipts.append(None)
            self.is_continued = True
            return outbox.incarnation, table
        # Higher than every earlier start: those remembered, and those ordered.
        incarnation = self._memory.claim_incarnation(above=max(ordered.incarnation, floor))
        if outbox is not None:
            # A control record belongs to its incarnation; messages that are kept get new local seqnos.
            kept = [pending for pending in outbox.pending() if not _is_control(pending)] if anew else []
            outbox.begin(incarnation, kept)
        table = ForwardTable(limits.max_pending_records, limits.max_pending_bytes)
        for pending in outbox.pending() if outbox is not None else ():
            table.append(pending.payload, pending.headers)
            self._receipts.append(None)
        return incarnation, table

    @staticmethod
    def _has_lost_its_end(outbox: Outbox, ordered: Accepted) -> bool:
        """Whether messages were ordered that the file does not know: a restored copy, or a power failure.

        Their local seqnos are taken. All the file's own messages are ordered then (the sequencer takes them in
        order), so a new incarnation loses nothing.
        """
        return ordered.incarnation == outbox.incarnation and ordered.local_seqno > outbox.last()

    def _check_outbox(self, outbox: Outbox, ordered: Accepted) -> int:
        """The local seqno up to which the outbox's messages are ordered. Raises Superseded, ProtocolViolation."""
        if ordered.incarnation > outbox.incarnation:
            unordered = outbox.last() - outbox.acknowledged
            raise Superseded(
                f"{self.address} was started elsewhere with the incarnation {ordered.incarnation}, higher than that of "
                f"the outbox {outbox.path} ({outbox.incarnation}). Up to {unordered} messages in it were never ordered "
                "and never will be. Delete the outbox to give them up, and run one process per member."
            )
        acknowledged = ordered.local_seqno if ordered.incarnation == outbox.incarnation else 0
        if acknowledged < outbox.acknowledged:
            raise ProtocolViolation(
                f"the outbox {outbox.path} knows local seqno {outbox.acknowledged} to be ordered, but DATA ends at "
                f"{acknowledged}: were the group's topics made anew? Then delete the outbox."
            )
        return acknowledged

    def _new_producer(self) -> KafkaProducer:
        return self.connection.producer(linger_ms=LINGER_MS, batch_size=BATCH_BYTES)

    def _use(self, producer: KafkaProducer) -> None:
        self._producer = producer
        # One object for all of a producer's records: nothing is made for it on the hot path.
        self._on_failure = functools.partial(self._note_failure, producer)
        self._newest = None
        self._produce_failed = False

    # --- what applications call ---

    def broadcast(self, payload: bytes, headers: Headers, timeout: float | None, kind: str = MESSAGE) -> Receipt:
        """Give the record its local seqno, keep it, send it. Raises ForwardTableFull, Blocked, Superseded."""
        if kind != MESSAGE:
            headers = ((H_KIND, kind.encode("ascii")),)
        with self._changed:
            self._raise_failure()
            size = message_bytes(payload, headers)
            # While it waits for one of them, it can lose the other.
            while (is_shut := self._is_shut and kind == MESSAGE) or not self._table.has_room(size):
                if is_shut:
                    self._wait_for_the_flush(timeout)
                else:
                    self._wait_for_room(size, timeout)
            if self._refusal is not None:
                raise raised_again(self._refusal)
            return self._accept(payload, headers)

    def _accept(self, payload: bytes, headers: Headers) -> Receipt:
        """Under the lock, and with room in the table."""
        if self._outbox is not None:
            self._outbox.append(self._table.last + 1, payload, headers)
        if not self._receipts:
            self._progress_at = time.monotonic()
        pending = self._table.append(payload, headers)
        receipt = Receipt(MessageId(str(self.address), self.incarnation, pending.local_seqno), self._changed)
        self._receipts.append(receipt)
        if not self._produce_failed:
            self._send(pending)
        return receipt

    def heartbeat(self) -> None:
        """Say that this incarnation is alive, if that costs no waiting."""
        if self._produce_failed or not self._changed.acquire(blocking=False):
            return
        try:
            headers = forward_headers(str(self.address), self.incarnation, 1, kind=HEARTBEAT)
            self._producer.send(self._topic, value=b"", key=self._sender, headers=headers)
        except KafkaError as error:
            _logger.debug("%s: a heartbeat could not be sent: %r", self.address, error)
        finally:
            self._changed.release()

    def flush_begins(self, flush_id: int) -> None:
        """From here on `answer_flush` may answer it."""
        with self._changed:
            self._flush_id = flush_id

    def answer_flush(self, flush_id: int) -> None:
        """FLUSH_OK: the last message until the flush is over. Nothing if it is over already."""
        with self._changed:
            if self._flush_id != flush_id:
                return
            self._is_shut = True
            payload, headers = b"%d" % flush_id, ((H_KIND, FLUSH_OK.encode("ascii")),)
            if not self._table.has_room(message_bytes(payload, headers)):
                self._wait_for_room(message_bytes(payload, headers), None)
            if self._flush_id == flush_id:
                self._accept(payload, headers)

    def shut(self, flush_id: int) -> None:
        """No message until the flush is over."""
        with self._changed:
            self._is_shut = self._flush_id == flush_id

    def flush_ends(self) -> None:
        """Messages may be sent again."""
        with self._changed:
            self._flush_id, self._is_shut = 0, False
            self._changed.notify_all()

    def refuse(self, refusal: AbcastError) -> None:
        """Take nothing more; what was taken before goes on to be sent, and its receipts hold."""
        with self._changed:
            self._refusal = refusal

    def fail(self, failure: AbcastError) -> None:
        """Let everybody who waits, and whoever comes, hear of it."""
        with self._changed:
            self._failure = failure
            self._fail_receipts(failure)

    def wait_ordered(self, timeout: float | None) -> int | None:
        """Wait until all that was broadcast before is ordered; the last seqno of it. Raises NotOrderedInTime."""
        with self._changed:
            last = self._table.last
            self._changed.wait_for(lambda: self._failure is not None or self._table.acknowledged >= last, timeout)
            if self._table.acknowledged >= last:
                return self._last_seqno
            self._raise_failure()
            raise NotOrderedInTime(
                f"{last - self._table.acknowledged} messages of {self.address} were not ordered within {timeout:g} s. "
                "Does the group's sequencer run (`abcast status`)?"
            )

    def close(self) -> None:
        """Stop at once. What is pending stays in the outbox; without one, its receipts raise NotOrderedInTime."""
        self._stopping.set()
        # Everything the thread waits for has a limit; should one fail, it is a daemon and goes with the process.
        self._thread.join(self.connection.timeout + 5)
        abandon(self._producer)
        self._memory.close()
        with self._changed:
            if self._outbox is not None:
                self._outbox.acknowledge(self._table.acknowledged, at_once=True)
            self._fail_receipts(
                NotOrderedInTime(f"{self.address} was closed before its message was ordered. It may still be ordered.")
            )

    # --- under the lock ---

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise raised_again(self._failure)
        if self._stopping.is_set():
            raise UsageError(f"{self.address} is closed.")

    def _wait_for_room(self, size: int, timeout: float | None) -> None:
        has_room = self._changed.wait_for(
            lambda: self._table.has_room(size) or self._failure is not None or self._stopping.is_set(), timeout
        )
        self._raise_failure()
        if not has_room:
            raise ForwardTableFull(
                f"{len(self._table)} messages of {self.address} wait to be ordered, and none was within {timeout:g} s. "
                "Does the group's sequencer run (`abcast status`)? Broadcast again later, or raise max_pending_records."
            )

    def _wait_for_the_flush(self, timeout: float | None) -> None:
        over = self._changed.wait_for(
            lambda: not self._is_shut or self._failure is not None or self._stopping.is_set(), timeout
        )
        self._raise_failure()
        if not over:
            raise Blocked(
                f"a flush of the group did not end within {timeout:g} s, and {self.address} may not send in it. "
                "Broadcast again later."
            )

    def _send(self, pending: Pending) -> None:
        headers = [*self._key_headers, (H_LOCAL_SEQNO, b"%d" % pending.local_seqno), *pending.headers]
        if _is_control(pending):
            headers[1] = headers.pop()  # its kind, in the place of a message's
        try:
            future = self._producer.send(self._topic, value=pending.payload, key=self._sender, headers=headers)
        except KafkaError as error:
            self._note_failure(self._producer, error)
            return
        future.add_errback(self._on_failure)
        self._newest = future

    def _send_table(self) -> None:
        """Send everything pending, in increasing order of local seqnos."""
        for pending in self._table.pending():
            if self._produce_failed:
                return
            self._send(pending)

    def _note_failure(self, producer: KafkaProducer, error: BaseException) -> None:
        """A produce request failed. Called by the producer's thread too, so without the lock (it may hold it up)."""
        if producer is self._producer and not self._stopping.is_set():
            if not self._produce_failed:
                _logger.warning("%s: a produce request failed (%r); sending again soon", self.address, error)
            self._produce_failed = True

    def _fail_receipts(self, error: AbcastError) -> None:
        for receipt in self._receipts:
            if receipt is not None:
                receipt.fail(error)
        self._receipts.clear()
        self._changed.notify_all()

    # --- the thread ---

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    self._acknowledge(self._cursor.poll(POLL_S))
                except HistoryUnavailable as gone:
                    self._catch_up(gone)
                self._resend_if_due()
        except Exception as error:
            # Whatever it is, the applications that wait must hear of it.
            _logger.exception("%s stops sending", self.address)
            failure = error if isinstance(error, AbcastError) else AbcastError(f"{self.address} failed: {error!r}")
            self.fail(failure)

    def _acknowledge(self, records: list[Effective]) -> None:
        own: list[tuple[int, int]] = []
        for record in records:
            fields = record.fields
            if record.kind != MESSAGE and self._observer is not None:
                self._observer.accept(record)
            # Other members' records, the most of them, cost no more than this comparison.
            if fields.get(H_SENDER) != self._sender:
                continue
            incarnation = int(fields[H_INCARNATION])
            if incarnation > self.incarnation:
                self._apply(own)
                raise self._superseded(incarnation)
            if incarnation == self.incarnation:
                own.append((int(fields[H_LOCAL_SEQNO]), record.seqno))
        self._apply(own)

    def _apply(self, own: list[tuple[int, int]]) -> None:
        """`own`: (local seqno, seqno) of messages of this incarnation that are ordered."""
        if not own and self._outbox is None:
            return
        with self._changed:
            for local_seqno, seqno in own:
                for _ in range(self._table.acknowledge(local_seqno)):
                    receipt = self._receipts.popleft()
                    if receipt is not None:
                        receipt.resolve(seqno)
                self._last_seqno = seqno
            if self._outbox is not None:
                self._outbox.acknowledge(self._table.acknowledged)
            if own:
                self._progressed()

    def _progressed(self) -> None:
        self._progress_at = time.monotonic()
        self._resends = 0
        self._changed.notify_all()

    def _superseded(self, incarnation: int) -> Superseded:
        return Superseded(
            f"another process has started as {self.address}, with incarnation {incarnation} (ours is "
            f"{self.incarnation}): messages of ours that are not ordered yet are lost. Run one process per member."
        )

    def _catch_up(self, gone: HistoryUnavailable) -> None:
        """Retention overtook us (the process was suspended): learn from the state what was ordered meanwhile."""
        try:
            start, state = self._end_of_data()
        except BrokerUnreachable:
            time.sleep(POLL_S)
            return
        ordered = state.received.get(str(self.address), NOTHING_ACCEPTED)
        if ordered.incarnation > self.incarnation:
            raise self._superseded(ordered.incarnation)
        with self._changed:
            if ordered.incarnation == self.incarnation:
                for _ in range(self._table.acknowledge(ordered.local_seqno)):
                    receipt = self._receipts.popleft()
                    if receipt is not None:
                        receipt.fail(HistoryUnavailable(f"{receipt.message_id} is ordered, but as which seqno? {gone}"))
            self._progressed()
        self._cursor = DataCursor(self._memory.consumer, self._memory.data, start)

    def _resend_if_due(self) -> None:
        if not self._receipts:
            return
        stuck = False
        waited = time.monotonic() - self._progress_at
        if self._produce_failed:
            first = FAILED_RESEND_S
        else:
            first = self.limits.resend_after
            # A producer that is still at it (the broker is away) will send it all; sending again only adds to it.
            if self._newest is not None and not self._newest.is_done:
                stuck = waited > STUCK_PRODUCER_S
                if not stuck:
                    return
        if waited < min(first * 2 ** min(self._resends, 20), max(first, MAX_RESEND_S)):
            return
        self._resends += 1
        self._progress_at = time.monotonic()
        fresh: KafkaProducer | None = None
        if self._produce_failed or stuck:
            self._produce_failed = True  # until the table is sent, broadcasts only enter it
            try:
                fresh = self._new_producer()
            except BrokerUnreachable:
                return
        with self._changed:
            _logger.info("%s: no progress for %.1f s; sending %d again", self.address, waited, len(self._receipts))
            old = self._producer
            if fresh is not None:
                self._use(fresh)
            self._send_table()
        if fresh is not None:
            abandon(old)


class Observer(Protocol):
    """Who wants to hear of the control records: a session. Called by the forwarder's thread, in order."""

    def begin(self, forwarder: Forwarder, membership: Membership, view_id: int) -> None:
        """The state of the log where the forwarder begins to read."""

    def accept(self, record: Effective) -> None:
        """The next control record."""


def _is_control(pending: Pending) -> bool:
    """Whether it is none of the application's messages: its kind then stands in its headers."""
    return bool(pending.headers) and pending.headers[0][0] == H_KIND


def abandon(producer: KafkaProducer) -> None:
    """Close a producer at once, whatever it still holds: the forward table has it."""
    # kafka-python's close does not stop its thread when records are left, and does not wait for it with timeout 0.
    producer._sender.force_close()
    producer._sender.join(5)
    try:
        producer.close(timeout=0)
    except KafkaError:
        _logger.warning("a producer did not stop; it goes with the process")
