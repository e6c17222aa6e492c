"""Read a group's DATA and casts together, and deliver them in the order of `ordering.casts.merging`.

Invariant. A delivered record stays in `ready` until the caller takes it from there. `behind` is the place behind the
last delivery: a reader that begins there delivers exactly the later records.

Bounded, as docs/protocols/causal.md says. A cast that finds the queue full is read again later: when there is room, or
when the merger has moved and no more casts come. If casts do not cease to come, it is read again after AGAIN_AFTER_S.
Each reading in vain doubles that time, since the cast that is needed may lie far behind. While the queue for DATA is
full, no more DATA is read.

If DATA waits for STALL_S, the log sees whether it waits in vain (`ordering.casts.stalls`), and ends if it does. Casts
of the site's own members were in its own topic before DATA counted them. Another site's casts may be on their way
for any time: the log waits, and says so.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kafka.structs import TopicPartition

from connectors.client.tail.cast_buffer import Found
from connectors.client.tail.cast_reader import CastReader, CastTopics
from connectors.client.tail.log_tailer import LogTailer
from connectors.kafka.codec.headers import depends_of
from connectors.kafka.codec.seldom import warn_seldom
from connectors.kafka.log.data_log import Start
from connectors.kafka.log.effective import Effective, next_offsets
from ordering.base.errors import CastMissing
from ordering.base.reader import Reader
from ordering.base.records import MESSAGE, VIEW
from ordering.casts.casts import NO_VIEW, Cast, CastStep, CastVerdict, OrderedRecord
from ordering.casts.merging import MergedState, Merger
from ordering.casts.stalls import Stall
from ordering.membership.membership import MemberIncarnation

AGAIN_AFTER_S = 1.0
MAX_AGAIN_AFTER_S = 60.0
SITES_APPEAR_S = 60.0
"""Seconds after a view in which a topic of one of its sites may still appear. Later, there may never be one."""

STALL_S = 30.0
"""Seconds that DATA waits for casts before the log sees whether it waits in vain."""

_logger = logging.getLogger(__name__)


class Begin(NamedTuple):
    """The place where a merged log begins: DATA at `start`, casts at `offsets`, with `state`.

    `first` holds records that are delivered before all others. `new_up_to`: casts of views up to this seqno are not
    delivered. `start` may be an earlier place, in an earlier view.
    """

    start: Start
    state: MergedState
    offsets: Mapping[TopicPartition, int]
    first: tuple[Cast | OrderedRecord, ...] = ()
    new_up_to: int = 0


class MergedLog:
    """DATA and casts of a group, merged. Not thread-safe. `close` it."""

    def __init__(self, tailer: LogTailer, topics: CastTopics, begin: Begin) -> None:
        """Open both readers. Raises BrokerUnreachable."""
        self.merger = Merger(begin.state)
        self.ready: deque[Cast | OrderedRecord] = deque(begin.first)
        self._start = begin.start
        self._new_up_to = begin.new_up_to
        self._log_reader = tailer.read_from(begin.start)
        self._cast_reader = CastReader(topics, begin.offsets, tailer.wake)
        self._casts = self._cast_reader.buffer
        self._unread: deque[OrderedRecord] = deque()
        self._held: dict[tuple[MemberIncarnation, int, int], tuple[TopicPartition, int]] = {}
        self._full_at: dict[TopicPartition, int] = {}
        self._full_since = 0.0
        self._again_after_s = AGAIN_AFTER_S
        self._progress = 0
        self._sites: set[str] = set()
        self._sites_of = NO_VIEW
        self._sites_since = 0.0
        self._site = topics.site
        self._stalled_at = 0
        self._judges_at_s = 0.0
        self._asks_for_end = False
        self._is_closed = False

    @property
    def position(self) -> int:
        """Return the offset of the next record of DATA to read."""
        return self._log_reader.position

    def ask_for_end(self) -> None:
        """Note where the casts end now, for `has_taken_all`."""
        self._casts.ask_for_end()

    @property
    def has_taken_all(self) -> bool:
        """Whether the log has taken all casts that there were when it was last asked for their end."""
        return self._casts.has_taken_all

    def read(self, timeout: float) -> list[Found]:
        """Read on; return the casts that came, and keep the DATA for `step`. Wait up to `timeout` seconds for either.

        Raises as `LogReader.poll` and `CastBuffer.take` do.
        """
        if not self._unread:
            records = list(self._log_reader.poll(timeout, lambda: self._casts.has_news))
            self._unread.extend(map(ordered, records, next_offsets([record.offset for record in records])))
        elif not self._casts.has_news:
            self._log_reader.pause(timeout, lambda: self._casts.has_news)
        return self._casts.take()

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
        self._see_whether_stalled()

    def _see_whether_stalled(self) -> None:
        """Raise CastMissing once it is known that the first waiting DATA record waits in vain."""
        causal, now = self.merger.causal, time.monotonic()
        if not causal.waiting or causal.seqno != self._stalled_at:
            self._stalled_at, self._judges_at_s, self._asks_for_end = causal.seqno, now + STALL_S, False
            return
        if now < self._judges_at_s:
            return
        self._judges_at_s = now + AGAIN_AFTER_S
        if not self._asks_for_end:
            self._asks_for_end = True
            self._casts.ask_for_end()
        if self._full_at and self.merger.progress != self._progress:
            return  # casts that found no room are to be read again
        for stall in causal.stalls():
            if stall.missing is None or (self._is_own(stall.missing) and self._casts.has_taken_all):
                raise CastMissing(self._why(stall))
            if not self._is_own(stall.missing):
                warn_seldom(
                    _logger,
                    "seqno %d of %s, and all behind it, wait for cast %d of %s, which has not arrived at this site. "
                    "Does that site's relay run? If there is no such cast, start this process again.",
                    stall.record.seqno,
                    stall.record.sender,
                    stall.number,
                    stall.missing.address,
                )

    def _is_own(self, member: MemberIncarnation) -> bool:
        return member.address.partition("/")[0] == self._site

    def _why(self, stall: Stall) -> str:
        seqno, sender = stall.record.seqno, stall.record.sender
        what = "records that wait for each other"
        if stall.missing is not None:
            what = f"cast {stall.number} of {stall.missing.address}, which is not in the topic of its site"
        return (
            f"seqno {seqno} waits for {what}. The client of {sender}, which has sent it, counts casts wrongly "
            f"(abcast-depends), or the topic has lost casts. Stop or mend that client. Then start again: a new Member "
            f"begins with its view, and deliveries(from_seqno={seqno}) at that message."
        )

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
        return not self._sites <= {place.topic.rpartition(".")[2] for place in self._casts.next}

    def _read_data(self) -> None:
        while self._unread:
            record = self._unread[0]
            if record.kind == VIEW and record.seqno <= self._new_up_to:
                self.merger.causal.new_before = max(self.merger.causal.new_before, record.view + 1)
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
            # Not behind the record: a pack may have further messages. The reading rule drops the delivered ones.
            self._start = Start(effective.offset, Reader(effective.epoch, effective.seqno))

    def _read_again(self, *, is_idle: bool) -> None:
        """Go back to where the queue was full, if that may help."""
        if not self._full_at:
            return
        has_moved = self.merger.progress != self._progress
        has_room, has_waited = self.merger.is_half_empty, time.monotonic() - self._full_since >= self._again_after_s
        if has_room or (has_moved and (is_idle or has_waited)):
            self._again_after_s = AGAIN_AFTER_S if has_room else min(2 * self._again_after_s, MAX_AGAIN_AFTER_S)
            self._progress = self.merger.progress
            self._casts.again(self._full_at)
            self.merger.causal.held.refused.clear()
            self._full_at = {}

    @property
    def behind(self) -> Begin:
        """Return the place where another reader goes on behind everything delivered here."""
        offsets = dict(self._casts.next)
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


def ordered(record: Effective, next_offset: int = 0) -> OrderedRecord:
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
            next_offset=next_offset,
        )
    view = OrderedRecord.of_view(record.seqno, record.view, record.value or b"", record)
    return view._replace(next_offset=next_offset)
