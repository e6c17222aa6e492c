"""Deliver the messages of a group in total order, from any seqno on.

The *position* of a member is the last seqno up to which its application has taken everything. Kafka keeps it under the
member's name (`connectors.client.memory.bookmark`). A run of `deliveries(from_seqno=…)` does not move the position,
unless the application asks for that (`remember`).

If Kafka has forgotten the position of a name, its run raises PositionLost, and does not begin at seqno 1
(`connectors.client.memory.position_notes`).
"""

from __future__ import annotations

import bisect
import functools
import itertools
import operator
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from enum import Enum
from typing import Any

from connectors.client.deliveries.cut import Cut
from connectors.client.memory.bookmark import PositionMark
from connectors.client.memory.ledger_reader import read_ledger
from connectors.client.memory.member_memory import MemberMemory
from connectors.client.memory.member_pass import MemberPass
from connectors.client.values.delivery import Delivery, Place
from connectors.client.values.gathering import MOST_BYTES
from connectors.kafka.codec.headers import without_depends
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.effective import (
    Effective,
    Messages,
    Pack,
    PackedMessages,
    address_of,
    next_offsets,
    seqnos_of,
)
from connectors.storage.location import Location
from ordering.base.errors import HistoryUnavailable, UsageError
from ordering.base.names import Address
from ordering.base.records import MESSAGE
from ordering.casts.casts import TOTAL
from ordering.participant.events import Event, EventReader
from ordering.participant.forward_table import message_bytes

POLL_S = 0.1

Rest = Messages | Iterator[Place]
"""The rest of a read, which the application has not got."""


class PositionUse(Enum):
    """The use that a run makes of the position in Kafka."""

    OWN = "own"
    """Go on from it (or begin at a seqno that the member knows to be its own), and move it forward."""
    BESIDE = "beside"
    """Leave it alone."""
    ANEW = "anew"
    """Begin at the application's seqno, and move the position with the run, even backward."""


