"""The sending half of a member: its forward table, the producer, and the thread that sees its own DATA come back.

Source: SEQUENCER (docs/sources.md), "Design" and "Reliability on failover": keep a message until its own DATA is
seen; when in doubt, send everything in the table again in increasing order of local seqnos. The sequencer drops
duplicates, and messages that follow a gap, so a resend never does harm and always repairs. A message counts as seen
when its DATA is what was sent, not when its id has come (`connectors.client.lives`).

Three rules keep it simple:

* Whoever sends holds the lock, broadcasts and resends alike. So the FORWARD log has this member's messages in order,
  except where a produce request failed.
* In a closed group nothing but JOIN is sent until there is a view with this life: what comes of a non-member is a dead
  letter, and go-back-N would drop all that follows.
* After a failed produce request nothing more is sent by that producer: broadcasts only enter the table, until the
  thread has a new producer and sends the table from its beginning. (kafka-python's idempotent producer fails the
  batches in flight when its epoch is bumped, and may then be in a fatal state; a new one is in a known state.)
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from kafka import KafkaProducer
from kafka.errors import KafkaError
from kafka.future import Future

from connectors.client.lives import Beginning, Carried, Lives, control_headers, is_control, is_same
from connectors.client.member_memory import MemberMemory
from connectors.client.receipt import Receipt, raised_again
from connectors.kafka.codec import H_INCARNATION, H_LOCAL_SEQNO, H_SENDER, forward_headers
from connectors.kafka.connection import Connection
from connectors.kafka.data_cursor import DataCursor, Effective
from connectors.kafka.data_log import DataLog, Start
from ordering.errors import (
    AbcastError,
    Blocked,
    BrokerUnreachable,
    ForwardTableFull,
    HistoryUnavailable,
    NotOrderedInTime,
    UsageError,
)
from ordering.forward_table import Pending, message_bytes
from ordering.names import Topic
from ordering.reader import Reader, Verdict
from ordering.records import FLUSH_OK, HEARTBEAT, JOIN, MESSAGE, Data, Headers, MessageId
from ordering.sequencer import SequencerState

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

FRESH_S = 5.0
"""A life that is older when it sends its first record looks whether it may still begin."""

_logger = logging.getLogger(__name__)


class Forwarder:
    """One incarnation of a sender. Thread-safe. `close` it, or its thread runs (as a daemon) to the process's end."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        lives: Lives,
        observer: Observer | None = None,
        carried: Sequence[Carried] | None = None,
    ) -> None:
        """Begin a life, or continue the outbox's, sending again what is pending, and start the thread.

        `observer` is told of the group's control records. `carried`: what the last life in this process hands over, to
        a new one that joins.

        Raises BrokerUnreachable, TopicMissing, Superseded.
        """
        self.connection = connection
        self.group = group
        self.address = address = lives.address
        self.limits = lives.limits
        self.has_handed_over = False  # what it had accepted is a later life's
        self._outbox = lives.outbox
        self._sender = str(address).encode("ascii")
        self._topic = str(Topic(group, "forward", address.site))
        self._changed = lives.changed
        self._lives = lives
        self._stopping = threading.Event()
        self._failure: AbcastError | None = None
        self._last_seqno: int | None = None
        self._newest: Future | None = None
        self._produce_failed = False
        self._resends = 0  # since the last progress
        self._progress_at = time.monotonic()

        self._observer = observer
        self._refusal: AbcastError | None = None  # why nothing more is taken, while what was is still sent
        self._flush_id = 0  # the flush in hand
        self._is_shut = False  # FLUSH_OK is in the table: no message may follow until the flush is over
        self._is_held = False  # the group is closed, and this life not in the view: no message is sent until it is
        self._has_held_back = False  # some, and they are to be sent

        self._memory = MemberMemory(connection, group, address)
        try:
            self._use(self._new_producer())
        except BaseException:
            self._memory.close()
            raise
        try:
            # The log's end is taken before the first message is sent: nothing of ours can be missed behind it.
            start, state = self._end_of_data()
            begun = lives.begin(self._memory, state, carried, functools.partial(self._ordered_since, end=start.offset))
            self._begin(begun)
            self._cursor = DataCursor(self._memory.consumer, self._memory.data, start)
        except BaseException:
            abandon(self._producer)
            self._memory.close()
            raise
        if observer is not None:
            observer.begin(self, state)
        with self._changed:
            self._send_table()
        self._thread = threading.Thread(target=self._run, name=f"abcast-{group}-{address}", daemon=True)
        self._thread.start()

    # --- starting ---

    def _begin(self, begun: Beginning) -> None:
        self.incarnation, self._table, self._receipts, self._join, self.is_continued = begun
        self._key_headers = forward_headers(str(self.address), self.incarnation, 0)[:-1]
        self._is_unheard = not self._receipts  # nothing of it was sent by this process
        self._begun_at = time.monotonic()

    def _end_of_data(self) -> tuple[Start, SequencerState]:
        with DataLog(self.connection, self.group, self.address.site) as log:
            end = log.end()
            state = log.state(end)
        return Start(end, Reader(state.epoch, state.seqno)), state

    def _ordered_since(self, seqno: int, end: int) -> Iterator[Data]:
        """This sender's records of DATA behind a seqno and below an offset. Raises HistoryUnavailable."""
        address = str(self.address)
        with DataLog(self.connection, self.group, self.address.site) as log:
            start = log.after(seqno, or_end=True)
            for stored in log.records(start.offset, end):
                data = stored.data
                if start.reader.accept(data.kind, data.epoch, data.seqno) is Verdict.TAKE and data.sender == address:
                    yield data

    def _new_producer(self) -> KafkaProducer:
        return self.connection.producer(linger_ms=LINGER_MS, batch_size=BATCH_BYTES)

    def _use(self, producer: KafkaProducer) -> None:
        self._producer = producer
        # One object for all of a producer's records: nothing is made for it on the hot path.
        self._on_failure = functools.partial(self._note_failure, producer)
        self._newest = None
        self._produce_failed = False

    # --- what applications call ---

    @property
    def was_told(self) -> bool:
        """Whether the application has heard why nothing more is sent."""
        return self._failure is not None and self._failure.was_told

    def check(self) -> None:
        """Raise what it has failed with, if it has."""
        with self._changed:
            self._raise_failure()

    def broadcast(self, payload: bytes, headers: Headers, timeout: float | None) -> Receipt:
        """Give the message its local seqno, keep it, send it.

        Raises ForwardTableFull, Blocked, Excluded, Superseded; BrokerUnreachable (for the first one of an old life).
        """
        with self._changed:
            self._raise_failure()
            size = message_bytes(payload, headers)
            # While it waits for one of them, it can lose the other.
            while self._is_shut or not self._table.has_room(size):
                if self._is_shut:
                    self._wait_for_the_flush(timeout)
                else:
                    self._wait_for_room(size, timeout)
            if self._refusal is not None:
                raise raised_again(self._refusal)
            return self._accept(payload, headers)

    def control(self, kind: str, payload: bytes = b"") -> Receipt:
        """The same for a control record. It finds room also in a full table: there are few, none waits for its turn."""
        with self._changed:
            self._raise_failure()
            if self._refusal is not None:
                raise raised_again(self._refusal)
            return self._accept(payload, control_headers(kind))

    def join(self) -> Receipt:
        """JOIN, unless this life has asked to join before: the receipt of that. Raises Excluded, Superseded."""
        if self._join is None:
            self._join = self.control(JOIN)
        return self._join

    @property
    def has_asked_to_join(self) -> bool:
        """Whether a JOIN of this life may be ordered."""
        return self._join is not None

    @property
    def is_stranded(self) -> bool:
        """Whether messages that are held stand before the JOIN that is missing: this life can't join any more."""
        with self._changed:
            first = next(self._table.pending(), None)
            return self._is_held and self._join is None and first is not None and not is_control(first)

    def _accept(self, payload: bytes, headers: Headers) -> Receipt:
        """Under the lock, and with room in the table."""
        if self._is_unheard:
            self._see_that_it_will_be_heard()
        if self._outbox is not None:
            self._outbox.append(self._table.last + 1, payload, headers)
        if not self._receipts:
            self._progress_at = time.monotonic()
        pending = self._table.append(payload, headers)
        receipt = Receipt(MessageId(str(self.address), self.incarnation, pending.local_seqno), self._changed)
        self._receipts.append(receipt)
        if not self._produce_failed and self._may_send(pending):
            self._send(pending)
        return receipt

    def _see_that_it_will_be_heard(self) -> None:
        """Before the first record of this life: take another, if the group has raised its floor above it meanwhile."""
        if time.monotonic() - self._begun_at > FRESH_S:
            _, state = self._end_of_data()
            with contextlib.closing(MemberMemory(self.connection, self.group, self.address)) as memory:
                begun = self._lives.renewed(memory, state, self.incarnation)
            if begun is not None:
                self._begin(begun)
        self._is_unheard = False

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
            if self._flush_id == flush_id and self._failure is None and not self._stopping.is_set():
                # Run from scratch, the flush in which the member was born waits for its messages, too.
                self._is_shut = False
                self._send_held_back()
                self._is_shut = True
                self._is_unheard = False  # it is asked as a member
                self._accept(b"%d" % flush_id, control_headers(FLUSH_OK))

    def shut(self, flush_id: int) -> None:
        """No message until the flush is over."""
        with self._changed:
            self._is_shut = self._flush_id == flush_id

    def flush_ends(self) -> None:
        """Messages may be sent again."""
        with self._changed:
            self._flush_id, self._is_shut = 0, False
            self._send_held_back()
            self._changed.notify_all()

    def hold(self) -> None:
        """Keep messages back, until `release`."""
        with self._changed:
            self._is_held = True

    def release(self) -> None:
        """Send what was held back: now, or after the flush in which the member was born."""
        with self._changed:
            self._has_held_back |= self._is_held
            self._is_held = False
            self._send_held_back()

    def _send_held_back(self) -> None:
        if self._has_held_back and not self._is_shut:
            self._has_held_back = False
            if not self._produce_failed:
                self._send_table()

    def hand_over(self, failure: AbcastError) -> list[Carried]:
        """What a life that is over had accepted, and the group has not ordered. All else fails with `failure`.

        Raises Superseded, or what else it has failed with.
        """
        with self._changed:
            self._raise_failure()
            self.has_handed_over = True
            # Receipts that have failed before are gone.
            entries = [Carried(*entry) for entry in itertools.zip_longest(self._table.pending(), self._receipts)]
            carried = [entry for entry in entries if not is_control(entry.pending)]
            self._receipts = deque(entry.receipt for entry in entries if is_control(entry.pending))
            self._failure = failure
            self._fail_receipts(failure)
            return carried

    def refuse(self, refusal: AbcastError) -> None:
        """Take nothing more; what was taken before goes on to be sent, and its receipts hold. Raises Superseded."""
        with self._changed:
            self._raise_failure()
            self._refusal = refusal

    def fail(self, failure: AbcastError) -> None:
        """Let everybody who waits, and whoever comes, hear of it."""
        with self._changed:
            self.has_handed_over = False
            self._failure = failure
            self._fail_receipts(failure)

    def wait_ordered(self, timeout: float | None) -> int | None:
        """Wait until all that was broadcast before is ordered; the last seqno of it. Raises NotOrderedInTime."""
        with self._changed:
            last = self._table.last
            self._changed.wait_for(
                lambda: self._failure is not None or self._stopping.is_set() or self._table.acknowledged >= last,
                timeout,
            )
            if self._table.acknowledged >= last:
                return self._last_seqno
            self._raise_failure()
            raise NotOrderedInTime(
                f"{last - self._table.acknowledged} messages of {self.address} were not ordered within "
                f"{round(timeout or 0, 2):g} s. Does the group's sequencer run (`abcast status`)?"
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
                self._outbox.acknowledge(self._table.acknowledged, self._last_seqno, at_once=True)
                self._outbox = None  # it may be a later life's from here on
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
        if is_control(pending):
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
            if self._may_send(pending):
                self._send(pending)

    def _may_send(self, pending: Pending) -> bool:
        return not self._is_held or is_control(pending)

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
        except AbcastError as error:
            _logger.warning("%s stops sending: %s", self.address, error)
            self.fail(error)
        except Exception as error:
            # Whatever it is, the applications that wait must hear of it.
            _logger.exception("%s stops sending", self.address)
            self.fail(AbcastError(f"{self.address} failed: {error!r}"))

    def _acknowledge(self, records: list[Effective]) -> None:
        own: list[Effective] = []
        for record in records:
            fields = record.fields
            if record.kind != MESSAGE and self._observer is not None:
                # What stands before it is ordered, also if it puts this member out of the view.
                self._apply(own)
                own.clear()
                self._observer.accept(record)
            # Other members' records, the most of them, cost no more than this comparison.
            if fields.get(H_SENDER) != self._sender:
                continue
            incarnation = int(fields[H_INCARNATION])
            if incarnation > self.incarnation:
                self._apply(own)
                raise self._lives.superseded(incarnation, self.incarnation)
            if incarnation == self.incarnation:
                own.append(record)
        self._apply(own)

    def _apply(self, own: list[Effective]) -> None:
        """`own`: what is ordered of this incarnation. Raises Superseded if that is not what was sent."""
        if not own and self._outbox is None:
            return
        with self._changed:
            for record in own:
                local_seqno = int(record.fields[H_LOCAL_SEQNO])
                if not self._is_ours(local_seqno, record):
                    raise self._lives.shared(self.incarnation, local_seqno)
                for _ in range(self._table.acknowledge(local_seqno)):
                    receipt = self._receipts.popleft() if self._receipts else None  # none if it has failed
                    if receipt is not None:
                        receipt.resolve(record.seqno)
                self._last_seqno = record.seqno
            if self._outbox is not None:
                self._outbox.acknowledge(self._table.acknowledged, self._last_seqno)
            if own:
                self._progressed()

    def _is_ours(self, local_seqno: int, record: Effective) -> bool:
        """Whether what was ordered under that id is what was sent under it."""
        if local_seqno <= self._table.acknowledged:
            return True
        ours = next((entry for entry in self._table.pending() if entry.local_seqno == local_seqno), None)
        return ours is not None and is_same(ours, record.kind, record.value or b"", record.headers)

    def _progressed(self) -> None:
        self._progress_at = time.monotonic()
        self._resends = 0
        self._changed.notify_all()

    def _catch_up(self, gone: HistoryUnavailable) -> None:
        """Retention overtook us (the process was suspended): learn from the state what was ordered meanwhile."""
        try:
            start, state = self._end_of_data()
        except BrokerUnreachable:
            time.sleep(POLL_S)
            return
        ordered = state.ordered(str(self.address))
        if ordered.incarnation > self.incarnation:
            raise self._lives.superseded(ordered.incarnation, self.incarnation)
        with self._changed:
            if ordered.incarnation == self.incarnation:
                for _ in range(self._table.acknowledge(ordered.local_seqno)):
                    receipt = self._receipts.popleft() if self._receipts else None
                    if receipt is not None:
                        receipt.fail(HistoryUnavailable(f"{receipt.message_id} is ordered, but as which seqno? {gone}"))
            self._progressed()
        self._cursor = DataCursor(self._memory.consumer, self._memory.data, start)
        if self._observer is not None:
            self._observer.catch_up(state)

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

    def begin(self, forwarder: Forwarder, state: SequencerState) -> None:
        """The state of the log where the forwarder begins to read."""

    def catch_up(self, state: SequencerState) -> None:
        """The state of the log from where it reads on, after records that retention has dropped."""

    def accept(self, record: Effective) -> None:
        """The next control record."""


def abandon(producer: KafkaProducer) -> None:
    """Close a producer at once, whatever it still holds: the forward table has it."""
    # kafka-python's close does not stop its thread when records are left, and does not wait for it with timeout 0.
    producer._sender.force_close()  # noqa: SLF001 - there is no public way
    producer._sender.join(5)  # noqa: SLF001 - there is no public way
    try:
        producer.close(timeout=0)
    except KafkaError:
        _logger.warning("a producer did not stop; it goes with the process")
