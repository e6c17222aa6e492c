"""A member's process, as it ships, one turn at a time.

The process runs the shipped sender (`connectors.client.incarnation.sender`) with all its parts: forwarder, driver,
send queue with go-back-N, outbox in a real file, tailer, heartbeats, rejoin. Its threads are turns that the world
gives. Its application notes views and calls, and delivers the records that the tailer passes on.

Two waits are replaced. The application asks for a quiet point and ends it in separate steps, in the place of
`Session.start_flush` and `stop_flush`, which wait. `Rejoin` goes on in a later turn, and only while each partition has
a leader.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from connectors.client.incarnation.forwarder import Forwarder
from connectors.client.incarnation.incarnations import Incarnations
from connectors.client.incarnation.sender import Sender
from connectors.client.memory.outbox import Outbox
from connectors.client.tail import sharing
from connectors.client.values.receipt import Receipt
from connectors.client.values.sending_limits import SendingLimits
from connectors.kafka.log.effective import Effective
from connectors.testing.memory_topics import MemoryFuture
from ordering.base.errors import (
    Blocked,
    BrokerUnreachable,
    Excluded,
    ForwardTableFull,
    HistoryUnavailable,
    NotOrderedInTime,
    ProtocolViolation,
    Superseded,
    UsageError,
)
from ordering.base.kinds import MESSAGE_KINDS
from ordering.base.names import Address
from ordering.base.records import FLUSH_OK, MESSAGE, START_FLUSH, STOP_FLUSH
from ordering.membership.membership import MemberIncarnation
from ordering.participant.forward_table import kind_of
from ordering.participant.participant import Participant
from ordering.participant.participant_events import (
    Asked,
    Began,
    CaughtUp,
    Event,
    FlushDone,
    FlushUnwanted,
    Renewed,
)
from ordering.participant.participant_table import INSIDE, OUTSIDE, Action, Cause, Do
from ordering.participant.participant_table import ParticipantPhase as Part
from tests.world.member_parts import GROUP, SITE, Calls, MemberConnection, MemberProducer, SteppedRejoin, Tailer
from tests.world.threads import StillAfterCallbacks, StillBeats

if TYPE_CHECKING:
    from tests.world.membership_jobs import MembershipJobs

RESEND_S = 1.5
HANGS = 0.03
"""Probability in each turn that block() does not return."""

DEAF = "deaf"
"""A member does not answer a flush, although its block() has returned."""
UNPAIRED = "unpaired"
"""block() and unblock() do not take turns."""
UNWANTED = "unwanted flush"
"""A flush that is not wanted any more goes on until its time is over."""
RETURNED = "returned"
"""A member that has left is back."""
LATE = "late"
"""A message that was kept back waits, although it may be sent."""
SPOKE = "spoke while quiet"
FROM_OUTSIDE = "sent from outside"
"""A closed group's stranger has sent a message."""
ILLEGAL = "illegal step"
"""The participant was told what its phase does not allow."""
ENDED = "ended"
"""A member has stopped with an error that nothing explains."""


@dataclass
class Stay:
    """A process's view of one incarnation, from its first view on."""

    life: MemberIncarnation
    seen: str = ""
    delivered: dict[int, list[int]] = field(default_factory=dict)
    """The seqnos of the messages that it has delivered in each of its views."""


