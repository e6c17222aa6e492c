"""A group with members that join, leave, die and flush, under a sequencer that dies, too: one seed, one history.

In some histories there is a neighbouring site, whose views come by a relay.

The members run what ships: `ordering.participant.participant`, with a forward table and the reading rule. The
rest is simulated: an application that broadcasts whenever it may, whose block() takes its time or hangs,
and a network that loses records. Each partition of FORWARD has a leader, whose clock jumps, and which is away now
and then.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections import Counter
from dataclasses import dataclass, field, replace

from ordering.base.errors import ProtocolViolation
from ordering.base.formats import FIRST, NEWEST
from ordering.base.reader import Reader, Seal, Verdict, with_seal
from ordering.base.records import (
    FLUSH_OK,
    HEARTBEAT,
    JOIN,
    MESSAGE,
    SETTINGS,
    START_FLUSH,
    STOP_FLUSH,
    Data,
    Forward,
    Partition,
    Source,
)
from ordering.checker.anomalies import DUPLICATE, LOST
from ordering.checker.checker import Checker
from ordering.membership.failure_detector import FailureDetector, LastHeard
from ordering.membership.flush import Flush, FlushPhase
from ordering.membership.membership import MemberIncarnation, Membership, RemoteSite
from ordering.membership.settings import Settings
from ordering.participant import participant
from ordering.participant.events import EventReader
from ordering.participant.forward_table import (
    ForwardTable,
    Pending,
    carried_over,
    control_headers,
    is_control,
    kind_of,
    was_ordered,
)
from ordering.participant.participant import Participant
from ordering.participant.participant_events import (
    Answered,
    Asked,
    Began,
    CaughtUp,
    Event,
    FlushDone,
    FlushUnwanted,
    FlushWanted,
)
from ordering.participant.participant_table import INSIDE, OUTSIDE, Action, Cause, Do
from ordering.participant.participant_table import ParticipantPhase as Part
from ordering.participant.rejoin import begins_returning, begins_stranded, newest_answer, next_entries
from ordering.sequencer import sequencer
from ordering.sequencer.sequencer import absorb, begin_batch, end_batch, seal, snapshot
from ordering.sequencer.state import SequencerState
from tests.simulator.columns import step_by_columns
from tests.simulator.kafka import Away, Kafka
from tests.simulator.neighbour import SITE, Neighbour

TOPIC = "abcast.g.forward.s"
RELAYED = f"abcast.g.relayed-{SITE}.s"
DATA = "abcast.g.data.s"
POWERS = ("clock", "away", "marker")
"""Powers over FORWARD's partitions, in a third of the histories."""
ACTIONS = 250
NEVER = 1_000_000
PATTERN = re.compile(r"V+|V(V*U)?(BV*U)*(BV*)?")
PATTERN_WITHOUT_FLUSH = re.compile(r"V+(V*U)?(V*BV*U)*(V*BV*)?V*")
CALLS = re.compile("(BU)*B?")

WRONG_VIEW = "wrong view"
"""The group counts a stranger as a member, or a member as none."""
HANGING = "hanging flush"
DEAF = "deaf"
"""A member does not answer a flush, although its block() has returned."""
BLOCKED = "blocked"
"""The flush is over, and a member does not know it."""
STUCK = "stuck"
"""A message, or a control record, is not ordered however often it is sent."""
OTHER_VIEW = "other view"
"""A message is delivered in another view than that in which it was sent."""
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
OTHER_STATE = "DATA tells another state than the sequencer has"
ILLEGAL = "illegal step"
"""The participant was told what its phase does not allow."""


@dataclass
class Stay:
    """A process's view of one incarnation, from its first view on."""

    life: MemberIncarnation
    seen: str = ""
    delivered: dict[int, list[int]] = field(default_factory=dict)
    """The seqnos of the messages that it has delivered in each of its views."""


@dataclass
class Process:
    """A process: its participant with what drives it, and what its application has done and seen."""

    partition: int
    participant: Participant
    table: ForwardTable = field(default_factory=lambda: ForwardTable(1_000, 1 << 20))
    offset: int = 0
    reader: Reader = field(default_factory=Reader)
    stays: list[Stay] = field(default_factory=list)
    is_alive: bool = True
    wants_to_join: bool = False
    has_left: bool = False
    begins_anew: bool = False
    asked: list[int] = field(default_factory=list)
    """The flushes that its block() is to answer."""
    answers: bool = False
    """The process sends its kept messages and FLUSH_OK now."""
    ended: int = 0
    """The flush of its own that it has ended."""
    calls: str = ""
    sent_in: dict[tuple[int, int], int] = field(default_factory=dict)
    """In which view it has sent a message, by incarnation and local seqno. What it sent as a stranger is in none."""
    sent_outside: set[tuple[int, int]] = field(default_factory=set)
    stopped: set[int] = field(default_factory=set)
    """The flushes that it has ended, or given up."""
    said: list[bytes] = field(default_factory=list)
    """Broadcasts of all its incarnations that it may expect to be ordered."""

    @property
    def life(self) -> MemberIncarnation:
        return self.participant.member

    @property
    def address(self) -> str:
        return self.life.address

    @property
    def is_in(self) -> bool:
        return self.participant.phase in INSIDE


