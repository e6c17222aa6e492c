"""A member whose client counts casts that do not exist, in a quarter of the histories; and the readers that find out.

The liar delivers as if it had told the truth, and stays until the end, so that it lies in messages, in a flush, and in
its answers to one. A reader that has proof (`ordering.casts.stalls`) dies, and a new life begins in its place. A reader
that waits for casts of another site never has proof: in the end an operator starts it again.

In histories without a lie, nobody may find one.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from ordering.base.records import FLUSH_OK, MESSAGE
from ordering.casts import clocks
from ordering.casts.casts import Depends, OrderedRecord
from ordering.casts.causal import CausalReceiver
from ordering.casts.clocks import Clock
from ordering.casts.outgoing import Broadcast
from ordering.casts.stalls import Stall
from ordering.checker.anomalies import LOST
from ordering.membership.membership import MemberIncarnation
from tests.simulator.orders_applications import Application

if TYPE_CHECKING:
    from tests.simulator.orders import Orders, Process

MOST_LIES = 4


def proves(stall: Stall, is_own: bool, has_read_all: bool) -> bool:
    """Whether a stall proves a wrong clock, as `connectors.client.tail.merged_log` sees it."""
    return stall.missing is None or (is_own and has_read_all)


class Liars:
    """The liar of a history, if it has one, and its lies."""

    def __init__(self, world: Orders, seed: int) -> None:
        self.world = world
        self.dice = random.Random(f"liars {seed}")
        self.lies_left = self.dice.randint(1, MOST_LIES) if seed % 4 == 1 else 0
        self.liar: Process | None = None
        self._truth: dict[tuple[MemberIncarnation, int], Depends | None] = {}
        """The true clock of each message with a wrong one, by its sender and local seqno."""
        self.doubtful = 0
        """Casts that may count as delivered or not, by a wrong clock, or because nobody goes on into a view."""

    def begin(self) -> None:
        """Choose the liar among the first members. It takes its own messages for what they should say."""
        if not self.lies_left or len(self.world.members) < 3:
            self.lies_left = 0
            return
        self.liar = self.dice.choice(self.world.members)
        self.liar.is_liar = True
        receiver = self.liar.receiver
        assert receiver is not None
        self._believe(receiver)
        for application in self.world.applications.running:
            if application.process is self.liar:
                self._believe(application.receiver)

    def _believe(self, receiver: CausalReceiver) -> None:
        read = receiver._clock_of

        def true_clock_of(record: OrderedRecord) -> Clock:
            key = record.member, record.local_seqno
            return read(record._replace(depends=self._truth[key]) if key in self._truth else record)

        receiver._clock_of = true_clock_of  # type: ignore[method-assign]

    @property
    def messages(self) -> int:
        """The messages that members need not agree on, as a set of bits: the liar's, and some of its victims'."""
        if self.liar is None:
            return 0
        return self.doubtful | sum(1 << n for n, sender in enumerate(self.world.senders) if sender == self.liar.life)

    def sent(self, liar: Process, message: Broadcast) -> Broadcast:
        """Return the liar's next record of FORWARD, perhaps with a wrong clock."""
        assert liar.receiver is not None
        index = liar.receiver.index_of(liar.life)
        if not self.lies_left or index is None or self.dice.random() < 0.5:
            return message
        self.lies_left -= 1
        self._truth[liar.life, len(liar.forwards) + 1] = message.depends
        members = len(liar.receiver.members)
        clock = list(liar.receiver.vector)
        if message.depends is not None:
            clock = list(clocks.read(message.depends.clock, None, members))
        of = index if self.dice.random() < 0.4 else self.dice.randrange(members)
        clock[of] += self.dice.choice((1, 2, 1_000))
        self.world.seen["lie in FLUSH_OK" if message.kind == FLUSH_OK else "lie"] += 1
        return message._replace(depends=Depends(liar.receiver.view, clocks.write(tuple(clock), None)))

    def look(self, one: Process | Application) -> None:
        """Let a reader see whether it waits in vain."""
        process = one.process if isinstance(one, Application) else one
        receiver = one.receiver
        assert receiver is not None
        if not process.is_alive or (one.full_at and receiver.progress != one.progress):
            return
        if process.is_liar:
            if receiver.stalls() and self._is_over_for(one, process):
                self.kill()  # others believe it, and count what it knows not to exist
            return
        for stall in receiver.stalls():
            is_own = stall.missing is not None and stall.missing.address[0] == process.life.address[0]
            if self.world.rules.proves(stall, is_own, self._has_read_all(one, process.home.site, copies=False)):
                self._end(process, stall)
                return
            if stall.missing is not None and not is_own and self._is_over_for(one, process):
                self.world.seen["started again by hand"] += 1
                self._end(process, stall)
                return

    def _is_over_for(self, one: Process | Application, process: Process) -> bool:
        return (
            self.liar is not None and self.world.is_healing and self._has_read_all(one, process.home.site, copies=True)
        )

    def _has_read_all(self, one: Process | Application, site: str, *, copies: bool) -> bool:
        return all(
            not each.log.is_away and one.offsets.get(where, each.log.beginning) >= each.log.end
            for where, each in enumerate(self.world.partitions)
            if each.site == site and (copies or each.origin is None)
        )

    def _end(self, process: Process, stall: Stall) -> None:
        self.world.seen["found a lie"] += 1
        if self.liar is None or not self._truth:
            self.world.find(LOST, f"{process.life} takes a true clock for a wrong one: {stall}")
        elif stall.record.member != self.liar.life:
            self.world.find(LOST, f"{process.life} takes {stall.record.sender} for a liar: {stall}")
        self.world.begin_again(process)

    def is_liar(self, life: MemberIncarnation) -> bool:
        """Whether it is the liar."""
        return self.liar is not None and self.liar.life == life

    def before_view(self, view: OrderedRecord, at: int) -> int | None:
        """Return all messages before a view, as a set of bits, if nobody goes on into it; else None."""
        members = set(view.members)
        goes_on = any(
            each.is_alive and each.receiver is not None and each.life in members for each in self.world.members
        )
        if self.liar is None or goes_on:
            return None
        casts = {cast.payload for log in self.world.partitions for cast in log.casts() if cast.view < view.view}
        totals = {str(record.record) for record in self.world.data[:at] if record.kind == MESSAGE}
        self.world.seen["nobody goes on"] += 1
        for number in casts:
            self.counted_as_delivered(int(number))
        return sum(1 << number for number in {*map(int, casts), *map(int, totals)})

    def counted_as_delivered(self, number: int) -> None:
        """Note a cast of an outbox that a clock counts as delivered: it may be a wrong one."""
        if self.liar is not None:
            self.doubtful |= 1 << number

    def kill(self) -> bool:
        """Kill the liar; return whether there was one."""
        if self.liar is None or not self.liar.is_alive:
            return False
        self.world.end(self.liar)
        return True