class Deliveries(MemberPass["Delivery | Event"]):
    """A run through a group's messages. `run` once; `stop` from any thread ends it within about 0.1 s.

    `connectors.client.values.stream` says when a message is *taken*. A run that moves the member's position commits it
    every COMMIT_EVERY_S seconds and at the end.
    """

    def __init__(
        self,
        connection: Connection,
        group: str,
        address: Address,
        from_seqno: int | None,
        timeout: float | None,
        ledger: Location | None,
        *,
        events: bool = False,
        counted: int = 0,
        between: Callable[[Deliveries], None] | None = None,
        position: PositionUse = PositionUse.OWN,
    ) -> None:
        """Prepare a run; connect to nothing yet.

        Args:
            connection: the member's.
            group: the group's name.
            address: the member's.
            from_seqno: begin at this seqno; None: behind the position.
            timeout: seconds without a message after which the run ends; None: never.
            ledger: read from it what retention has dropped.
            events: return views and other events in their places, too.
            counted: a seqno up to which the application has the messages already: of those it gets the events only.
            between: called by the application's thread, between two deliveries and when there is nothing new. It may
                read `taken_seqno` and `cut`.
            position: the use of the position in Kafka.

        Raises UsageError.
        """
        if from_seqno is not None and from_seqno < 1:
            raise UsageError(f"from_seqno is {from_seqno}, but seqnos start at 1.")
        super().__init__(connection, group, address, timeout, str(address))
        self.from_seqno = from_seqno
        self.ledger = ledger
        self._events = EventReader() if events else None
        self._counted = counted
        self._last_at_start: int | None = None
        self._between = between
        self._next_seqno = self._first_seqno = from_seqno or 0
        self._position = position

    @property
    def taken_seqno(self) -> int:
        """Return the seqno up to which the application has taken everything; at first, the one before the start."""
        return max(self._bookmark.taken.number, self._first_seqno - 1, self._counted, 0)

    def behind(self, newest_seqno: int | None) -> int | None:
        """Return how many seqnos the application has not taken; None if the last one is not known.

        `newest_seqno`: the last one in DATA, as far as the member knows. The run knows the last one at its start.
        """
        known = [seqno for seqno in (newest_seqno, self._last_at_start) if seqno is not None]
        return max(0, max(known) - self.taken_seqno) if known else None

    def cut(self) -> Cut | None:
        """Return the cut at the application's place in all orders; None if the run has the total order only."""
        return None

    def _items(self, memory: MemberMemory) -> Iterator[Delivery | Event | list[Delivery | Event]]:
        """Yield the messages, and the events if asked for; or lists of them.

        Raises:
            BrokerUnreachable: no broker answers at the start; later, the run waits until one does.
            TopicMissing, KafkaRefused: the group's topics or a right are missing.
            HistoryUnavailable: retention has dropped the next message, and no ledger has it.
            PositionLost: Kafka has lost the position of this name.
            ProtocolViolation: DATA ends before the position, was made anew (HistoryChanged) or has a format of a later
                version (LaterVersion); or the ledger has a gap.
        """
        self._next_seqno = self._first_seqno = self._begin(memory)
        bookmark, gathering, is_stopping = self._bookmark, self._gathering, self._stopping.is_set
        for read in self._places(memory):
            if is_stopping():
                return
            rest: Rest | None = read if isinstance(read, Messages) else iter(read)
            while rest is not None or gathering.is_full or gathering.is_due(has_news=bool(read)):
                if rest is None or gathering.is_full:
                    yield from self._given()
                elif gathering.most:
                    rest = self._gather(rest)
                else:
                    rest = yield from self._one_by_one(rest)
                if is_stopping():
                    return
            bookmark.commit_if_due()
            if self._between is not None:
                self._between(self)
            if self._silence.is_over:
                if not gathering.count:
                    return
                yield from self._given()

    def _one_by_one(self, rest: Rest) -> Generator[Delivery | Event, None, Rest | None]:
        """Yield single items; return the rest once the application asks for a list, None if there is none."""
        bookmark, gathering, counted, between = self._bookmark, self._gathering, self._counted, self._between
        hand_out, take, is_stopping, clock = bookmark.hand_out, self.take, self._stopping.is_set, time.monotonic
        given_at: float | None = None
        for seqno, next_offset, what in places_of(rest) if isinstance(rest, Messages) else rest:
            if what is not None and (seqno > counted or not _is_total(what)):
                hand_out(seqno, next_offset)
                yield what
                take()
                given_at = clock()
                if given_at >= bookmark.due_at:
                    bookmark.commit()
                if is_stopping():
                    return None
                if between is not None:
                    between(self)
                if gathering.most:
                    self._silence.broken(given_at)
                    return _behind(rest, seqno)
            else:
                bookmark.pass_over(seqno, next_offset)
        if given_at is not None:
            self._silence.broken(given_at)
        return None

    def _given(self) -> Iterator[Delivery | Event | list[Delivery | Event]]:
        yield from super()._given()
        if self._between is not None and not self._stopping.is_set():
            self._between(self)

    def _gather(self, rest: Rest) -> Rest | None:
        """Add the next items to the list that was asked for, up to its end; return the rest, None if there is none.

        Messages for a list in another form stay as they are.
        """
        gathering, counted, is_list = self._gathering, self._counted, self._gathering.form is None
        room = gathering.most - gathering.count
        if isinstance(rest, Messages) and rest and rest.first[0] > counted:
            part, left = (rest[:room], rest[room:]) if len(rest) > room else (rest, None)
            seqno, offset = part.last
            place = seqno, next_offsets([offset] if left is None else [offset, left.first[1]])[0]
            if is_list:
                self._gathered(list(deliveries_of(part)), place)
            else:
                self._gathered(part, place, part.size_bytes())
            return left
        found: list[Delivery | Event] = []
        seqno = next_offset = size_bytes = 0
        is_full = False
        for seqno, next_offset, what in places_of(rest) if isinstance(rest, Messages) else rest:
            if what is not None and (seqno > counted or not _is_total(what)):
                found.append(what)
                if not is_list and isinstance(what, Delivery):
                    size_bytes += message_bytes(what.payload, what.headers)
                is_full = len(found) == room or size_bytes >= MOST_BYTES
                if is_full:
                    break
            elif not found and not gathering.count:
                self._bookmark.pass_over(seqno, next_offset)
        if seqno:
            self._gathered(found, (seqno, next_offset), size_bytes)
        return _behind(rest, seqno) if is_full else None

    def _begin(self, memory: MemberMemory) -> int:
        """Begin the bookmark; return the first seqno to deliver. Raises PositionLost, BrokerUnreachable."""
        remember = None if self._position is PositionUse.BESIDE else memory.remember_taken
        if self.from_seqno is None:
            committed = memory.position()
            self._bookmark.begin(PositionMark(committed, committed), committed, remember)
            return committed + 1
        committed = (memory.taken() or 0) if self._position is PositionUse.OWN else 0
        self._bookmark.begin(PositionMark(0, 0), committed, remember)
        return self.from_seqno

    def _places(self, memory: MemberMemory) -> Iterator[Messages | Iterable[Place]]:
        """Yield messages, or places, from `_next_seqno` on, from Kafka or the ledger; none if nothing is new."""
        while True:
            try:
                yield from self._from_kafka(memory)
            except HistoryUnavailable as gone:
                if self.ledger is None:
                    raise HistoryUnavailable(
                        f"{gone} The group's ledger has it: give Member(ledger=DIR) the ledger's directory."
                    ) from gone
                before = self._next_seqno
                self._silence.broken(time.monotonic())  # the time that Kafka took to refuse is no silence
                for places in read_ledger(self.ledger, self.group, before, self._events):
                    yield places
                    if places:
                        self._next_seqno = places[-1][0] + 1
                if self._next_seqno == before:
                    raise HistoryUnavailable(
                        f"seqno {before} is neither in Kafka ({gone}) nor in the ledger {self.ledger}: "
                        "is that the right directory, and does its job run?"
                    ) from gone

    def _from_kafka(self, memory: MemberMemory) -> Generator[Messages | Iterable[Place], None, None]:
        first = self._next_seqno
        tailer = memory.shared.tailer(self.group, self.address.site)
        # A seqno of the application's choice may be in the future, and is waited for. A position was once reached: if
        # the log ends before it, `after` raises.
        start, end = tailer.after(first - 1, or_end=self.from_seqno is not None)
        self._silence.expect(end)
        self._last_at_start = start.quiet.seqno if start.quiet is not None else start.reader.last_seqno
        with closing(tailer.read_from(start)) as reader:
            while True:
                effective = reader.poll(self._gathering.patience(POLL_S))
                self._silence.read_up_to(reader.position)
                if effective:
                    wanted = effective
                    begin, end = seqnos_of(effective)
                    if begin < first:
                        wanted = effective[bisect.bisect_left(effective, first, key=operator.attrgetter("seqno")) :]
                    # Lazily: a delivery that the application is done with is freed before the next one is made.
                    yield wanted if isinstance(wanted, Messages) else self._places_in(wanted)
                    self._next_seqno = max(first, end + 1)
                else:
                    yield ()

    def _places_in(self, records: Sequence[Effective]) -> Iterator[Place]:
        offsets = next_offsets([record.offset for record in records])
        return map(self._place, records, offsets)

    def _place(self, record: Effective, next_offset: int) -> Place:
        what: Delivery | Event | None = None
        if record.kind == MESSAGE:
            what = delivery_of(record)
        elif self._events is not None:
            what = self._events.accept(record.kind, record.seqno, record.view, record.sender, record.value or b"")
        return record.seqno, next_offset, what


