"""Send a member's letters to other members, in order for each receiver, until Kafka has them.

A letter goes to the inbox topic of the receiver's site *in the sender's own Kafka*. If that site has another Kafka, a
relay copies the topic. No sequencer is involved. The receiver sends no acknowledgement: the log is durable.

Invariant. The table holds, in the order of sending, all letters that are not *acknowledged*. A letter is acknowledged
when the produce requests of it and of all earlier letters have succeeded, and its record lies behind the records of all
earlier acknowledged letters in its partition. So the receiver's rule (`ordering.letters.inbox`), which drops a letter
that follows a gap, accepts every acknowledged one.

After a failed request a new producer sends the table from its beginning, including letters that succeeded behind the
failure, since they followed a gap. The receiver drops repeats (`connectors.client.tail.go_back_n`).

A letter enters the table by one call into C, and what counts the letters follows from the table. So an exception in the
middle of `send` (Ctrl-C) leaves a letter that is sent again like one that failed, or none.

A crash loses the table: the letters whose receipts have no result. The next start has a new incarnation, whose letters
count from 1, so no gap is left.

The lock. `_changed` guards the table; no other lock is taken under it.
"""

import contextlib
import logging
import threading
from collections import deque
from dataclasses import dataclass

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.client.tail.go_back_n import GoBackN
from connectors.client.tail.sharing import share
from connectors.client.values.condition import Condition
from connectors.client.values.letter import LetterReceipt
from connectors.client.values.promise import raised_again
from connectors.client.values.sending_limits import SendingLimits
from connectors.client.values.thread_on_demand import ThreadOnDemand
from connectors.kafka.codec.letter_codec import letter_headers
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import inbox_partitions
from connectors.kafka.transport import Sent
from ordering.base.errors import AbcastError, LetterTableFull, NotWrittenInTime, UsageError
from ordering.base.names import Address
from ordering.base.records import LETTER, Headers
from ordering.participant.forward_table import message_bytes

POLL_S = 0.1

_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Entry:
    """A letter that is not acknowledged. `sent` is its newest produce request; None if there was none yet."""

    topic: str
    payload: bytes
    headers: list[tuple[str, bytes]]
    size: int
    behind: int
    """The bytes of the letters before it, counted from any place."""
    receipt: LetterReceipt
    sent: Sent | None = None