class Process:
    """A process of a member, and what its application has done and seen."""

    def __init__(self, world: MembershipJobs, name: str, outbox: Path | None, before: Process | None = None) -> None:
        """Begin an incarnation. `before`: an earlier process with the same outbox. Raises what a start raises."""
        self.world, self.name, self.path = world, name, outbox
        self.address = f"{SITE}/{name}"
        self.is_alive = True
        self.most_records = 0
        self.now = Participant(MemberIncarnation(self.address, 0))
        self.stays: list[Stay] = []
        self.calls = ""
        self.said: dict[bytes, Receipt | None] = {}
        """Broadcasts of all its incarnations that it may expect to be ordered."""
        self.sent_in: dict[tuple[int, int], int] = {}
        """By incarnation and local seqno: the view in which it has sent a message, unless as a stranger."""
        self.sent_outside: set[tuple[int, int]] = set()
        self.unheard: list[MemoryFuture] = []
        """Records in Kafka that its producers still wait for."""
        self.stopped: set[int] = set()
        """The flushes that it has ended, or given up."""
        self.ended = 0
        """The flush of its own that it has ended."""
        self.wants_to_join = self.has_left = False
        if before is not None:
            self.said = dict.fromkeys(before.said)
            self.sent_in, self.sent_outside = dict(before.sent_in), set(before.sent_outside)
        connection = MemberConnection(
            world.connection.bootstrap_servers, topics=world.kafka.topics, kafka=world.kafka, process=self
        )
        self.outbox = Outbox(outbox, GROUP, self.address) if outbox is not None else None
        self.shared = sharing.share(connection)
        self._connection = connection
        self._calls = Calls(self.address, self._block, self._unblock)
        limits = SendingLimits(1_000, 1 << 20, RESEND_S)
        incarnations = Incarnations(Address(SITE, name), limits, self.outbox)
        self.sender = Sender(connection, GROUP, incarnations, self._calls)

    def begin(self) -> None:
        """Begin the first incarnation. Raises what a start raises."""
        self.sender.start()

    # --- what the world asks ---

    def producer(self, settings: dict[str, Any]) -> MemberProducer:
        """Return a producer."""
        return MemberProducer(self, settings)

    @property
    def forwarder(self) -> Forwarder:
        """The newest incarnation."""
        assert self.sender.forwarder is not None
        return self.sender.forwarder

    @property
    def rejoin(self) -> SteppedRejoin:
        """The rejoin, by turns."""
        assert isinstance(self.sender._rejoin, SteppedRejoin)
        return self.sender._rejoin

    @property
    def life(self) -> MemberIncarnation:
        """The newest incarnation's name and number."""
        return self.now.member

    @property
    def is_in(self) -> bool:
        """Whether the process takes itself for a member."""
        return self.now.phase in INSIDE

    @property
    def held(self) -> list[str]:
        """The kinds of the entries of its forward table."""
        return [f"{entry.local_seqno}={kind_of(entry)}" for entry in self.forwarder._pending_messages.table.pending()]

    @property
    def is_waiting(self) -> bool:
        """Whether something that it has asked for is still to come."""
        request = self.now.request
        wants = request is not None and request.is_wanted and not request.outcome
        return wants or self.rejoin.old is not None or self.forwarder.has_pending

    def turn(self, records: int) -> None:
        """Let each of its threads work. Raises what ends the process."""
        self.most_records = records
        self._tailer.turn()
        if self.world.is_healed or self.world.dice.random() >= HANGS:
            self._make_calls()
        self._tend_request()
        self._tailer.turn() if records > 100 else None
        self.rejoin.turn(self)
        self.hear()
        self.beat()
        self._see_its_end()

    def hear(self) -> None:
        """Hear of the records that are written, and send the messages that have gathered."""
        written, self.unheard = self.unheard, []
        for sent in written:
            sent.written(sent)  # type: ignore[arg-type]
        calls = self.shared.after_callbacks
        assert isinstance(calls, StillAfterCallbacks)
        calls.turn()

    @property
    def _tailer(self) -> Tailer:
        tailer = self.shared.tailer(GROUP, SITE)
        assert isinstance(tailer, Tailer)
        return tailer

    def beat(self) -> None:
        """Send a heartbeat, if one is due."""
        beats = self.shared.heartbeats(GROUP, SITE)
        assert isinstance(beats, StillBeats)
        beats.turn()

    def die(self) -> None:
        """Stop at once. Records on their way may still arrive."""
        self.is_alive = False
        if self.outbox is not None:
            self.outbox.close()
        sharing._open.pop((self.shared._process, self._connection), None)

    def _see_its_end(self) -> None:
        """Leave, when that is ordered or in vain. A member that has stopped must have an error that explains it."""
        now, failure = self.now, self.forwarder._lifecycle.failure
        if self.rejoin.old is not None:
            return
        if failure is not None:
            if isinstance(failure, HistoryUnavailable | Superseded):
                raise failure
            is_illegal = isinstance(failure, ProtocolViolation)
            self.world.blame(ILLEGAL if is_illegal else ENDED, f"{self.life}: {failure}")
            self.die()
        elif self.has_left:
            is_in_vain = now.settings.closed or not self.forwarder.has_pending
            if now.phase is Part.GONE or (now.joined_at is None and is_in_vain):
                self.forwarder.tell(Asked(Cause.CLOSE))
                self._make_calls()
                self.die()

    # --- the application ---

    def join(self) -> None:
        """Ask to join; again, if no broker answers."""
        with suppress(BrokerUnreachable):
            if self.now.phase in (Part.STRANGER, Part.KEPT_OUT):
                with suppress(NotOrderedInTime):
                    self.sender.join(0.0)
            self.wants_to_join = False

    def leave(self) -> None:
        """Ask to leave."""
        self.has_left = True
        self.forwarder.tell(Asked(Cause.LEAVE))

    def broadcast(self, payload: bytes = b"", count: int = 1) -> None:
        """Broadcast one message, or `count` in one call, if that is taken.

        A closed group's stranger has nothing to say before it has joined once.
        """
        now = self.now
        if self.has_left or (not self.said and now.joined_at is None and not now.sends_messages):
            return
        several = [payload or f"{self.address} {self.world.next_number()}".encode() for _ in range(count)]
        with suppress(Blocked, Excluded, ForwardTableFull, UsageError, BrokerUnreachable):
            receipt = self.forwarder.broadcast(several, (), 0.0)
            self.said |= {**dict.fromkeys(several), several[-1]: receipt}
            if now.is_silent:
                self.world.blame(SPOKE, f"{now.member} has taken {several!r}, {now.phase.value}")

    def want_flush(self) -> None:
        """Ask for a quiet point."""
        if self.is_in and self.now.request is None:
            self.forwarder.want_flush()

    def end_flush(self) -> bool:
        """End a quiet point of its own; return whether there was one."""
        request = self.now.request
        if not self.is_in or request is None or not request.is_quiet or self.ended == request.id:
            return False
        self.ended = request.id
        self.forwarder.tell(FlushDone())
        return True

    def give_up_flush(self) -> None:
        """Give up a quiet point before it has come."""
        request = self.now.request
        if request is not None and request.is_wanted and self.is_in and self.ended != request.id:
            self.forwarder.tell(FlushUnwanted())
            self._check_stopped(request.id if not request.outcome else 0)

    def _tend_request(self) -> None:
        """Hear what became of its quiet point."""
        request = self.now.request
        if request is not None and request.outcome and request.is_wanted and not self.forwarder.has_ended:
            self.forwarder.tell(FlushUnwanted())

    def _make_calls(self) -> None:
        """Make the calls that are due. Then the application is in block() exactly if it has to be."""
        for call in self._calls.due():
            before, is_answer = self.now.phase, isinstance(call, functools.partial)
            if is_answer and before is Part.BLOCKING and not self.calls.endswith("B"):
                self.world.blame(UNPAIRED, f"{self.life} answers a flush without block()")
            call()
            if is_answer and self.now.phase is Part.QUIET is not before:
                self._check_answered()
        is_in_block = self.calls.endswith("B")
        if is_in_block != self.now.owes_unblock or (is_in_block and self.now.is_dead):
            self.world.blame(UNPAIRED, f"{self.life} has had the calls {self.calls}, {self.now.phase.value}")

    def _check_answered(self) -> None:
        pending = self.forwarder._pending_messages.table.pending()
        if b"%d" % self.now.known.flush_id not in [e.payload for e in pending if kind_of(e) == FLUSH_OK]:
            self.world.blame(DEAF, f"{self.life} is quiet without a FLUSH_OK")

    def _block(self) -> None:
        self.calls += "B"
        if count := self.world.dice.randint(0, 2):
            self.broadcast(count=count)  # block() may

    def _unblock(self) -> None:
        self.calls += "U"

    def excuse(self, old: Forwarder) -> None:
        """Note that the messages of an excluded stranger may be lost: their receipts say so."""
        for entry in old._pending_messages.table.pending():
            self.said.pop(entry.payload, None)

    # --- what the world sees ---

    def stepped(self, before: Participant, event: Event, after: Participant, actions: tuple[Action, ...]) -> None:
        """See a step of the participant, before its actions are performed."""
        self.now = after
        if before.phase is not after.phase:
            self.world.tell(f"  {self.world.short(after.member)} is {after.phase.value}")
        self.stopped |= {action.flush_id for action in actions if action.kind == STOP_FLUSH}
        if isinstance(event, Began | CaughtUp | Renewed):
            stay, view = Stay(after.member), after.known.view
            if view is not None and after.member in view.incarnations:
                stay.seen = "VB" if after.known.flush_id else "V"
            self.stays.append(stay)
        if isinstance(event, Began) and self.has_left:
            self.world.blame(RETURNED, f"{after.member} has left, and begins anew")
        self._check_kept_back(before, after, actions)

    def _check_kept_back(self, before: Participant, now: Participant, actions: tuple[Action, ...]) -> None:
        """Check that a message is sent as soon as it may be."""
        is_kept = now.phase in (Part.KEPT_OUT, Part.AWAITING) and not now.settings.closed
        was_kept = not before.sends_messages or (before.is_unheard and not now.is_unheard)
        may_send = (self.is_in or now.phase in OUTSIDE) and now.sends_messages and was_kept
        is_sent = Do.SEND_TABLE in [action.do for action in actions]
        if is_kept or (may_send and before.phase is not Part.BETWEEN and not is_sent):
            self.world.blame(LATE, f"{now.member} keeps messages back, {now.phase.value}")

    def sends(self, headers: Sequence[tuple[str, bytes]]) -> None:
        """See a record that leaves. A lost one is sent again."""
        _, kind, incarnation, local_seqnos = headers[0][1].decode().split(" ")[:4]
        first, _, last = local_seqnos.partition("-")
        for local_seqno in range(int(first), int(last or first) + 1) if kind in MESSAGE_KINDS else ():
            self._sends_message((int(incarnation), local_seqno))

    def _sends_message(self, key: tuple[int, int]) -> None:
        now = self.now
        if key in self.sent_in:
            return
        if now.phase in (Part.KEPT_OUT, Part.AWAITING):
            self.world.blame(FROM_OUTSIDE, f"{now.member} has sent {key}")
        if self.is_in and now.known.view is not None:
            self.sent_in[key] = now.known.view.view_id
        else:
            self.sent_outside.add(key)

    def hears(self, run: Sequence[Effective], before: Participant) -> None:
        """See records that the tailer has passed on: messages, and perhaps a control record at the end."""
        for record in run:
            if record.kind == MESSAGE:
                self.deliver(record)
        if not run or run[-1].kind == MESSAGE or not self.stays:
            return
        self._look(before)
        if run[-1].kind == START_FLUSH:
            if MemberIncarnation(run[-1].sender, run[-1].incarnation) == self.life:
                self._check_stopped(run[-1].seqno)
            if self.is_in and run[-1].seqno not in self._calls.asked:
                self.world.blame(DEAF, f"{self.life} does not answer the flush {run[-1].seqno}")

    def deliver(self, record: Effective) -> None:
        """Deliver a message."""
        self.stays[-1].delivered.get(record.view, []).append(record.seqno)

    def _look(self, before: Participant) -> None:
        """Write down what its application sees."""
        known, stay = self.now.known, self.stays[-1]
        if self.now.joined_at is None or self.now.is_dead:
            return
        if known.view is not None and known.view is not before.known.view:
            if self.life in known.view.incarnations:
                stay.delivered[known.view.view_id] = []
                stay.seen += "V"
        elif known.flush_id and not before.known.flush_id:
            stay.seen += "B"
        elif before.known.flush_id and not known.flush_id:
            stay.seen += "U"

    def _check_stopped(self, flush_id: int) -> None:
        """A flush of its own is wanted by its application, or it has ended it."""
        request = self.now.request
        is_wanted = request is not None and request.is_wanted and request.id == flush_id
        if flush_id and self.is_in and not is_wanted and flush_id not in self.stopped:
            self.world.blame(UNWANTED, f"{self.life} has not stopped the flush {flush_id}")
