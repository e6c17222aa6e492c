"""Go-back-N: send a sender's table to the log, and begin again whenever a record of it fails.

Source: SEQUENCER (docs/sources.md), "Reliability on failover": when in doubt, send everything in the table again, in
increasing order. The receiver, a sequencer or an inbox's rule, drops duplicates, and records that follow a gap.

Invariant. Either one producer has got the table in its order, except the newest entries, which its owner gathers; or
`has_failed` is true, nothing is sent, and a new producer gets the whole table later. A producer keeps its records in
order up to the first that fails (`connectors.kafka.transport.seam`). So in the end the log has the whole table in
order. Records from earlier producers, even late ones, are duplicates, or follow a gap. They do no harm.

Why a new producer: the old one may be in a state in which it takes no more records, and may still be sending others. A
crash at any point leaves the table as it was (with an outbox), and the next start sends all of it.

The lock. `changed` is the lock of the table. `send` and `send_table` are called under it, so broadcasts and resends
take turns. Failures are noted without it: the producer's thread notes them, and must not wait. Nor may it send.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from kafka.errors import KafkaError

from connectors.client.tail.producers import Producers
from connectors.kafka.transport import Producer, Sent
from ordering.base.errors import BrokerUnreachable, KafkaRefused

FAILED_RESEND_S = 0.2
MAX_RESEND_S = 30.0
"""FAILED_RESEND_S is the time before a failed produce request is repaired. That time and `resend_after_s` double with
each resend, up to MAX_RESEND_S.
"""

BUSY_RECORDS = 4
"""With so many records on their way a table counts as busy: the next ones may wait for one of them, and gather. Two or
three are on their way at 1,000 messages a second.
"""

STUCK_PRODUCER_S = 150.0
"""Seconds after which a producer is replaced: by then it should have given up on its record, which takes 120 s."""

_logger = logging.getLogger(__name__)


def resend_wait_s(first_s: float, resends: int) -> float:
    """Return the seconds without progress before the next resend, after so many in vain."""
    return min(first_s * 2.0 ** min(resends, 20), max(first_s, MAX_RESEND_S))


class GoBackN:
    """The sender of one table.

    While the table has records, a thread has to call `send_again_if_due`. Call `close` at the end.
    """

    def __init__(
        self,
        producers: Producers,
        producer: Producer,
        who: str,
        changed: threading.Condition,
        send_table: Callable[[], object],
        resend_after_s: float | None = None,
    ) -> None:
        """Make a sender.

        Args:
            producers: leases a new producer after a failure.
            producer: leased from `producers`; `close` releases it.
            who: names the sender in warnings.
            changed: the lock of the table.
            send_table: sends all of the table.
            resend_after_s: seconds without progress after which `send_table` is called although nothing has failed.
        """
        self.has_failed = False
        """Whether a record has failed: until a new producer has the table, records only enter it."""
        self._producers = producers
        self._who = who
        self._changed = changed
        self._send_table = send_table
        self._resend_after = resend_after_s
        self._resends = 0  # since the last progress
        self._progress_at = time.monotonic()
        self._is_closed = False
        self._use(producer)

    def _use(self, producer: Producer) -> None:
        self._producer = producer
        # One object for all of a producer's records: nothing is made for it on the hot path.
        self._on_failure = functools.partial(self._note_failure, producer)
        self._last: deque[Sent] = deque(maxlen=BUSY_RECORDS)
        """The last records that were sent, the newest one at the end. They get done in their order."""
        self.has_failed = False

    @property
    def is_busy(self) -> bool:
        """Whether BUSY_RECORDS or more are on their way."""
        return len(self._last) == BUSY_RECORDS and not self._last[0].is_done

    def when_less_busy(self, call: Callable[[object], object]) -> None:
        """Call `call` when fewer records are on their way, unless one fails. The producer's thread calls it."""
        self._last[0].add_callback(call)

    def send(self, topic: str, key: bytes, value: bytes, headers: list[tuple[str, bytes]]) -> Sent | None:
        """Send the table's next record; return None if it has to wait for a new producer."""
        if self.has_failed:
            return None
        try:
            sent = self._producer.send(topic, value=value, key=key, headers=headers)
        except KafkaError as error:
            self.note_failure(error)
            return None
        sent.add_errback(self._on_failure)
        self._last.append(sent)
        return sent

    def note_failure(self, why: object) -> None:
        """Note that a record of the table has failed, or is not where it should be: send nothing until the repair."""
        if not self.has_failed and not self._is_closed:
            _logger.warning("%s: a produce request failed (%r); sending again soon", self._who, why)
        self.has_failed = True

    def _note_failure(self, producer: Producer, error: BaseException) -> None:
        if producer is self._producer:
            self.note_failure(error)

    def note_progress(self) -> None:
        """Note that the table's first record has arrived, or that an empty table gets one."""
        self._progress_at = time.monotonic()
        self._resends = 0

    def send_again_if_due(self) -> bool:
        """Send the table again after a failure, or after too long without progress; return whether it was sent.

        Called without the lock.

        After a failure, first change to a new producer. If none can be opened, warn, and leave that to a later call.
        """
        now = time.monotonic()
        waited = now - self._progress_at
        if not self.has_failed and self._last and not self._last[-1].is_done:
            # The producer still tries (the broker is away) and has it all; sending again would only add to it.
            if waited <= STUCK_PRODUCER_S:
                return False
            self.note_failure("the producer is stuck")
        first = FAILED_RESEND_S if self.has_failed else self._resend_after
        if first is None or waited < resend_wait_s(first, self._resends):
            return False
        self._resends += 1
        self._progress_at = now
        fresh: Producer | None = None
        if self.has_failed:
            try:
                fresh = self._producers.lease(instead_of=self._producer)
            except (BrokerUnreachable, KafkaRefused) as error:
                _logger.warning("%s: %s", self._who, error)
                return False
        with self._changed:
            _logger.info("%s: no progress for %.1f s; sending again", self._who, waited)
            old = self._producer
            if fresh is not None:
                self._use(fresh)
            self._send_table()
        if fresh is not None:
            self._producers.release(old)
        return True

    def flush(self) -> None:
        """Wait until all sent records are in the log, or have failed."""
        self._producer.flush()

    def close(self) -> None:
        """Stop. Records in flight may still arrive; the table has them in any case."""
        self._is_closed = True
        self._producers.release(self._producer)