class LetterSender:
    """The sender of one incarnation's letters. Thread-safe. `close` it, or its thread runs to the process's end."""

    def __init__(
        self, connection: Connection, group: str, address: Address, incarnation: int, limits: SendingLimits
    ) -> None:
        """Start the thread. `incarnation` is higher than in every earlier start that sent letters.

        Raises BrokerUnreachable.
        """
        self.connection = connection
        self.group = group
        self.address = address
        self.incarnation = incarnation
        self.limits = limits
        self._topics: dict[str, str] = {}  # by site
        self._changed = Condition()
        self._stopping = threading.Event()
        self._failure: AbcastError | None = None
        self._table: deque[_Entry] = deque()
        self._last: dict[str, int] = {}
        """The last local seqno, by receiver, without the table's newest letter."""
        self._written: dict[TopicPartition, int] = {}  # the offset of the last acknowledged record
        self._shared = share(connection)
        try:
            producer = self._shared.producers.lease()
        except BaseException:
            self._shared.release()
            raise
        who = f"{address}'s letters"
        self._sending = GoBackN(self._shared.producers, producer, who, self._changed, self._send_table)
        self._thread = ThreadOnDemand(f"abcast-letters-{group}-{address}", self._run)
        try:
            self._thread.begin()
        except BaseException:
            self.close()
            raise

    # --- called by applications ---

    def send(
        self, receiver: Address, payload: bytes, headers: Headers, timeout: float | None, kind: str = LETTER
    ) -> LetterReceipt:
        """Number the letter, keep it, send it, and return its receipt. Waits up to `timeout` seconds for room.

        Raises LetterTableFull; TopicMissing, BrokerUnreachable, KafkaRefused from looking up the receiver's inbox;
        UsageError if the sender is closed; the error that has ended its thread.
        """
        topic, to = self._inbox_topic(receiver.site), str(receiver)
        size = message_bytes(payload, headers)
        with self._changed:
            self._wait_for_room(size, timeout)
            self._number_newest()
            local_seqno = self._last.get(to, 0) + 1
            receipt = LetterReceipt(to, self.incarnation, local_seqno, self._changed)
            wire = letter_headers(str(self.address), self.incarnation, local_seqno, headers, kind)
            entry = _Entry(topic, payload, wire, size, self._bytes_up_to_newest, receipt)
            if not self._table:
                self._sending.note_progress()
                self._changed.notify_all()  # the thread waits for work
            self._table.append(entry)
            self._produce(entry)
        return receipt

    def wait_written(self, timeout: float | None) -> None:
        """Wait until all letters sent before are acknowledged.

        Raises NotWrittenInTime, and the error that has ended the thread.
        """
        with self._changed:
            if not self._table:
                return
            newest = self._table[-1]
            self._changed.wait_for(newest.receipt.done, timeout)
            if newest not in self._table:
                return
            self._raise_failure()
            raise NotWrittenInTime(
                f"{len(self._table)} letters of {self.address} were not written within {timeout:g} s. Does Kafka run?"
            )

    def close(self) -> None:
        """Stop at once. Letters that are not acknowledged may be lost: their receipts raise NotWrittenInTime."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(self.connection.timeout + 5)
        self._sending.close()
        self._shared.release()
        with self._changed:
            self._fail_receipts(
                NotWrittenInTime(f"{self.address} was closed before its letter was written. It may still be written.")
            )

    def _inbox_topic(self, site: str) -> str:
        topic = self._topics.get(site)
        if topic is None:
            with contextlib.closing(self.connection.consumer()) as consumer:
                topic = inbox_partitions(self.connection, consumer, self.group, site)[0].topic
            self._topics[site] = topic
        return topic

    # --- under the lock ---

    @property
    def _bytes_up_to_newest(self) -> int:
        return self._table[-1].behind + self._table[-1].size if self._table else 0

    @property
    def _bytes(self) -> int:
        return self._bytes_up_to_newest - self._table[0].behind if self._table else 0

    def _number_newest(self) -> None:
        """Count the table's newest letter. Called before another is the newest, or it leaves the table."""
        if self._table:
            newest = self._table[-1].receipt
            self._last[newest.receiver] = newest.local_seqno

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise raised_again(self._failure)
        if self._stopping.is_set():
            raise UsageError(f"{self.address} is closed.")

    def _wait_for_room(self, size: int, timeout: float | None) -> None:
        has_room = self._changed.wait_for(
            lambda: (
                self.limits.allow(len(self._table), self._bytes, size)
                or self._failure is not None
                or self._stopping.is_set()
            ),
            timeout,
        )
        self._raise_failure()
        if not has_room:
            raise LetterTableFull(
                f"{len(self._table)} letters of {self.address} wait for Kafka, and there was no room for another "
                f"within {timeout:g} s. Does Kafka run? Send again later, or raise max_pending_records."
            )

    def _produce(self, entry: _Entry) -> None:
        key = entry.receipt.receiver.encode("ascii")
        entry.sent = self._sending.send(entry.topic, key, entry.payload, entry.headers)

    def _send_table(self) -> None:
        for entry in self._table:
            self._produce(entry)

    def _fail_receipts(self, error: AbcastError) -> None:
        for entry in self._table:
            entry.receipt.fail(error)
        self._changed.notify_all()

    # --- the thread ---

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                with self._changed:
                    self._changed.wait_for(lambda: self._table or self._stopping.is_set())
                    head = self._table[0].sent if self._table else None
                if head is None or self._sending.has_failed:
                    self._stopping.wait(POLL_S)
                else:
                    _wait_for(head, POLL_S)
                self._acknowledge()
                if self._table:
                    self._sending.send_again_if_due()
        except Exception as error:
            # Any error must reach the waiting application.
            _logger.error("%s stops sending letters", self.address, exc_info=not isinstance(error, AbcastError))
            failure = error if isinstance(error, AbcastError) else AbcastError(f"{self.address} failed: {error!r}")
            with self._changed:
                self._failure = failure
                self._fail_receipts(failure)

    def _acknowledge(self) -> None:
        with self._changed:
            self._number_newest()
            before = len(self._table)
            if self._table and self._table[0].sent is None:
                self._sending.note_failure("its call was interrupted")
            while self._table and (sent := self._table[0].sent) is not None and sent.is_done:
                if not self._is_written(sent):
                    break
                entry = self._table.popleft()
                entry.receipt.resolve(entry.receipt.local_seqno)
            if len(self._table) < before:
                self._sending.note_progress()
                self._changed.notify_all()

    def _is_written(self, sent: Sent) -> bool:
        """Whether the table's first letter, whose request is done, is written where the invariant wants it.

        If not, note a failure: the table is sent again.
        """
        if sent.failed():
            self._sending.note_failure(sent.exception)
            return False
        place, offset = sent.value.topic_partition, sent.value.offset
        if offset <= self._written.get(place, -1):
            self._sending.note_failure(f"{place.topic}-{place.partition}:{offset} is below an earlier letter")
            return False
        self._written[place] = offset
        return True


def _wait_for(sent: Sent, timeout: float) -> None:
    with contextlib.suppress(KafkaError):  # `sent` itself tells of a failure, or that it is not done
        sent.get(timeout)
