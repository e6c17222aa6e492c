"""Go-back-N: one sender's table on its way to the log, begun again whenever a record of it fails.

Source: SEQUENCER (docs/sources.md), "Reliability on failover": when in doubt, send everything in the table again, in
increasing order. The receiver of it, a sequencer or the rule of an inbox, drops duplicates, and whatever follows a gap.

Invariant. For each table there is a producer that got all of it, in its order, since that producer's first record; or
`has_failed` is true, nothing is sent, and a new producer gets all of it later. A producer keeps what it got in order up
to the first record that fails (`connectors.kafka.transport.seam`). So the log has the whole table in order at last.
What producers before it have left there, or still bring, are duplicates, or records behind a gap. They do no harm.

Why a new producer: the old one may be in a state in which it takes nothing more, and its other records may be underway.
A crash at any point leaves the table as it was (with an outbox), and the next start sends all of it.

`changed` is the lock of the table. `send` and `send_table` are called under it, so broadcasts and resends take turns.
Failures are noted without it, since they come from the producer's thread, which must not wait.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable

from kafka.errors import KafkaError

from connectors.client.tail.producers import Producers
from connectors.kafka.transport import Producer, Sent
from ordering.base.errors import BrokerUnreachable, KafkaRefused

FAILED_RESEND_S = 0.2
MAX_RESEND_S = 30.0
"""A failed produce request is repaired after the first; both it and `resend_after_s` double up to the second."""

STUCK_PRODUCER_S = 150.0
"""Longer than the 120 s in which a producer gives up on a record: if it did not, it is replaced."""

_logger = logging.getLogger(__name__)


class GoBackN:
    """The sending of one table. While that has records, its sender's thread asks `send_again_if_due`. `close` it."""

    def __init__(
        self,
        producers: Producers,
        producer: Producer,
        who: str,
        changed: threading.Condition,
        send_table: Callable[[], object],
        resend_after_s: float | None = None,
    ) -> None:
        """`producer`: leased from `producers`, and released by `close`. `send_table` sends all of the table.
        `resend_after_s`: after so many seconds without progress it is called, although nothing has failed.
        """
        self.has_failed = False
        """A record has failed: until a new producer has the table, records only enter it."""
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
        self._newest: Sent | None = None
        self.has_failed = False

    def send(self, topic: str, key: bytes, value: bytes, headers: list[tuple[str, bytes]]) -> Sent | None:
        """The table's next record; None if it is to wait for a new producer."""
        if self.has_failed:
            return None
        try:
            sent = self._producer.send(topic, value=value, key=key, headers=headers)
        except KafkaError as error:
            self.note_failure(error)
            return None
        sent.add_errback(self._on_failure)
        self._newest = sent
        return sent

    def note_failure(self, why: object) -> None:
        """Something of the table is not where it should be."""
        if not self.has_failed and not self._is_closed:
            _logger.warning("%s: a produce request failed (%r); sending again soon", self._who, why)
        self.has_failed = True

    def _note_failure(self, producer: Producer, error: BaseException) -> None:
        if producer is self._producer:
            self.note_failure(error)

    def note_progress(self) -> None:
        """The table's first record has arrived, or there is a first one now."""
        self._progress_at = time.monotonic()
        self._resends = 0

    def send_again_if_due(self) -> None:
        """Send the table again after a failure, or if nothing came of it for too long. Called without the lock."""
        now = time.monotonic()
        waited = now - self._progress_at
        if not self.has_failed and self._newest is not None and not self._newest.is_done:
            # A producer that is still at it (the broker is away) will send it all; sending again only adds to it.
            if waited <= STUCK_PRODUCER_S:
                return
            self.note_failure("the producer is stuck")
        first = FAILED_RESEND_S if self.has_failed else self._resend_after
        if first is None or waited < min(first * 2 ** min(self._resends, 20), max(first, MAX_RESEND_S)):
            return
        self._resends += 1
        self._progress_at = now
        fresh: Producer | None = None
        if self.has_failed:
            try:
                fresh = self._producers.lease(instead_of=self._producer)
            except (BrokerUnreachable, KafkaRefused) as error:
                _logger.warning("%s: %s", self._who, error)
                return
        with self._changed:
            _logger.info("%s: no progress for %.1f s; sending again", self._who, waited)
            old = self._producer
            if fresh is not None:
                self._use(fresh)
            self._send_table()
        if fresh is not None:
            self._producers.release(old)

    def flush(self) -> None:
        """Wait until what was sent is in the log, or has failed."""
        self._producer.flush()

    def close(self) -> None:
        """Stop. What is on its way may arrive yet; the table has it in any case."""
        self._is_closed = True
        self._producers.release(self._producer)