def _is_message(entry: Pending) -> bool:
    return kind_of(entry) == MESSAGE


def decided(state: SequencerState) -> SequencerState:
    """Drop the parts that are no decisions: only snapshots may have them."""
    membership = replace(state.membership.without_time(), horizon={})
    state = replace(state, positions={}, decided={}, duplicates=0, unsnapped=0, latest_ms=0, snapshot_ms=0, aged={})
    return replace(state, membership=membership)


class Group:
    """A seed's history. `run` it; `problems` has the violations."""

    spoken = 0
    versions: random.Random | None = None
    upgraded_at = NEVER
    """The epoch from which on the group has format 2."""

    def __init__(self, seed: int, *, has_versions: bool = True) -> None:
        """`has_versions`: jobs of earlier and later versions take over, and an operator may upgrade the group."""
        self.random = random.Random(seed)
        if has_versions:
            self.versions = random.Random(f"versions {seed}")
            self.upgraded_at = self.versions.choice((1, 2, 4, NEVER))
        self.with_flush = self.random.random() < 0.6
        self.kafka = Kafka(seed, POWERS if seed % 3 == 2 else ())
        self.own_partitions = self.random.randint(1, 3)
        self.places = [Partition(TOPIC, partition) for partition in range(self.own_partitions)]
        self.neighbour = Neighbour(self.random, self._relay) if self.random.random() < 0.5 else None
        if self.neighbour is not None:
            self.places.append(Partition(RELAYED, 0))
        self.forward = [self.kafka.log(*place) for place in self.places]
        self.data: list[Data] = self.kafka.log(DATA).records
        self.told, self.told_until = SequencerState("g"), 0
        self.state: SequencerState | None = None
        self.epoch = 0
        self.lives = 0
        self.processes: list[Process] = []
        self.problems: list[str] = []
        self.healing = self.is_steady = False
        self.crashes: Counter[tuple[str, FlushPhase]] = Counter()
        """Crashes by process and phase of a flush."""
        self.settings = Settings(self.random.random() < 0.3, self.with_flush, 3_000, 8_000)
        self.changes = 1
        """Changes of the settings."""
        self._append(MemberIncarnation("s/abcast.admin", 1), 0, 1, SETTINGS, self.settings.to_json())

    def run(self) -> list[str]:
        weights = {
            "work": 40, "sequence": 30, "join": 5, "leave": 2, "crash": 2, "broadcast": 10, "flush": 5, "stop": 2,
            "sequencer_crash": 3, "wait": 4, "pause": 4, "crash_in_a_flush": 3, "backlog": 1, "standstill": 1,
            "catch_up": 2, "restart": 2, "settings": 0.5,
        }  # fmt: skip
        if self.neighbour is not None:
            weights |= {"relay": 8, "neighbour": 3}
        try:
            for _ in range(ACTIONS):
                getattr(self, f"_do_{self.random.choices(list(weights), list(weights.values()))[0]}")()
                self.kafka.mishap(self.places, 0.05)
            self._heal()
        except ProtocolViolation as error:
            self._found(ILLEGAL, str(error))
            return self.problems
        self._check()
        return self.problems

    # What happens.

    def _one(self) -> Process | None:
        alive = [process for process in self.processes if process.is_alive]
        return self.random.choice(alive) if alive else None

    def _append(self, life: MemberIncarnation, place: int, local_seqno: int, kind: str, payload: bytes) -> None:
        """Append a record; one that can't be written is lost."""
        log = self.forward[place]
        with contextlib.suppress(Away):
            source = Source(*self.places[place], log.end)
            log.append(Forward(*life, local_seqno, payload, source, kind=kind, timestamp_ms=log.now_ms))

    def _do_work(self) -> None:
        """Let a process read, act, send its table (partly lost) and a heartbeat."""
        if (process := self._one()) is not None:
            self._work(process, self.random.randint(1, 12), 0.9)

    def _work(self, process: Process, records: int, luck: float) -> None:
        self._read(process, records)
        self._answer(process)
        self._tend_request(process)
        if process.begins_anew:
            self._begin_anew(process)
        if process.participant.phase is Part.LEAVING and process.participant.joined_at is None:
            self._leave_unseen(process)
        if process.wants_to_join and process.is_alive and (self.healing or self.random.random() < 0.3):
            self._join(process)
        self._send(process, luck)

    def _leave_unseen(self, process: Process) -> None:
        """Leave without a view: the LEAVE is ordered, or never will be, as the group has closed (`close` ends)."""
        is_in_vain = process.participant.settings.closed and any(map(_is_message, process.table.pending()))
        if is_in_vain or not process.table:
            self._tell(process, Asked(Cause.CLOSE))

    def _send(self, process: Process, luck: float) -> None:
        for entry in process.table.pending():
            if process.participant.may_send(entry):
                self._send_one(process, entry, luck)
        if process.participant.is_heard:
            self._append(process.life, process.partition, 1, HEARTBEAT, b"")

    def _send_one(self, process: Process, entry: Pending, luck: float) -> None:
        """Send a message once; a lost one is sent again."""
        key, now = (process.life.incarnation, entry.local_seqno), process.participant
        if kind_of(entry) == MESSAGE and key not in process.sent_in:
            if now.is_silent and not process.answers and key not in process.sent_outside:
                self._found(SPOKE, f"{process.life} has sent {entry.payload!r}")
            if now.phase in (Part.KEPT_OUT, Part.AWAITING):
                self._found(FROM_OUTSIDE, f"{process.life} has sent {entry.payload!r}")
            if process.is_in and now.known.view is not None:
                process.sent_in[key] = now.known.view.view_id
            else:
                process.sent_outside.add(key)
        if self.random.random() < luck:
            self._append(process.life, process.partition, entry.local_seqno, kind_of(entry), entry.payload)

    def _do_join(self) -> None:
        """A new process: a member, or a stranger for a while."""
        if not self._known().seqno:
            return  # the group's settings are not ordered yet
        alive = {process.address for process in self.processes if process.is_alive}
        address = f"s/{self.random.choice('abcdefg')}"
        if address not in alive and len(alive) < 5:
            process = Process(sum(address.encode()) % self.own_partitions, Participant(MemberIncarnation(address, 0)))
            self.processes.append(process)
            self._begin(process)
            process.wants_to_join = True
            if self.random.random() < 0.8:
                self._join(process)

    def _join(self, process: Process) -> None:
        """Unless a view has it already: an earlier start had asked."""
        process.wants_to_join = False
        if process.participant.phase in (Part.STRANGER, Part.KEPT_OUT):
            self._tell(process, Asked(Cause.JOIN))

    def _begin(self, process: Process, *, incarnation: int = 0) -> None:
        """A life, at the end of DATA. With an `incarnation`, the one that the outbox has."""
        if not incarnation:
            self.lives += 1
        life = MemberIncarnation(process.address, incarnation or self.lives)
        self._go_to_the_end(process)
        process.asked.clear()
        pending = list(process.table.pending())
        joins = any(kind_of(entry) == JOIN for entry in pending)
        self._tell(
            process, Began(life, self._known(), joins, newest_answer(pending), returns=begins_returning(pending))
        )
        self._go_on_in_view(process)
        self._send(process, 0.9)

    def _go_on_in_view(self, process: Process) -> None:
        """Go on in a view whose beginning, and thus whose deliveries, the process does not know."""
        stay, view = Stay(process.life), process.participant.known.view
        if view is not None and process.life in view.incarnations:
            stay.seen = "VB" if process.participant.known.flush_id else "V"
        process.stays.append(stay)

    def _go_to_the_end(self, process: Process) -> None:
        known = self._known()
        process.offset, process.reader = len(self.data), Reader(known.epoch, known.seqno)

    def _tell(self, process: Process, event: Event) -> None:
        """An event, and what follows from it."""
        before = process.participant
        process.participant, actions = participant.step(before, event)
        for action in actions:
            self._perform(process, action)
        self._check_kept_back(process, before, actions)
        if process.participant.is_stranded(process.table.pending()):
            self._tell(process, Asked(Cause.STRANDED))
        if process.participant.phase is Part.GONE:
            process.is_alive = False

    def _check_kept_back(self, process: Process, before: Participant, actions: tuple[Action, ...]) -> None:
        """Check that a message is sent as soon as it may be."""
        now = process.participant
        is_kept = now.phase in (Part.KEPT_OUT, Part.AWAITING) and not now.settings.closed
        was_kept = not before.sends_messages or (before.is_unheard and not now.is_unheard)
        may_send = (process.is_in or now.phase in OUTSIDE) and now.sends_messages and was_kept
        is_sent = Do.SEND_TABLE in [action.do for action in actions]
        if is_kept or (may_send and before.phase is not Part.BETWEEN and not is_sent):
            self._found(LATE, f"{now.member} keeps back {list(process.table.pending())}, {now.phase.value}")

    def _perform(self, process: Process, action: Action) -> None:
        if action.do is Do.SEND:
            if action.kind == STOP_FLUSH:
                process.stopped.add(action.flush_id)
            entry = process.table.append(action.payload, control_headers(action.kind))
            if process.participant.may_send(entry):
                self._send_one(process, entry, 0.9)
        elif action.do is Do.SEND_TABLE:
            self._send(process, 0.9)
        elif action.do is Do.BLOCK:
            process.calls += "B"
            for _ in range(self.random.randint(0, 2)):
                self._broadcast(process)  # block() may
        elif action.do is Do.ASK:
            process.asked.append(action.flush_id)
        elif action.do is Do.UNBLOCK:
            process.calls += "U"
        elif action.do is Do.BEGIN_ANEW:
            process.begins_anew = True

    def _answer(self, process: Process) -> None:
        """Its block() returns."""
        asked, process.asked = process.asked, []
        for flush_id in asked:
            if not self.healing and self.random.random() < 0.03:
                continue  # it hangs
            process.answers = True
            self._tell(process, Answered(flush_id))
            process.answers = False
            said = [entry.payload for entry in process.table.pending() if kind_of(entry) == FLUSH_OK]
            if process.participant.phase is Part.QUIET and b"%d" % process.participant.known.flush_id not in said:
                self._found(DEAF, f"{process.life} is quiet without a FLUSH_OK")

    def _tend_request(self, process: Process) -> None:
        """Its application hears what became of its quiet point."""
        request = process.participant.request
        if request is not None and request.outcome and request.is_wanted:
            self._tell(process, FlushUnwanted())

    def _begin_anew(self, process: Process) -> None:
        """Begin anew after a suspicion. A stranger's messages may still be ordered; at last it gives them up."""
        is_over = process.participant.phase is Part.OVER
        if not is_over and len(process.table) and (self.healing or self.random.random() < 0.7):
            return
        process.begins_anew = False
        self._hand_over(process)

    def _hand_over(self, process: Process) -> None:
        before = process.participant.phase
        process.participant, actions = participant.step(process.participant, Asked(Cause.HAND_OVER))
        pending = list(process.table.pending())
        if [action.do for action in actions] != [Do.CARRY]:
            if before is Part.EXCLUDED:  # else there is no reason to lose anything
                lost = {entry.payload for entry in pending}
                process.said = [payload for payload in process.said if payload not in lost]
            pending = []
        self._fill(process, self._carried(process.life, pending), joins=True)
        self._begin(process)

    def _carried(self, life: MemberIncarnation, pending: list[Pending]) -> list[Pending]:
        """Return an incarnation's messages for the next one, without those since ordered."""
        ordered = self._known().ordered(life.address)
        carried = [carried_over(entry, life.incarnation) for entry in pending if not is_control(entry)]
        return [entry for entry in carried if not was_ordered(entry, *ordered)]

    @staticmethod
    def _fill(process: Process, pending: list[Pending], *, joins: bool) -> None:
        process.table = ForwardTable(1_000, 1 << 20)
        for payload, headers in next_entries(pending, joins=joins):
            process.table.append(payload, headers)

    def _do_catch_up(self) -> None:
        """Retention has dropped what it had not read."""
        process = self._one()
        if process is not None and process.participant.phase is not Part.BETWEEN:
            self._skip(process)

    def _skip(self, process: Process) -> None:
        known = self._known()
        ordered = known.ordered(process.address)
        if process.participant.is_returning and ordered.incarnation == process.life.incarnation:
            # the last incarnation's ordered messages can't be told any more
            self._kill(process, known.membership.flush)
            return
        self._go_to_the_end(process)
        process.table.take_out(*ordered)
        if ordered.incarnation == process.life.incarnation:
            process.table.acknowledge(ordered.local_seqno)
        joins = any(kind_of(entry) == JOIN for entry in process.table.pending())
        self._tell(process, CaughtUp(known, joins))
        self._go_on_in_view(process)

    def _do_restart(self) -> None:
        """Somebody with an outbox is killed and starts again at once, in the same life if that can go on."""
        process = self._one()
        if process is not None and not process.has_left and not process.participant.is_dead:
            self._restart(process)

    def _restart(self, process: Process) -> None:
        known, before = self._known(), process.participant
        self._kill(process, known.membership.flush)
        self._hear_of_earlier_lives(process)
        ordered = known.ordered(process.address)
        if ordered.incarnation == before.member.incarnation:
            process.table.acknowledge(ordered.local_seqno)
        again = Process(process.partition, Participant(before.member), process.table, said=process.said)
        again.sent_in, again.sent_outside = dict(process.sent_in), set(process.sent_outside)
        process.said = []
        self.processes.append(again)
        pending = list(again.table.pending())
        if known.is_over(*before.member) or begins_stranded(before.member, pending, known):
            carried = self._carried(before.member, pending)
            self._fill(again, carried, joins=bool(carried) and known.membership.settings.closed)
            self._begin(again)
        else:
            self._begin(again, incarnation=before.member.incarnation)
        again.wants_to_join = again.participant.phase in (Part.STRANGER, Part.KEPT_OUT)

    def _hear_of_earlier_lives(self, process: Process) -> None:
        """Return the records of DATA behind its position."""
        reader = replace(process.reader)
        for record in self.data[process.offset :]:
            if reader.accept(record.kind, record.epoch, record.seqno) is Verdict.TAKE:
                self._take_out(process, record)

    def _take_out(self, process: Process, record: Data) -> None:
        """Take out messages that an earlier incarnation had ordered."""
        if record.sender == process.address and record.incarnation < process.life.incarnation:
            process.table.take_out(record.incarnation, record.local_seqno)

    def _do_settings(self) -> None:
        """The operator lets everybody send, or members only; and opens a group again at once, now and then."""
        if self._known().membership.settings == self.settings:  # one change after the other
            self.settings = replace(self.settings, closed=not self.settings.closed)
            self.changes += 1
            self._append(MemberIncarnation("s/abcast.admin", 1), 0, self.changes, SETTINGS, self.settings.to_json())

    def _do_leave(self) -> None:
        process = self._one()
        if process is not None and process.participant.is_heard and not process.has_left:
            process.has_left = True
            self._tell(process, Asked(Cause.LEAVE))

    def _do_crash(self) -> None:
        if (process := self._one()) is not None:
            self._kill(process, self._known().membership.flush)

    def _do_crash_in_a_flush(self) -> None:
        """Crash a process in a flush: its requester half of the time."""
        flush = self._known().membership.flush
        if flush.phase is FlushPhase.RUNNING:
            return
        members = [each for each in self.processes if each.is_alive and each.is_in]
        requesters = [each for each in members if each.address == flush.requester]
        if members:
            self._kill(self.random.choice(requesters or members if self.random.random() < 0.5 else members), flush)

    def _kill(self, process: Process, flush: Flush) -> None:
        process.is_alive = False
        who = "requester" if flush.id and flush.requester == process.address else "member"
        self.crashes[who if process.is_in else "joiner", flush.phase] += 1

    def _known(self) -> SequencerState:
        """Return the state that DATA tells, read on from the last position; a successor reads from the beginning."""
        self.told = absorb(self.told, self.data[self.told_until :])
        self.told_until = len(self.data)
        return self.told

    def _do_broadcast(self) -> None:
        if (process := self._one()) is not None:
            self._broadcast(process)

    def _broadcast(self, process: Process) -> None:
        """Unless it must not now. A closed group's stranger has nothing to say before it has joined once."""
        now = process.participant
        is_new = not process.said and now.joined_at is None
        if not now.takes_messages or process.has_left or (is_new and not now.sends_messages):
            return
        self.spoken += 1  # no local seqno: that may change until it is sent
        payload = f"{process.life} {self.spoken}".encode()
        process.said.append(payload)
        entry = process.table.append(payload, ())
        if now.sends_messages:
            self._send_one(process, entry, 0.9)

    def _do_flush(self) -> None:
        process = self._one()
        if process is not None and process.is_in and process.participant.request is None:
            self._tell(process, FlushWanted(process.table.last + 1))

    def _do_stop(self) -> None:
        """End a quiet point; now and then a requester gives up before."""
        process = self._one()
        if process is not None and not self._end_flush(process) and self.random.random() < 0.3:
            self._give_up(process)

    def _end_flush(self, process: Process) -> bool:
        request = process.participant.request
        if not process.is_in or request is None or not request.is_quiet or process.ended == request.id:
            return False
        process.ended = request.id
        self._tell(process, FlushDone())
        return True

    def _give_up(self, process: Process) -> None:
        request = process.participant.request
        if request is not None and request.is_wanted and process.is_in and process.ended != request.id:
            self._tell(process, FlushUnwanted())
            self._check_stopped(process, request.id if not request.outcome else 0)

    def _check_stopped(self, process: Process, flush_id: int) -> None:
        """A flush of its own is wanted by its application, or it has ended it."""
        request = process.participant.request
        is_wanted = request is not None and request.is_wanted and request.id == flush_id
        if flush_id and process.is_in and not is_wanted and flush_id not in process.stopped:
            self._found(UNWANTED, f"{process.life} has not stopped the flush {flush_id}")

    def _do_wait(self) -> None:
        """Let time pass: live members beat, and the job ticks."""
        self.kafka.now_ms += self.random.choice((200, 1_000, 1_500))
        for process in self.processes:
            if process.is_alive and process.participant.is_heard:
                self._append(process.life, process.partition, 1, HEARTBEAT, b"")
        if self.neighbour is not None:
            self._do_relay()
        self._tick()

    def _do_pause(self) -> None:
        """Somebody is not heard for long, and then is: it was suspected wrongly."""
        paused = self._one()
        for _ in range(5):
            self.kafka.now_ms += 1_000
            for process in self.processes:
                if process.is_alive and process is not paused and process.participant.is_heard:
                    self._append(process.life, process.partition, 1, HEARTBEAT, b"")
            self._tick()
            self._do_sequence()
        if paused is not None and paused.is_alive:
            self._broadcast(paused)  # it knows of nothing yet

    def _do_backlog(self) -> None:
        """The sequencer falls behind by more than a flush may take."""
        for _ in range(12):
            self._do_work()
            self._do_wait()

    def _do_standstill(self) -> None:
        """Let no record be written for a while; then the job ticks."""
        self.kafka.now_ms += 30_000
        self._tick()
        self._do_sequence()

    def _tick(self) -> None:
        known = self.state.seqno if self.state is not None else 0
        for place, (topic, _) in enumerate(self.places):
            site = "s" if topic == TOPIC else SITE
            self._append(MemberIncarnation(f"{site}/abcast.tick", 1), place, max(known, 1), HEARTBEAT, b"")

    # The neighbouring site.

    def _relay(self, sender: str, kind: str, incarnation: int, local_seqno: int, payload: bytes) -> None:
        self._append(MemberIncarnation(sender, incarnation), len(self.places) - 1, local_seqno, kind, payload)

    def _do_relay(self) -> None:
        """The relay waits until it can write."""
        assert self.neighbour is not None
        if not self.forward[-1].is_away:
            self.neighbour.work()

    def _do_neighbour(self) -> None:
        """Something happens there."""
        there = self.neighbour
        assert there is not None
        events = [there.change_view, there.take_over, there.start_relay, there.kill_relay, there.stop_relay]
        self.random.choices(events, (3, 2, 4, 1, 1))[0]()

    # The sequencer.

    def _do_sequencer_crash(self) -> None:
        self.crashes["sequencer", self._known().membership.flush.phase] += 1
        self.state = None

    def _do_sequence(self) -> None:
        """A batch; the process may die in the middle of writing it."""
        if self.state is None:
            self._take_over()
            return
        state, written = self._decide(self.state)
        if self.random.random() < 0.05 and not self.is_steady:
            self.data += written[: self.random.randint(0, len(written))]
            self._do_sequencer_crash()
            return
        self.data += written
        self.state = state
        known = self._known()
        if decided(known) != decided(state):
            self.problems.append(OTHER_STATE)

    def _decide(self, state: SequencerState) -> tuple[SequencerState, list[Data]]:
        rows: list[Forward] = []
        for place, log in zip(self.places, self.forward, strict=True):
            count = self.random.randint(1, 100) if not self.healing else None
            with contextlib.suppress(Away):
                rows += [record for _, record in log.read(state.positions.get(place, 0), count)]
        state, opening = begin_batch(state)
        written = list(opening)
        cut = self.random.randint(0, len(rows))
        for part in (rows[:cut], rows[cut:]):
            rowwise, columnwise = sequencer.step(state, part), step_by_columns(state, part)
            if rowwise != columnwise:
                self.problems.append("step_columns decides otherwise than step")
            state = rowwise.state
            written += [record for record in rowwise.outputs if isinstance(record, Data)]
            if self.random.random() < 0.1 and SequencerState.from_bytes(state.to_bytes()) != state:
                self.problems.append("the state does not round-trip")
        state, closing = end_batch(state)
        return state, [*written, *closing]

    def _take_over(self) -> None:
        """Take over, which asks for each partition's end: it can't begin while one has no leader."""
        if any(log.is_away for log in self.forward):
            return
        before = absorb(SequencerState("g"), self.data)
        if decided(before) != decided(self._known()):
            self.problems.append("DATA tells another state when it is read in parts")
        self.epoch += 1
        of_format = NEWEST.number if self.epoch >= self.upgraded_at else FIRST.number
        self.data.append(seal(self.epoch, of_format))
        seals = with_seal(before.seals, Seal(self.epoch, before.seqno + 1))
        state = replace(before, epoch=self.epoch, format=of_format, seals=seals, unsnapped=0)
        state, first = self._first_snapshot(state)
        self.data.append(first)
        if self.epoch % 4 == 0:  # the ledger tells the state: FORWARD is read again from its beginning
            state = replace(state, positions={})
        horizon = {place: log.end for place, log in zip(self.places, self.forward, strict=True)}
        self.state = replace(state, membership=replace(state.membership, horizon=horizon))

    def _first_snapshot(self, state: SequencerState) -> tuple[SequencerState, Data]:
        """Return the state and the snapshot of a job of this version, or of an earlier or a later one."""
        if self.versions is None or self.versions.random() < 0.6:
            return state, snapshot(state)
        if state.format == FIRST.number:
            times = replace(state.membership, detector=self._earlier_times(state.membership))
            return state, replace(snapshot(state), payload=replace(state, membership=times).to_bytes())
        fields = {"later": self.epoch}
        settings = replace(state.membership.settings, unknown=fields)
        membership = replace(state.membership, settings=settings, unknown=fields)
        state = replace(state, membership=membership, unknown=fields)
        return state, snapshot(state)

    def _earlier_times(self, membership: Membership) -> FailureDetector:
        """Return the times of 0.1.0: a partition's clock was the newest of its brokers' timestamps."""
        clock = {place: log.now_ms for place, log in zip(self.places, self.forward, strict=True)}
        heard = {life.address: LastHeard(self.places[0], 1) for life in membership.members}  # long ago
        return FailureDetector(heard, clock, announced_flush=membership.flush.id, announced_ms=dict.fromkeys(clock, 1))

    # The members.

    def _read(self, process: Process, count: int) -> None:
        for record in self.data[process.offset : process.offset + count]:
            if not process.is_alive:
                return
            process.offset += 1
            if process.reader.accept(record.kind, record.epoch, record.seqno) is Verdict.TAKE:
                self._take(process, record)

    def _take(self, process: Process, record: Data) -> None:
        if MemberIncarnation(record.sender, record.incarnation) == process.life:
            process.table.acknowledge(record.local_seqno)
        self._take_out(process, record)
        if record.kind == MESSAGE:
            process.stays[-1].delivered.get(record.view, []).append(record.seqno)
            return
        before = process.participant.known
        self._tell(process, record)
        self._look(process, before.view, before.flush_id)
        if record.kind != START_FLUSH:
            return
        if MemberIncarnation(record.sender, record.incarnation) == process.life:
            self._check_stopped(process, record.seqno)
        if process.is_in and record.seqno not in process.asked:
            self._found(DEAF, f"{process.life} does not answer the flush {record.seqno}")

    def _look(self, process: Process, view: object, flush_id: int) -> None:
        """Write down what its application sees."""
        known, stay = process.participant.known, process.stays[-1]
        if process.participant.joined_at is None or process.participant.is_dead:
            return
        if known.view is not None and known.view is not view:
            if process.life in known.view.incarnations:
                stay.delivered[known.view.view_id] = []
                stay.seen += "V"
        elif known.flush_id and not flush_id:
            stay.seen += "B"
            if process.participant.phase is Part.BLOCKING and not process.calls.endswith("B"):
                self._found(UNPAIRED, f"{process.life} is in a flush without block()")
        elif flush_id and not known.flush_id:
            stay.seen += "U"

    # The end.

    def _heal(self) -> None:
        self.healing = True
        self.kafka.heal()
        for number in range(120):
            self.kafka.now_ms += 700
            if number < 100:
                self.kafka.mishap(self.places, 0.1)
            if number == 60 and self.kafka.powers:
                self._die_for_good()
            for process in list(self.processes):
                if process.is_alive:
                    self._end_flush(process)
                    self._work(process, len(self.data), 1)
            if self.neighbour is not None:
                self.neighbour.heal()
            self._tick()
            self._do_sequence()
        if self.state is None:
            self._take_over()
        for process in list(self.processes):
            if process.is_alive:
                self._read(process, len(self.data))

    def _die_for_good(self) -> None:
        """From now on no takeover resets the time: the log's clock must find dead members, however it jumps."""
        self.is_steady = True
        if (process := self._one()) is not None:
            self._kill(process, self._known().membership.flush)

    def _found(self, name: str, detail: str) -> None:
        self.problems.append(f"{name}: {detail}")

    def _check(self) -> None:
        assert self.state is not None
        alive = [process for process in self.processes if process.is_alive]
        membership = self.state.membership
        if {process.life for process in alive} != set(membership.members):
            self._found(WRONG_VIEW, f"alive are {[p.life for p in alive]}, but the view is {membership.members}")
        if membership.flush.phase.value != "running":
            self._found(HANGING, f"the flush hangs: {membership.flush}")
        self._check_alive(alive)
        self._check_neighbour(membership, alive)
        self._check_seen()
        self._check_views()
        self._check_survivors()
        self._check_messages(alive)
        checker = Checker()
        for record in self.data:
            checker.data("s", record)
        self.problems += [f"{anomaly.name}: {anomaly.detail}" for anomaly in checker.finish()]

    def _check_alive(self, alive: list[Process]) -> None:
        """Check that live members have nothing left to wait for."""
        for process in alive:
            if process.participant.is_silent:
                self._found(BLOCKED, f"{process.life} is still blocked")
            if len(process.table):
                self._found(STUCK, f"{process.life} still holds {list(process.table.pending())}")
            if process.has_left:
                self._found(RETURNED, f"{process.life} is there, although it has left")
            if process.calls.endswith("B"):
                self._found(UNPAIRED, f"{process.life} is still in block()")

    def _check_seen(self) -> None:
        """Check the applications' deliveries and views, each in its place."""
        pattern = PATTERN if self.with_flush else PATTERN_WITHOUT_FLUSH
        for process in self.processes:
            if not CALLS.fullmatch(process.calls):
                self._found(UNPAIRED, f"the calls of {process.life} were {process.calls}")
            for stay in process.stays:
                if stay.seen and not pattern.fullmatch(stay.seen):
                    self.problems.append(f"{stay.life} saw {stay.seen}")

    def _check_neighbour(self, membership: Membership, alive: list[Process]) -> None:
        """Its view in force is known to the sequencer, and to every member."""
        if self.neighbour is None:
            return
        members = self.neighbour.in_force.members
        if membership.remote != {SITE: RemoteSite(members)}:
            self.problems.append(f"{SITE} has {members}, but known is {membership.remote}")
        for process in alive:
            seen = process.participant.known.remote.get(SITE)
            if seen is None or (seen.members, seen.reachable) != (tuple(life.address for life in members), True):
                self.problems.append(f"{process.life} takes {seen} for the view of {SITE}, but it is {members}")

    def _check_views(self) -> None:
        """With flush on, a message of a member is delivered in the view in which it was sent."""
        sent_in: dict[MemberIncarnation, dict[int, int]] = {}
        for process in self.processes:
            for (incarnation, local_seqno), view_id in process.sent_in.items():
                sent_in.setdefault(MemberIncarnation(process.address, incarnation), {})[local_seqno] = view_id
        reader, events = Reader(), EventReader()
        for record in self.data:
            if reader.accept(record.kind, record.epoch, record.seqno) is not Verdict.TAKE:
                continue
            events.accept(record.kind, record.seqno, record.view, record.sender, record.payload)
            life = MemberIncarnation(record.sender, record.incarnation)
            view = events.view
            if record.view != (view.view_id if view else 0):
                self.problems.append(f"seqno {record.seqno} is stamped with view {record.view}")
            if record.kind != MESSAGE or not self.with_flush:
                continue
            sent = sent_in.get(life, {}).get(record.local_seqno)
            if sent not in (None, record.view):
                self._found(OTHER_VIEW, f"seqno {record.seqno} was sent in view {sent}, delivered in {record.view}")

    def _check_messages(self, alive: list[Process]) -> None:
        """Check that each live process has all its messages ordered once, through all its incarnations."""
        ordered: Counter[bytes] = Counter()
        reader = Reader()
        for record in self.data:
            if reader.accept(record.kind, record.epoch, record.seqno) is Verdict.TAKE and record.kind == MESSAGE:
                ordered[record.payload] += 1
        for payload, times in ordered.items():
            if times > 1:
                self._found(DUPLICATE, f"{payload!r} is ordered {times} times")
        for process in alive:
            for payload in process.said:
                if payload not in ordered:
                    self._found(LOST, f"{payload!r}")

    def _check_survivors(self) -> None:
        """Check that all that go on from a view into the next one have delivered the same set in it."""
        sets: dict[int, tuple[MemberIncarnation, list[int]]] = {}
        for stay in [stay for process in self.processes for stay in process.stays]:
            for view_id, seqnos in stay.delivered.items():
                if view_id + 1 not in stay.delivered:
                    continue
                life, known = sets.setdefault(view_id, (stay.life, seqnos))
                if known != seqnos:
                    self.problems.append(f"in view {view_id}, {life} had {known}, but {stay.life} {seqnos}")
