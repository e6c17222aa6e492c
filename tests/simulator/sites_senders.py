"""A member at a site, as far as the mesh cares: it sends again, joins, answers flushes, and is taken for dead."""

from __future__ import annotations

from ordering.base.reader import Reader, Verdict
from ordering.base.records import FLUSH_OK, HEARTBEAT, JOIN, LEAVE, MESSAGE, START_FLUSH, Data
from ordering.membership.membership import MemberIncarnation
from ordering.participant.events import EventReader, ViewChange
from tests.simulator.dice import Dice
from tests.simulator.sites_broker import SiteBroker


class Sender:
    """A member's name through all its incarnations; with `joins`, each begins with a JOIN."""

    def __init__(self, broker: SiteBroker, name: str, *, joins: bool) -> None:
        self.broker = broker
        self.address = f"{broker.site}/{name}"
        self.place = sum(name.encode()) % sum(topic.startswith("abcast.g.forward") for topic, _ in broker.topics)
        self.joins = joins
        self.incarnation = 0
        self.pending: list[tuple[int, str, bytes]] = []
        """Sent, and not seen in DATA."""
        self.last = 0
        self.offset = 0
        self.reader = Reader()
        self.events = EventReader()
        self.is_in = False
        self.is_quiet = False
        self.is_leaving = False
        self.is_paused = False
        self._begin_life([])

    def _begin_life(self, payloads: list[bytes]) -> None:
        self.incarnation, self.last, self.pending, self.is_in, self.is_quiet = self.incarnation + 1, 0, [], False, False
        if self.joins:
            self._put(JOIN)
        for payload in payloads:
            self._put(MESSAGE, payload)

    def _put(self, kind: str, payload: bytes = b"") -> None:
        self.last += 1
        self.pending.append((self.last, kind, payload))

    def broadcast(self, payload: bytes) -> bool:
        if self.is_quiet or self.is_leaving or self.is_paused:
            return False
        self._put(MESSAGE, payload)
        return True

    def leave(self) -> None:
        if self.is_in and not self.is_leaving:
            self.is_leaving = True
            self._put(LEAVE)

    def crash(self) -> None:
        """Start again without a memory of the sent messages."""
        self._begin_life([])

    def send(self, now_ms: int, dice: Dice | None = None) -> None:
        """Send the whole table again, partly lost."""
        if self.is_paused:
            return
        for local_seqno, kind, payload in self.pending:
            if dice is None or not dice.chance(15):
                self._append(local_seqno, kind, payload, now_ms)
        self.beat(now_ms)

    def beat(self, now_ms: int) -> None:
        if self.joins and not self.is_paused and not (self.is_leaving and not self.is_in):
            self._append(1, HEARTBEAT, b"", now_ms)

    def _append(self, local_seqno: int, kind: str, payload: bytes, now_ms: int) -> None:
        self.broker.append(
            self.place, self.address, self.incarnation, local_seqno, payload=payload, kind=kind, at_ms=now_ms
        )

    def read(self, count: int) -> None:
        if self.is_paused:
            return
        for record in self.broker.data[self.offset : self.offset + count]:
            self.offset += 1
            if self.reader.judge(record) is Verdict.TAKE:
                self._take(record)

    def _take(self, record: Data) -> None:
        if (record.sender, record.incarnation) == (self.address, self.incarnation):
            self.pending = [entry for entry in self.pending if entry[0] > record.local_seqno]
        if not self.joins:
            return
        event = self.events.accept(record.kind, record.seqno, record.view, record.sender, record.payload)
        if isinstance(event, ViewChange):
            self._take_view(event)
        if self.is_in and record.kind == START_FLUSH:
            self.is_quiet = True
            if not self.is_leaving:
                self._put(FLUSH_OK, b"%d" % record.seqno)
        elif not self.events.is_blocked:
            self.is_quiet = False

    def _take_view(self, view: ViewChange) -> None:
        was_in, self.is_in = self.is_in, MemberIncarnation(self.address, self.incarnation) in view.incarnations
        if self.is_in and not was_in:
            self.is_quiet = self.events.is_blocked
        if was_in and not self.is_in and not self.is_leaving:
            self._come_again()

    def _come_again(self) -> None:
        """Come again after a suspicion: messages of the old incarnation are sent again in the next one."""
        if self.broker.tells(self.offset).is_over(self.address, self.incarnation):
            self._begin_life([payload for _, kind, payload in self.pending if kind == MESSAGE])
        else:
            self._put(JOIN)
