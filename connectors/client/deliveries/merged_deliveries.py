"""Deliver the messages of a group in all orders: total messages in theirs, and casts among them.

A run begins at one of these places:

* The member's first view. There the hub knows the vector, and hands it over (`connectors.client.tail.cast_hub`).
* The cut of a state that another member has supplied (`connectors.client.deliveries.cut`). Before that, the events
  between the first view and the cut are delivered.
* The group's first record. Nothing was delivered before, so the run delivers everything. If retention has dropped some
  casts, the run delivers casts of views as a newcomer does: from the first view on that was decided after those casts.
* Any other seqno, as a newcomer. Casts of views are delivered from the next view on, casts of no view from about the
  time of that seqno on. (The brokers' timestamps decide: reading begins with casts stored a minute before that time.
  Casts of earlier views are skipped, and all casts of the next view were stored later.) Retention that has dropped
  some of these casts counts as above.

Invariant. The hub has delivered each message before the application gets it, if the member has a hub. A message that
was not taken is delivered again by the next run of the same incarnation.

A crash loses the place among the casts: the next start joins anew, or begins as a newcomer. The position in the total
order is kept, as `connectors.client.deliveries.deliveries` says.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from kafka.structs import TopicPartition

from connectors.client.deliveries.cut import Cut
from connectors.client.deliveries.deliveries import POLL_S, Deliveries, places_of
from connectors.client.memory.member_memory import MemberMemory
from connectors.client.tail.cast_hub import CLOCKS_DIFFER_S, CastHub, since_now
from connectors.client.tail.cast_reader import CastTopics
from connectors.client.tail.merged_log import Begin, MergedLog
from connectors.client.tail.sharing import Shared, share
from connectors.client.values.delivery import Delivery, Place
from connectors.kafka.codec.cast_codec import is_late_copy
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import read_range
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.effective import Effective, Messages
from connectors.kafka.transport import Consumer
from ordering.base.errors import AbcastError, HistoryUnavailable
from ordering.base.names import Address, Topic
from ordering.base.records import INCARNATIONS_A_MS, MESSAGE
from ordering.casts.casts import Cast, OrderedRecord
from ordering.casts.causal import CausalState
from ordering.casts.delivery_status import DeliveryStatus
from ordering.casts.fifo import FifoState
from ordering.casts.merging import MergedState, newcomer
from ordering.membership.membership import MemberIncarnation

MARGIN_MS = CLOCKS_DIFFER_S * 1000

BEGIN_TIMEOUT_S = 30.0


class MergedSource:
    """The source of a member's deliveries in all orders, for one run after another. `close` it."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        address: Address,
        hub: CastHub | None = None,
        member: MemberIncarnation | None = None,
        cut: Cut | None = None,
    ) -> None:
        """Open nothing yet.

        `hub` is the member's, if it has one. The source begins at `cut` if there is one, else with the first view of
        the incarnation `member` if there is one, else at a seqno.
        """
        self.connection = connection
        self.group = group
        self.address = address
        self.hub = hub
        self._member = member
        self._cut = cut
        self._shared: Shared | None = None
        self._log: MergedLog | None = None
        self._first_view: Begin | None = None  # once `may_open` knows it: the hub forgets it when the member is closed
        self._waits_until_s: float | None = None

    def may_open(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds until the beginning is known; return whether it is.

        Raises AbcastError if that takes BEGIN_TIMEOUT_S in all, or if an error has ended the hub.
        """
        if self._log is not None or self._cut is not None or self._member is None:
            return True
        assert self.hub is not None
        self._first_view = self.hub.wait_for_begin(self._member, timeout)
        if self._first_view is not None:
            return True
        now_s = time.monotonic()
        self._waits_until_s = self._waits_until_s or now_s + BEGIN_TIMEOUT_S
        if now_s < self._waits_until_s:
            return False
        raise AbcastError(f"the first view of {self.address} was not delivered within {BEGIN_TIMEOUT_S:g} s.")

    def open(self, first: int, *, or_end: bool = True) -> MergedLog:
        """Return the merged log; open it if it is not open. Called once `may_open` has returned True.

        `first` is the seqno to begin at, if the source has neither a cut nor a first view. With `or_end`, DATA may end
        before `first`. Raises BrokerUnreachable, HistoryUnavailable, TopicMissing, and ProtocolViolation as
        `DataLog.after` does.
        """
        if self._log is None:
            self._shared = self._shared or share(self.connection)
            topics = CastTopics(self.connection, self._shared.metadata, self.group, self.address.site)
            try:
                begin = self._begin(topics, first, or_end)
            except HistoryUnavailable as gone:
                why = str(gone).removesuffix(" Read on from the ledger.")
                raise HistoryUnavailable(
                    f"{why} Deliveries with casts come from Kafka alone: begin later (`from_seqno`), and read older "
                    "messages with `abcast query`."
                ) from gone
            self._log = MergedLog(self._shared.tailer(self.group, self.address.site), topics, begin)
        return self._log

    def _begin(self, topics: CastTopics, first: int, or_end: bool) -> Begin:
        if self._cut is not None:
            return self._begin_of_cut(topics, self._cut)
        if self._member is None:
            return self._begin_at(topics, first, or_end)
        assert self._first_view is not None
        return self._first_view

    def _begin_of_cut(self, topics: CastTopics, cut: Cut) -> Begin:
        with (
            contextlib.closing(self.connection.consumer()) as consumer,
            DataLog(self.connection, self.group, self.address.site) as log,
            self.connection.reachable(),
        ):
            places = topics.partitions()
            offsets = {place: int(at) for place, at in consumer.beginning_offsets(places).items()}
            if cut.cluster_id == self.connection.cluster_id():
                offsets |= {place: at for place, at in cut.offsets.items() if place in offsets}
            return Begin(log.after(cut.seqno), cut.state, offsets)

    def _begin_at(self, topics: CastTopics, first: int, or_end: bool) -> Begin:
        with (
            contextlib.closing(self.connection.consumer()) as consumer,
            DataLog(self.connection, self.group, self.address.site) as log,
            self.connection.reachable(),
        ):
            places = topics.partitions()
            beginnings = {place: int(at) for place, at in consumer.beginning_offsets(places).items()}
            dropped_at = self._dropped_at(consumer, beginnings)
            if first <= 1:
                if dropped_at is None:
                    return Begin(log.after(0), MergedState(), beginnings)
                nothing = CausalState(new_before=_new_before(consumer, log, dropped_at))
                return Begin(log.after(0), MergedState(nothing, FifoState(since=since_now())), beginnings)
            ends = {place: int(at) for place, at in consumer.end_offsets(places).items()}
            start, state = log.outside_of_a_flush(log.after(first - 1, or_end=or_end))  # it may begin before `first`
            stored = next(log.records(start.offset, log.end()), None)
            if stored is None:
                return Begin(start, newcomer(state, since_now()), ends, new_up_to=first - 1)
            of_ms = max(stored.timestamp_ms, dropped_at or 0)
            begun = newcomer(state, (of_ms + MARGIN_MS) * INCARNATIONS_A_MS)
            if dropped_at is not None and of_ms == dropped_at:
                new_before = _new_before(consumer, log, dropped_at)
                begun = replace(begun, causal=replace(begun.causal, new_before=new_before))
            at_ms = stored.timestamp_ms - MARGIN_MS
            return Begin(start, begun, _since(consumer, ends, at_ms), new_up_to=first - 1)

    def _dropped_at(self, consumer: Consumer, beginnings: Mapping[TopicPartition, int]) -> int | None:
        """Return a time, in ms, before which all dropped casts were written; None if retention has dropped none.

        The copy of another site's topic may lack casts that were dropped there before the copy was made. Raises
        BrokerUnreachable.
        """
        own = str(Topic(self.group, "cast", self.address.site))
        ends = consumer.end_offsets(list(beginnings))
        times: list[int] = []
        for place, beginning in beginnings.items():
            if not beginning and place.topic == own:
                continue
            read = read_range(self.connection, consumer, place, beginning, min(beginning + 1, int(ends[place])))
            first = next(read, None)
            if beginning or (first is not None and is_late_copy(first.headers)):
                times.append(time.time_ns() // 10**6 if first is None else first.timestamp)
        return max(times, default=None)

    def close(self) -> None:
        """Disconnect."""
        if self._log is not None:
            self._log.close()
        if self._shared is not None:
            self._shared.release()
        self._log = self._shared = None


def _new_before(consumer: Consumer, log: DataLog, dropped_at: int) -> int:
    """Return the first view that lacks no casts, if all that are dropped were written before `dropped_at`, in ms."""
    found = consumer.offsets_for_times({log.partition: dropped_at + MARGIN_MS})[log.partition]
    return log.state(log.end() if found is None else found.offset).view + 1


def _since(consumer: Consumer, ends: Mapping[TopicPartition, int], at_ms: int) -> dict[TopicPartition, int]:
    """Return the offset of the first cast written at `at_ms` or later, by partition."""
    found = consumer.offsets_for_times(dict.fromkeys(ends, at_ms))
    return {place: int(at.offset) if (at := found.get(place)) is not None else end for place, end in ends.items()}


class MergedDeliveries(Deliveries):
    """A run through a source of all orders."""

    def __init__(
        self,
        source: MergedSource,
        from_seqno: int | None,
        timeout: float | None,
        *,
        is_shared: bool,
        **options: Any,
    ) -> None:
        """Prepare a run. With `is_shared`, later runs go on from this one, so the source stays open.

        `options` are passed to `Deliveries`.
        """
        super().__init__(source.connection, source.group, source.address, from_seqno, timeout, None, **options)
        self._source = source
        self._is_shared = is_shared
        self._may_end = timeout is not None
        self._in_hand: list[Cast | OrderedRecord] = []  # the first records of the log's `ready`
        self._log: MergedLog | None = None

    def take(self) -> None:
        """Count the messages in hand as taken, if the application has them."""
        has_them = self._bookmark.has_item
        super().take()
        if not has_them:  # they were gathered for a list that nobody got
            return
        for record in self._in_hand:
            if self._log is not None and self._log.ready and self._log.ready[0] is record:
                self._log.ready.popleft()
        self._in_hand = []

    def run(self) -> Iterator[Any]:
        """Yield the messages, and the events if asked for.

        Raises as `Deliveries.run` does, HistoryUnavailable also if the ledger has the message; the error that has ended
        the hub; AbcastError if the first view is not delivered in time.
        """
        try:
            yield from super().run()
        finally:
            if not self._is_shared:
                self._source.close()

    def _places(self, memory: MemberMemory) -> Iterator[list[Place]]:
        first = self._next_seqno
        while not self._source.may_open(POLL_S):
            yield []
        with DataLog(self.connection, self.group, self.address.site) as data:
            self._silence.expect(data.end())
        if self._events is not None and first <= self._counted:
            yield from self._events_of_a_state(memory)
        log = self._log = self._source.open(first, or_end=self.from_seqno is not None)
        if self._may_end:
            log.ask_for_end()
        seqno = max(first - 1, self._counted)
        while True:
            if len(log.ready) == len(self._in_hand):
                # Only now: records that were read, and wait for the hub, were in the log, too.
                if log.has_taken_all:
                    self._silence.read_up_to(log.position)
                log.step(log.read(self._gathering.patience(POLL_S)))
                yield []
            while len(log.ready) > len(self._in_hand):  # those in hand wait for the end of their list
                record = log.ready[len(self._in_hand)]
                status = self._delivery_status(record)
                if status is not DeliveryStatus.DELIVERED:
                    if status is DeliveryStatus.NEVER:
                        del log.ready[len(self._in_hand)]
                    yield []
                    continue
                if isinstance(record, OrderedRecord):
                    seqno = max(seqno, record.seqno)
                place = self._merged_place(record, seqno, first)
                if place[2] is None and not self._in_hand:
                    log.ready.popleft()
                else:
                    self._in_hand.append(record)
                yield [place]
                self._next_seqno = seqno + 1

    def _events_of_a_state(self, memory: MemberMemory) -> Iterator[list[Place]]:
        """Yield the events up to the last seqno that a state counts: the state has the messages only."""
        with contextlib.closing(self._from_kafka(memory)) as reading:
            for batch in reading:
                places = list(places_of(batch) if isinstance(batch, Messages) else batch)
                yield [place for place in places if place[0] <= self._counted]
                if places and places[-1][0] >= self._counted:
                    return

    def cut(self) -> Cut | None:
        """Return the cut at the application's place in all orders.

        None while the application has not taken everything that the merger has delivered.
        """
        log = self._log
        if log is None or log.ready or log.merger.causal.seqno < self.taken_seqno:
            return None
        behind = log.behind
        return Cut(behind.state, behind.offsets)

    def _delivery_status(self, record: Cast | OrderedRecord) -> DeliveryStatus:
        hub = self._source.hub
        return (
            DeliveryStatus.DELIVERED if hub is None else hub.delivery_status(record, self._gathering.patience(POLL_S))
        )

    def _merged_place(self, record: Cast | OrderedRecord, seqno: int, first: int) -> Place:
        if isinstance(record, Cast):
            return seqno, self._offset, cast_delivery(record)
        effective = record.record
        assert isinstance(effective, Effective)
        self._offset = record.next_offset
        is_counted = record.kind == MESSAGE and record.seqno <= self._counted
        if record.seqno < first or is_counted:
            if record.kind != MESSAGE and self._events is not None:
                self._place(effective, self._offset)
            return record.seqno, self._offset, None
        return self._place(effective, self._offset)

    _offset = 0


def cast_delivery(cast: Cast) -> Delivery:
    """Return the delivery of a cast."""
    return Delivery(
        0,
        cast.sender,
        cast.incarnation,
        cast.local_seqno,
        cast.payload,
        cast.headers,
        cast.view,
        0,
        cast.written_at_ms,
        order=cast.order,
    )