def _is_total(what: Delivery | Event) -> bool:
    """Whether `what` is a message in total order, which a state may count."""
    return isinstance(what, Delivery) and what.order == TOTAL


def delivery_of(record: Effective) -> Delivery:
    """Return the delivery of a message."""
    seqno, _, _, key, incarnation, local_seqno, epoch, view, forwarded_at_ms, headers, value, timestamp_ms = record
    own_headers = without_depends(headers) if headers else ()
    message_id = address_of(key), incarnation, local_seqno
    return _make(
        (seqno, *message_id, value or b"", own_headers, view, epoch, forwarded_at_ms, timestamp_ms, TOTAL, None)
    )


def _behind(rest: Rest, seqno: int) -> Rest:
    """Return the part of `rest` behind `seqno`, where an iterator already is."""
    return rest[bisect.bisect_right(rest.columns.seqno, seqno) :] if isinstance(rest, Messages) else rest


def places_of(messages: Messages) -> Iterator[Place]:
    """Yield the place of each message, with its delivery."""
    offsets = messages.columns.offset
    return zip(messages.columns.seqno, next_offsets(offsets), _by_columns(messages), strict=True)


def deliveries_of(messages: Messages) -> Iterator[Delivery]:
    """Return the delivery of each message: as `delivery_of`, but computed by columns, or by packs."""
    if isinstance(messages, PackedMessages):
        return itertools.chain.from_iterable(map(_in_pack, messages.packs))
    return _by_columns(messages)


def _by_columns(messages: Messages) -> Iterator[Delivery]:
    return map(_make, zip(*fields_of(messages), strict=True))


def _in_pack(pack: Pack) -> Iterator[Delivery]:
    seqno, sender, incarnation, local_seqno, _, *shared = delivery_of(pack.first)
    count, repeat = itertools.count, itertools.repeat
    payloads = pack.payloads if pack.first.value else [b""]  # null in no pack
    message_ids = repeat(sender), repeat(incarnation), count(local_seqno)
    return map(_make, zip(count(seqno), *message_ids, payloads, *map(repeat, shared), strict=False))


def fields_of(messages: Messages) -> tuple[Iterable[Any], ...]:
    """Return each field of the messages' deliveries."""
    columns = messages.columns
    return (
        columns.seqno,
        map(address_of, columns.key),
        columns.incarnation,
        columns.local_seqno,
        [value or b"" for value in columns.value],
        [without_depends(headers) if headers else () for headers in columns.headers],
        columns.view,
        columns.epoch,
        columns.forwarded_at_ms,
        columns.timestamp_ms,
        itertools.repeat(TOTAL, len(messages)),
        itertools.repeat(None, len(messages)),
    )


_make: Callable[[tuple[Any, ...]], Delivery] = functools.partial(tuple.__new__, Delivery)
"""Make a delivery from a tuple of all its fields. Passing each by its name takes twice as long."""
