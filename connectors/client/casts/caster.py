"""Send the casts of one incarnation, and hold its total messages back behind them.

Source: Group Communication (docs/sources.md). `ordering.casts.outgoing` decides when a message leaves, and with which
clock. The caster sends it, sends it again, and sees that the log has it.

Invariant. The table holds the casts that were sent and not read back from the log, in the order of their numbers. It is
sent in that order, again and again until all were read (`connectors.client.tail.go_back_n`). So a cast that is removed
from it lies in the log behind all earlier casts of its incarnation.

A cast enters the table and goes to the producer in one step, under the member's lock. Unwritten casts of an earlier
incarnation, or process, leave first (`ordering.casts.unwritten_casts`). This incarnation hands its own to the next one,
and an outbox keeps them (`connectors.client.casts.cast_keeper`). Without an outbox, a crash loses casts that are not in
the log: no member delivers them. A crash in a view may also lose casts that are in the log: then none of the members
that go on delivers them.

Ctrl-C may end a call of the application anywhere. `cast` accepts a message by one call into C. `decide` later takes in
these messages, and the records of the forward table. Its decisions hold with one call into C, or all are taken back.
`carry_out` goes on where an interrupted call was.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from connectors.client.casts.cast_keeper import CastKeeper, UnwrittenCast, UnwrittenCasts
from connectors.client.memory.outbox import WrittenCasts
from connectors.client.tail.cast_hub import CastHub
from connectors.client.tail.go_back_n import GoBackN
from connectors.client.tail.producers import Producers
from connectors.client.values.cast_receipt import CastReceipt
from connectors.client.values.sending_limits import SendingLimits
from connectors.kafka.codec.cast_codec import cast_headers
from connectors.kafka.codec.headers import depends_header
from ordering.base.errors import AbcastError, Superseded
from ordering.base.records import FLUSH_OK, Headers
from ordering.casts.casts import NO_VIEW, TOTAL, Cast, OrderedRecord
from ordering.casts.outgoing import Broadcast, EarlierProcess, Outgoing
from ordering.casts.unwritten_casts import Course, course_of
from ordering.membership.membership import MemberIncarnation
from ordering.participant.forward_table import ForwardTable, Pending, kind_of


class _Leaving(NamedTuple):
    """A message that may leave, with its entry and what the outbox is to note, if it is a cast."""

    message: Cast | Broadcast
    entry: UnwrittenCast | None
    seqno: int
    clock: str


class Caster:
    """The sender of one incarnation's casts. `close` it.

    All calls but `look_after` and the hub's (`heard`, `failed`) are made under the member's lock.
    """

    def __init__(
        self,
        member: MemberIncarnation,
        earlier: EarlierProcess | None,
        topic: str,
        hub: CastHub,
        producers: Producers,
        limits: SendingLimits,
        keeper: CastKeeper,
        inherited: UnwrittenCasts,
        table: ForwardTable,
        changed: threading.Condition,
        heard: Callable[[], object],
        end: Callable[[Exception], object],
    ) -> None:
        """Begin, with the unwritten casts of earlier incarnations in `inherited`.

        `earlier` is given if another process has begun `member`. The records in `table` are of an earlier start, or
        incarnation. `heard` is called under the lock when a message may leave; `end` without it when the hub has
        failed.

        Raises BrokerUnreachable; AbcastError if the hub has failed before.
        """
        self.member = member
        self._topic = topic
        self._key = member.address.encode("ascii")
        self._hub = hub
        self._limits = limits
        self._changed = changed
        self._heard = heard
        self._end = end
        self._keeper = keeper
        self._inherited = deque(inherited.entries)
        self._settled = inherited.settled
        self._waiting: deque[UnwrittenCast] = deque()
        self._leaving: deque[_Leaving] = deque()
        self._forward_table = table
        self.taken_in = table.last
        """The local seqno of the last record of the forward table that was taken in."""
        self._last_taken_in: UnwrittenCast | None = None
        self._table: deque[UnwrittenCast] = deque()
        self._as_they_were = 0
        """The count of casts in the table that an earlier incarnation had sent in no view."""
        self._bytes = sum(entry.size for entry in inherited.entries)
        self._is_closed = self._has_failed = False
        with hub.lock:
            # The forward table has its own bound, and this table has the other.
            most = 2 * limits.max_pending_records + 2 + len(inherited.entries)
            self._outgoing = Outgoing(member, hub.receiver, most, earlier)
        self._newest = max(member.incarnation, self._outgoing.in_no_view.incarnation)
        self._sending = GoBackN(
            producers,
            producers.lease(),
            f"{member.address}'s casts",
            changed,
            self._send_table,
            resend_after_s=limits.resend_after_s,
        )
        hub.add(self)

    # --- under the lock ---

    @property
    def pending(self) -> int:
        """Return the count of accepted casts that were not read back from the log, without those in `_inherited`."""
        return len(self._waiting) + len(self._table)

    @property
    def is_caught_up(self) -> bool:
        """Whether no cast of an earlier incarnation has to come before the next one."""
        return not self._inherited and not self._as_they_were

    @property
    def waiting_totals(self) -> int:
        """Return how many of the last records that were taken in may not be sent yet."""
        count = self._outgoing.waiting_totals
        return count + sum(each.entry is None for each in self._leaving) if self._leaving else count

    @property
    def is_sending(self) -> bool:
        """Whether `carry_out` has something to do."""
        return bool(self._leaving)

    @property
    def is_waiting(self) -> bool:
        """Whether a message waits, for a condition or since Ctrl-C has ended a call. May be read without the lock."""
        return bool(self._waiting or self._leaving) or self.taken_in < self._forward_table.last

    @property
    def is_settled(self) -> bool:
        """Whether all messages have left, and all casts are in the log."""
        return self._outgoing.is_settled

    def has_room(self, size: int) -> bool:
        """Whether there is room for one more cast of `size` bytes."""
        return self._limits.allow(self.pending + len(self._inherited), self._bytes, size)

    def cast(self, order: str, payload: bytes, headers: Headers) -> CastReceipt:
        """Accept a message that it `has_room` for, and return its receipt; the next `release` sends it if it may leave.

        Raises UsageError if the order can't be kept, EnvironmentProblem if the outbox can't be written.
        """
        with self._hub.lock:
            self._outgoing.check(order)
        entry = self._keeper.keep(order, payload, headers)
        entry.receipt = receipt = CastReceipt(*self.member, order, self._changed)
        self._wait_to_leave(entry)
        return receipt

    def _wait_to_leave(self, entry: UnwrittenCast) -> None:
        entry.behind = self._forward_table.last
        self._waiting.append(entry)

    def decide(self) -> None:
        """Take in the accepted messages, and decide which of them leave. An exception takes all back, or nothing."""
        if self._has_failed or self._leaving:
            return
        leaving, size, newest, taken_in = deque[_Leaving](), self._bytes, self._last_taken_in, self.taken_in
        with self._hub.lock:
            outgoing, before = self._outgoing, self._outgoing.kept()
            try:
                for entry in self._not_taken_in():
                    taken_in = self._take_in(taken_in, entry.behind)
                    outgoing.send(entry.order, entry.payload, entry.headers)
                    newest, size = entry, size + entry.size
                taken_in = self._take_in(taken_in, self._forward_table.last)
                seqno, waiting = self._hub.receiver.seqno, iter(self._waiting)
                for message in outgoing.release():
                    cast = next(waiting) if isinstance(message, Cast) else None
                    leaving.append(_Leaving(message, cast, seqno, self._clock_before(message)))
                # One call into C.
                vars(self).update(_leaving=leaving, _bytes=size, _last_taken_in=newest, taken_in=taken_in)
            except BaseException:
                if self._leaving is not leaving:
                    outgoing.bring_back(before)
                raise

    def _not_taken_in(self) -> list[UnwrittenCast]:
        """Return the casts that were accepted since: all that wait, if the newest one before has left."""
        found: list[UnwrittenCast] = []
        for entry in reversed(self._waiting):
            if entry is self._last_taken_in:
                break
            found.append(entry)
        return found[::-1]

    def _take_in(self, behind: int, last: int) -> int:
        """Queue the records of the forward table behind local seqno `behind`, up to `last`; return the last one's."""
        if last <= behind:
            return behind
        last = min(last, self._forward_table.last)
        for record in map(Pending, itertools.repeat(0), *self._forward_table.between(behind + 1, last)):
            if (kind := kind_of(record)) == FLUSH_OK:
                self._outgoing.flush_ok(int(record.payload))
            else:
                self._outgoing.send(TOTAL, b"", (), kind)
        return last

    def carry_out(self) -> Iterator[Headers]:
        """Send the casts that were to leave; yield the extra headers of each record of the forward table that was to.

        A record counts as waiting until the caller asks for the next one. Nothing is sent unless the caller iterates.
        """
        while self._leaving:
            leaving = self._leaving[0]
            if isinstance(leaving.message, Broadcast):
                yield depends_header(leaving.message.depends)
                self._leaving.popleft()
            elif leaving.entry is not None:
                self._leave(leaving.entry, leaving.message, leaving.seqno, leaving.clock)

    def knows(self, flush_id: int) -> bool:
        """Whether the record with seqno `flush_id`, a START_FLUSH, is delivered here."""
        with self._hub.lock:
            return self._hub.receiver.seqno >= flush_id

    def may_cast_behind(self, view_seqno: int) -> bool:
        """Whether the first view is delivered here, and the count of this incarnation's casts in it is known."""
        with self._hub.lock:
            return self._hub.receiver.seqno >= view_seqno and self._outgoing.knows_its_count

    def inherit(self, local_seqno: int, ordered: int = 0) -> None:
        """Note that the forward table up to `local_seqno` is from an earlier start, or incarnation.

        Its records up to `ordered` are in DATA.
        """
        self._outgoing.inherit(local_seqno, ordered)

    def take_up_inherited(self) -> None:
        """Queue or send casts of earlier incarnations, if it is time. Called at the beginning, and by the hub."""
        while self._inherited and not self._outgoing.was_put_out:
            entry = self._inherited[0]
            with self._hub.lock:
                course = course_of(entry.inherited, self.member, self._hub.receiver, self._settled)
                may_cast = not self._as_they_were and self._outgoing.knows_its_count
            if course is Course.WAIT or (course is Course.ANEW and not may_cast):
                return
            self._inherited.popleft()
            if course is Course.DELIVERED:
                self._is_written(entry)
            elif course is Course.AS_IT_WAS:
                self._as_they_were += 1
                self._enter_the_table(entry)
                self._send(entry)
            else:
                entry.cast, entry.is_numbered = None, False
                self._bytes -= entry.size  # until it is taken in
                self._wait_to_leave(entry)

    def _clock_before(self, message: Cast | Broadcast) -> str:
        keeps = self._keeper.outbox is not None
        return self._outgoing.clock_before(message) if keeps and isinstance(message, Cast) else ""

    def _leave(self, entry: UnwrittenCast, cast: Cast, seqno: int, clock: str) -> None:
        """Send a cast. An exception leaves it in `_leaving` for the next call, or in the table, to be sent again."""
        entry.cast, entry.seqno, entry.clock = cast._replace(payload=b"", headers=()), seqno, clock
        if entry.receipt is not None:
            entry.receipt.incarnation = cast.incarnation
        try:
            if not self._table or self._table[-1] is not entry:
                self._enter_the_table(entry)
            if self._waiting and self._waiting[0] is entry:
                self._waiting.popleft()
            self._leaving.popleft()
            self._send(entry)
        except BaseException:
            self._sending.note_failure("its call was interrupted")
            raise

    def _enter_the_table(self, entry: UnwrittenCast) -> None:
        if not self._table:
            self._sending.note_progress()
        self._table.append(entry)

    def _send(self, entry: UnwrittenCast) -> None:
        """Send an entry, unless a failure is to be repaired first: then the outbox gets no number for it, either."""
        assert entry.cast is not None
        if self._sending.has_failed:
            return
        if self._keeper.leaves(entry):
            headers = cast_headers(entry.cast._replace(headers=entry.headers))
            self._sending.send(self._topic, self._key, entry.payload, headers)
        else:
            self._sending.note_failure("the outbox could not store it")

    def _send_table(self) -> None:
        for entry in self._table:
            self._send(entry)

    def hand_over(self) -> UnwrittenCasts:
        """Return the casts for the next incarnation, in the order in which they were accepted. Send no more."""
        entries = sorted((*self._table, *self._waiting, *self._inherited), key=lambda entry: entry.place)
        self._has_failed = True
        self._forget_all()
        return UnwrittenCasts(entries, self._settled)

    def fail(self, error: AbcastError) -> None:
        """Fail the receipts of all casts that are not in the log. Send no more."""
        self._has_failed = True
        for entry in (*self._table, *self._waiting, *self._inherited):
            if entry.receipt is not None:
                entry.receipt.fail(error)
        self._forget_all()

    def _forget_all(self) -> None:
        for entries in (self._table, self._waiting, self._inherited, self._leaving):
            entries.clear()
        self._bytes = 0

    def close(self, error: AbcastError) -> None:
        """Fail the pending receipts, send no more, and leave the hub. An outbox keeps the unwritten casts."""
        if self._is_closed:
            return
        self._is_closed = True
        self.fail(error)
        self._forget()
        self._hub.remove(self)
        self._sending.close()

    # --- without the lock ---

    def look_after(self) -> None:
        """Send the table again, and let the outbox forget written casts, if that is due."""
        if self._table and not self._is_closed:
            self._sending.send_again_if_due()
        if self._keeper.is_due:
            with self._changed:
                if not self._is_closed:
                    self._forget()

    def heard(self, read: Sequence[Cast], delivered: Sequence[Cast | OrderedRecord]) -> None:
        """Take casts of this address read from the log, and the records delivered. Called by the hub's thread.

        Raises Superseded if a newer incarnation has cast in no view: there, nothing else shows that ours are ignored.
        """
        with self._changed:
            if self._is_closed or self._has_failed:
                return
            for cast in read:
                if cast.view == NO_VIEW and cast.incarnation > self._newest:
                    raise Superseded(
                        f"another process has started as {self.member.address}, with incarnation {cast.incarnation} "
                        f"(this one has {self._newest}). Members ignore this process's casts now. Run one process per "
                        "member."
                    )
                self._take_out(cast)
            with self._hub.lock:
                for record in delivered:
                    self._outgoing.delivered(record)
            self._heard()

    def failed(self, error: Exception) -> None:
        """End the incarnation with the hub's error: waiting casts would wait for ever."""
        self._end(error)

    def _take_out(self, cast: Cast) -> None:
        """Remove a cast that is in the log, if it is the table's first; others stay, and are sent again."""
        ours = self._table[0].cast if self._table else None
        if ours is None or ours[:3] != cast[:3] or ours.view != cast.view:
            return
        is_as_it_was = cast.view == NO_VIEW and cast.member != self._outgoing.in_no_view
        with self._hub.lock:
            if cast.view != NO_VIEW and self._outgoing.was_put_out:
                return  # the view tells whether it counts
            if is_as_it_was:
                self._as_they_were -= 1
            elif cast.view == NO_VIEW:
                self._outgoing.outside.acknowledge(cast.local_seqno)
            else:
                self._outgoing.in_views.acknowledge(cast.local_seqno)
        self._is_written(self._table.popleft())
        self._sending.note_progress()

    def _is_written(self, entry: UnwrittenCast) -> None:
        """Settle an entry that is in the log, or was delivered."""
        self._bytes -= entry.size
        self._keeper.note_written(entry)
        if self._keeper.is_due:
            self._forget()
        if entry.receipt is not None and entry.cast is not None:
            entry.receipt.resolve(entry.cast.local_seqno)

    def _forget(self) -> None:
        """Let the outbox forget written casts."""
        with self._hub.lock:
            seqno, written = self._hub.receiver.seqno, self._outgoing.written
        self._keeper.forget(None if written is None else WrittenCasts(self.member.incarnation, seqno, written))
