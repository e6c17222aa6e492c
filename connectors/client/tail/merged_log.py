"""Read a group's DATA and casts together, and deliver them in the order of `ordering.casts.merging`.

Invariant. A delivered record stays in `ready` until the caller takes it from there. `behind` is the place behind the
last delivery: a reader that begins there delivers exactly the later records.

Bounded, as docs/protocols/causal.md says. A cast that finds the queue full is read again later: when there is room, or
when the merger has moved and no more casts come. If casts do not cease to come, it is read again after AGAIN_AFTER_S.
Each reading in vain doubles that time, since the cast that is needed may lie far behind. While the queue for DATA is
full, no more DATA is read.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kafka.structs import TopicPartition

from connectors.client.tail.cast_buffer import Found
from connectors.client.tail.cast_reader import CastReader, CastTopics
from connectors.client.tail.log_tailer import LogTailer
from connectors.kafka.codec.headers import depends_of
from connectors.kafka.log.data_log import Start
from connectors.kafka.log.effective import Effective
from ordering.base.reader import Reader
from ordering.base.records import MESSAGE, VIEW
from ordering.casts.casts import NO_VIEW, Cast, CastStep, CastVerdict, OrderedRecord
from ordering.casts.merging import MergedState, Merger
from ordering.membership.membership import MemberIncarnation

AGAIN_AFTER_S = 1.0
MAX_AGAIN_AFTER_S = 60.0
SITES_APPEAR_S = 60.0
"""Seconds after a view in which a topic of one of its sites may still appear. Later, there may never be one."""


class Begin(NamedTuple):
    """The place where a merged log begins: DATA at `start`, casts at `offsets`, with `state`.

    `first` holds records that are delivered before all others.
    """

    start: Start
    state: MergedState
    offsets: Mapping[TopicPartition, int]
    first: tuple[Cast | OrderedRecord, ...] = ()


class MergedLog:
    """DATA and casts of a group, merged. Not thread-safe. `close` it."""

    def __init__(self, tailer: LogTailer, topics: CastTopics, begin: Begin) -> None:
        """Open both readers. Raises BrokerUnreachable."""
        self.merger = Merger(begin.state)
        self.ready: deque[Cast | OrderedRecord] = deque(begin.first)
        self._start = begin.start
        self._log_reader = tailer.read_from(begin.start)
        self._cast_reader = CastReader(topics, begin.offsets, tailer.wake)
        self._unread: deque[OrderedRecord] = deque()
        self._held: dict[tuple[MemberIncarnation, int, int], tuple[TopicPartition, int]] = {}
        self._full_at: dict[TopicPartition, int] = {}
        self._full_since = 0.0
        self._again_after_s = AGAIN_AFTER_S
        self._progress = 0
        self._sites: set[str] = set()
        self._sites_of = NO_VIEW
        self._sites_since = 0.0
        self._is_closed = False

    @property
    def position(self) -> int:
        """Return the offset of the next record of DATA to read."""
        return self._log_reader.position

    def read(self, timeout: float) -> list[Found]:
        """Read on; return the casts that came, and keep the DATA for `step`. Wait up to `timeout` seconds for either.

        Raises as `LogReader.poll` and `CastReader.take` do.
        """
        if not self._unread:
            records = self._log_reader.poll(timeout, lambda: self._cast_reader.has_news)
            self._unread.extend(map(ordered, records))
        elif not self._cast_reader.has_news:
            self._log_reader.pause(timeout, lambda: self._cast_reader.has_news)
        return self._cast_reader.take()

    def step(self, found: Sequence[Found]) -> None:
        """Take the casts `found` and the DATA read before, and deliver every record that can be delivered."""
        self._read_data()
        for place, offset, cast in found:
            step = self._take(cast)
            if step.verdict is CastVerdict.HOLD:
                self._held[_key(cast)] = place, offset
            elif step.verdict is CastVerdict.FULL:
                if not self._full_at:
                    self._full_since = time.monotonic()
                self._full_at.setdefault(place, offset)
        if found:
            self._read_data()
        self._cast_reader.is_awaited = self._awaits_others()
        self._read_again(is_idle=not found and not self._unread)

    def _awaits_others(self) -> bool:
        """Whether casts may come from a topic that is not read yet: a message waits for casts, or a site is new."""
        causal = self.merger.causal
        if self._sites_of != causal.view:
            self._sites_of, self._sites_since = causal.view, time.monotonic()
            self._sites = {member.address.partition("/")[0] for member in causal.members}
        if causal.waiting > 0 or causal.held.budget.holding > 0:
            return True
        if len(self._sites) < 2 or time.monotonic() - self._sites_since >= SITES_APPEAR_S:
            return False
        return not self._sites <= {place.topic.rpartition(".")[2] for place in self._cast_reader.next}

    def _read_data(self) -> None:
        while self._unread:
            record = self._unread[0]
            is_plain = record.kind == MESSAGE and record.depends is None
            if is_plain and self.merger.pass_message(record.seqno):
                self._deliver(record)
            elif self._take(record).verdict is CastVerdict.FULL:
                return
            self._unread.popleft()

    def _take(self, record: Cast | OrderedRecord) -> CastStep:
        step = self.merger.step(record)
        for delivery in step.deliveries:
            self._deliver(delivery)
        for cast in step.dropped:
            self._held.pop(_key(cast), None)
        return step

    def _deliver(self, record: Cast | OrderedRecord) -> None:
        self.ready.append(record)
        if isinstance(record, Cast):
            self._held.pop(_key(record), None)
        elif isinstance(record.record, Effective):
            effective = record.record
            self._start = Start(effective.offset + 1, Reader(effective.epoch, effective.seqno))

    def _read_again(self, *, is_idle: bool) -> None:
        """Go back to where the queue was full, if that may help."""
        if not self._full_at:
            return
        has_moved = self.merger.progress != self._progress
        has_room, has_waited = self.merger.is_half_empty, time.monotonic() - self._full_since >= self._again_after_s
        if has_room or (has_moved and (is_idle or has_waited)):
            self._again_after_s = AGAIN_AFTER_S if has_room else min(2 * self._again_after_s, MAX_AGAIN_AFTER_S)
            self._progress = self.merger.progress
            self._cast_reader.again(self._full_at)
            self._full_at = {}

    @property
    def behind(self) -> Begin:
        """Return the place where another reader goes on behind everything delivered here."""
        offsets = dict(self._cast_reader.next)
        for place, offset in (*self._held.values(), *self._full_at.items()):
            offsets[place] = min(offsets[place], offset)
        return Begin(self._start, self.merger.state, offsets)

    def close(self) -> None:
        """Disconnect."""
        if not self._is_closed:
            self._is_closed = True
            self._cast_reader.close()
            self._log_reader.close()


def _key(cast: Cast) -> tuple[MemberIncarnation, int, int]:
    return cast.member, cast.view, cast.local_seqno


def ordered(record: Effective) -> OrderedRecord:
    """Return a record of DATA as the core's `OrderedRecord`. Raises ProtocolViolation for a view that is unreadable."""
    depends = depends_of(record.headers) if record.headers else None
    if record.kind != VIEW:
        return OrderedRecord(
            record.seqno,
            record.kind,
            record.sender,
            record.incarnation,
            record.local_seqno,
            depends,
            payload=b"" if record.kind == MESSAGE else record.value or b"",
            record=record,
        )
    return OrderedRecord.of_view(record.seqno, record.view, record.value or b"", record)
