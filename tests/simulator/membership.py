"""A group with members that join, leave, die and flush, under a sequencer that dies, too: one seed, one history.

In some histories there is a neighbouring site, whose views come by a relay.

The members are models of `connectors.client.member`; views, flushes and the state are the real core. Time is a number
that the broker writes on every FORWARD record.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass, field, replace

from ordering import sequencer
from ordering.checker import Checker
from ordering.events import Block, EventReader, Unblock, ViewChange
from ordering.flush import Flush, Phase
from ordering.membership import Life, Membership, RemoteSite, Settings
from ordering.reader import Reader, Seal, Verdict
from ordering.records import (
    FLUSH_COMPLETED,
    FLUSH_OK,
    HEARTBEAT,
    JOIN,
    LEAVE,
    MESSAGE,
    REFUSED,
    SETTINGS,
    START_FLUSH,
    STOP_FLUSH,
    Data,
    Forward,
    Partition,
    Source,
)
from ordering.sequencer import SequencerState, absorb, begin_batch, end_batch, seal, snapshot
from tests.simulator.columns import step_by_columns
from tests.simulator.neighbour import SITE, Neighbour

TOPIC = "abcast.g.forward.s"
RELAYED = f"abcast.g.relayed-{SITE}.s"
ACTIONS = 250
PATTERN = re.compile(r"V+|V(V*U)?(BV*U)*(BV*)?")
PATTERN_WITHOUT_FLUSH = re.compile(r"V+(V*U)?(V*BV*U)*(V*BV*)?V*")


@dataclass
class Process:
    """One life of a member: its forward table, and what it has seen."""

    address: str
    incarnation: int
    partition: int
    table: list[tuple[int, str, bytes]] = field(default_factory=list)
    last: int = 0
    offset: int = 0
    reader: Reader = field(default_factory=Reader)
    events: EventReader = field(default_factory=EventReader)
    seen: str = ""
    is_alive: bool = True
    is_leaving: bool = False
    is_in: bool = False
    is_out: bool = False
    is_quiet: bool = False
    requests: int = 0
    """Its own flush: 0 none, 1 asked for, 2 completed."""
    sent_in: dict[int, int] = field(default_factory=dict)
    delivered: dict[int, list[int]] = field(default_factory=dict)
    """The seqnos of the messages that it has delivered in each of its views."""
    said: list[bytes] = field(default_factory=list)
    """What it has broadcast, in this life and in those that were over while it was alive."""
    carried: list[bytes] = field(default_factory=list)
    """What its last life had sent and was not ordered: to be sent again as soon as it is in."""

    @property
    def life(self) -> Life:
        return Life(self.address, self.incarnation)

    def send(self, kind: str, payload: bytes) -> None:
        self.last += 1
        self.table.append((self.last, kind, payload))


def decided(state: SequencerState) -> SequencerState:
    """Without what is no decision, and so stands in snapshots at most."""
    membership = replace(state.membership.without_time(), horizon={})
    state = replace(state, positions={}, decided={}, duplicates=0, unsnapped=0, latest_ms=0, snapshot_ms=0)
    return replace(state, membership=membership)


class Group:
    """The history of a seed. `run` it; `problems` says what was broken."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.with_flush = self.random.random() < 0.7
        self.now = 1_000
        self.own_partitions = self.random.randint(1, 3)
        self.places = [Partition(TOPIC, partition) for partition in range(self.own_partitions)]
        self.neighbour = Neighbour(self.random, self._relay) if self.random.random() < 0.5 else None
        if self.neighbour is not None:
            self.places.append(Partition(RELAYED, 0))
        self.forward: list[list[Forward]] = [[] for _ in self.places]
        self.data: list[Data] = []
        self.state: SequencerState | None = None
        self.epoch = 0
        self.lives = 0
        self.processes: list[Process] = []
        self.problems: list[str] = []
        self.healing = False
        self.crashes: Counter[tuple[str, Phase]] = Counter()
        """Who died in which phase of a flush."""
        self.settings = Settings(self.random.random() < 0.3, self.with_flush, 3_000, 8_000)
        self._append(Process("s/abcast.admin", 1, 0), 1, SETTINGS, self.settings.to_json())

    def run(self) -> list[str]:
        weights = {
            "work": 30, "sequence": 30, "join": 5, "leave": 2, "crash": 2, "broadcast": 10, "flush": 5, "stop": 2,
            "sequencer_crash": 3, "wait": 6, "pause": 1, "crash_in_a_flush": 3, "backlog": 1, "standstill": 1,
        }  # fmt: skip
        if self.neighbour is not None:
            weights |= {"relay": 8, "neighbour": 3}
        for _ in range(ACTIONS):
            getattr(self, f"_do_{self.random.choices(list(weights), list(weights.values()))[0]}")()
        self._heal()
        self._check()
        return self.problems

    # What happens.

    def _one(self) -> Process | None:
        alive = [process for process in self.processes if process.is_alive]
        return self.random.choice(alive) if alive else None

    def _append(
        self, process: Process, local_seqno: int, kind: str, payload: bytes, partition: int | None = None
    ) -> None:
        place = process.partition if partition is None else partition
        log = self.forward[place]
        source = Source(*self.places[place], len(log))
        log.append(
            Forward(
                process.address, process.incarnation, local_seqno, payload, source, kind=kind, timestamp_ms=self.now
            )
        )

    def _do_work(self) -> None:
        """Somebody reads, sends its table (some of it gets lost) and a heartbeat."""
        if (process := self._one()) is not None:
            self._read(process, self.random.randint(1, 12))
            self._send(process, 0.9)

    def _send(self, process: Process, luck: float) -> None:
        for entry in process.table:
            if self.random.random() < luck:
                self._append(process, *entry)
        self._append(process, 1, HEARTBEAT, b"")

    def _do_join(self) -> None:
        """A new member, or a dead one (or one that was wrongly suspected) in a new life."""
        alive = {process.address for process in self.processes if process.is_alive}
        address = f"s/{self.random.choice('abcdefg')}"
        if address not in alive and len(alive) < 5:
            self._join(address)

    def _join(self, address: str, before: Process | None = None) -> None:
        self.lives += 1
        process = Process(address, self.lives, sum(address.encode()) % self.own_partitions, offset=0)
        if before is not None and (self.settings.flush or self.settings.closed):
            process.said = before.said
            process.carried = [payload for _, kind, payload in before.table if kind == MESSAGE] + before.carried
        process.send(JOIN, b"")
        self.processes.append(process)
        self._send(process, 0.9)

    def _do_leave(self) -> None:
        process = self._one()
        if process is not None and process.is_in and not process.is_leaving:
            process.is_leaving = True
            process.send(LEAVE, b"")

    def _do_crash(self) -> None:
        if (process := self._one()) is not None:
            self._kill(process, self._known().membership.flush)

    def _do_crash_in_a_flush(self) -> None:
        """Of its requester as often as of somebody else."""
        flush = self._known().membership.flush
        if flush.phase is Phase.RUNNING:
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
        """What DATA tells."""
        return absorb(SequencerState("g"), self.data)

    def _do_broadcast(self) -> None:
        process = self._one()
        if process is not None and process.is_in and not process.is_quiet and not process.is_leaving:
            self._broadcast(process)

    def _broadcast(self, process: Process) -> None:
        payload = f"{process.life} {process.last + 1}".encode()
        process.said.append(payload)
        self._say(process, payload)

    def _say(self, process: Process, payload: bytes) -> None:
        assert process.events.view is not None
        process.send(MESSAGE, payload)
        process.sent_in[process.last] = process.events.view.view_id

    def _do_flush(self) -> None:
        process = self._one()
        if process is not None and process.is_in and not process.is_leaving and not process.requests:
            process.requests = 1
            process.send(START_FLUSH, b"")

    def _do_stop(self) -> None:
        """Who has its quiet point ends it; now and then somebody without one does, too."""
        process = self._one()
        if process is not None and process.is_in and (process.requests == 2 or self.random.random() < 0.1):
            process.send(STOP_FLUSH, b"%d" % process.events.flush_id)
            process.requests = 0

    def _do_wait(self) -> None:
        """Time passes; who is alive says so, and the job ticks."""
        self.now += self.random.choice((200, 1_000, 1_500))
        for process in self.processes:
            if process.is_alive:
                self._append(process, 1, HEARTBEAT, b"")
        if self.neighbour is not None:
            self.neighbour.work()
        self._tick()

    def _do_pause(self) -> None:
        """Somebody is not heard for long, and then is: it was suspected wrongly."""
        paused = self._one()
        for _ in range(5):
            self.now += 1_000
            for process in self.processes:
                if process.is_alive and process is not paused:
                    self._append(process, 1, HEARTBEAT, b"")
            self._tick()
            self._do_sequence()

    def _do_backlog(self) -> None:
        """The sequencer falls behind by more than a flush may take."""
        for _ in range(12):
            self._do_work()
            self._do_wait()

    def _do_standstill(self) -> None:
        """Nobody can write for a while; the job's tick is the first record after it."""
        self.now += 30_000
        self._tick()
        self._do_sequence()

    def _tick(self) -> None:
        known = self.state.seqno if self.state is not None else 0
        for place, (topic, _) in enumerate(self.places):
            site = "s" if topic == TOPIC else SITE
            self._append(Process(f"{site}/abcast.tick", 1, place), max(known, 1), HEARTBEAT, b"")

    # The neighbouring site.

    def _relay(self, sender: str, kind: str, incarnation: int, local_seqno: int, payload: bytes) -> None:
        self._append(Process(sender, incarnation, len(self.places) - 1), local_seqno, kind, payload)

    def _do_relay(self) -> None:
        assert self.neighbour is not None
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
        if self.random.random() < 0.05:
            self.data += written[: self.random.randint(0, len(written))]
            self._do_sequencer_crash()
            return
        self.data += written
        self.state = state
        known = self._known()
        if decided(known) != decided(state):
            self.problems.append("DATA tells another state than the sequencer has")

    def _decide(self, state: SequencerState) -> tuple[SequencerState, list[Data]]:
        rows: list[Forward] = []
        for partition, log in enumerate(self.forward):
            start = state.positions.get(self.places[partition], 0)
            rows += log[start : start + (self.random.randint(1, 60) if not self.healing else len(log))]
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
        self.epoch += 1
        self.data.append(seal(self.epoch))
        before = absorb(SequencerState("g"), self.data[:-1])
        state = replace(
            before, epoch=self.epoch, seals=(*before.seals, Seal(self.epoch, before.seqno + 1)), unsnapped=0
        )
        self.data.append(snapshot(state))
        if self.epoch % 4 == 0:  # the ledger tells the state: FORWARD is read again from its beginning
            state = replace(state, positions={})
        horizon = {place: len(log) for place, log in zip(self.places, self.forward, strict=True)}
        self.state = replace(state, membership=replace(state.membership, horizon=horizon))

    # The members.

    def _read(self, process: Process, count: int) -> None:
        for record in self.data[process.offset : process.offset + count]:
            process.offset += 1
            if process.reader.accept(record.kind, record.epoch, record.seqno) is Verdict.TAKE:
                self._take(process, record)

    def _take(self, process: Process, record: Data) -> None:
        if Life(record.sender, record.incarnation) == process.life:
            process.table = [entry for entry in process.table if entry[0] > record.local_seqno]
            if record.kind == REFUSED and b'"kind":"start-flush"' in record.payload:
                process.requests = 0
        event = process.events.accept(record.kind, record.seqno, record.view, record.sender, record.payload)
        if isinstance(event, ViewChange):
            self._take_view(process, event)
        if not process.is_in:
            return
        if record.kind == MESSAGE:
            process.delivered.setdefault(record.view, []).append(record.seqno)
        if isinstance(event, ViewChange):
            process.delivered[event.view_id] = []
            process.seen += "V"
        elif isinstance(event, Block):
            process.seen += "B"
        elif isinstance(event, Unblock):
            process.seen += "U"
            process.is_quiet = False
            process.requests = 0
        if record.kind == START_FLUSH:
            self._block(process, record)
        if record.kind == FLUSH_COMPLETED and process.requests == 1:
            process.requests = 2
        self._say_carried(process)

    def _say_carried(self, process: Process) -> None:
        if not process.is_quiet and not process.is_leaving:
            for payload in process.carried:
                self._say(process, payload)
            process.carried = []

    def _block(self, process: Process, start: Data) -> None:
        if not process.is_quiet and not process.is_leaving:
            for _ in range(self.random.randint(0, 2)):
                self._broadcast(process)  # block() may
        process.is_quiet = True
        if not process.is_leaving and (self.healing or self.random.random() < 0.97):  # else its block() hangs
            process.send(FLUSH_OK, b"%d" % start.seqno)
        if start.sender != process.address and process.requests == 2:
            process.requests = 0

    def _take_view(self, process: Process, view: ViewChange) -> None:
        was_in, process.is_in = process.is_in, process.life in view.lives
        if process.is_in and not was_in:
            process.is_quiet = process.events.is_blocked
        if was_in and not process.is_in:
            process.is_out = True
            process.is_alive = False
            if not process.is_leaving:
                self._join(process.address, process)  # suspected wrongly: it comes again

    # The end.

    def _heal(self) -> None:
        self.healing = True
        for _ in range(120):
            self.now += 700
            for process in list(self.processes):
                if process.is_alive:
                    self._read(process, len(self.data))
                    if process.requests == 2:
                        self._do_stop_of(process)
                    self._send(process, 1)
            if self.neighbour is not None:
                self.neighbour.heal()
            self._tick()
            self._do_sequence()
        if self.state is None:
            self._take_over()
        for process in list(self.processes):
            if process.is_alive:
                self._read(process, len(self.data))

    def _do_stop_of(self, process: Process) -> None:
        process.send(STOP_FLUSH, b"%d" % process.events.flush_id)
        process.requests = 0

    def _check(self) -> None:
        assert self.state is not None
        alive = [process for process in self.processes if process.is_alive]
        membership = self.state.membership
        if {process.life for process in alive} != set(membership.members):
            self.problems.append(f"alive are {[p.life for p in alive]}, but the view is {membership.members}")
        if membership.flush.phase.value != "running":
            self.problems.append(f"the flush hangs: {membership.flush}")
        for process in alive:
            if process.is_quiet:
                self.problems.append(f"{process.life} is still blocked")
            if process.table:
                self.problems.append(f"{process.life} still holds {process.table}")
        self._check_neighbour(membership, alive)
        pattern = PATTERN if self.with_flush else PATTERN_WITHOUT_FLUSH
        for process in self.processes:
            if process.seen and not pattern.fullmatch(process.seen):
                self.problems.append(f"{process.life} saw {process.seen}")
        self._check_views()
        self._check_survivors()
        self._check_messages(alive)
        checker = Checker()
        for record in self.data:
            checker.data("s", record)
        self.problems += [f"{anomaly.name}: {anomaly.detail}" for anomaly in checker.finish()]

    def _check_neighbour(self, membership: Membership, alive: list[Process]) -> None:
        """Its view in force is known to the sequencer, and to every member."""
        if self.neighbour is None:
            return
        members = self.neighbour.in_force.members
        if membership.remote != {SITE: RemoteSite(members)}:
            self.problems.append(f"{SITE} has {members}, but known is {membership.remote}")
        for process in alive:
            seen = process.events.remote.get(SITE)
            if seen is None or (seen.members, seen.reachable) != (tuple(life.address for life in members), True):
                self.problems.append(f"{process.life} takes {seen} for the view of {SITE}, but it is {members}")

    def _check_views(self) -> None:
        """With flush on, a message of a member is delivered in the view in which it was sent."""
        processes = {process.life: process for process in self.processes}
        reader, events = Reader(), EventReader()
        for record in self.data:
            if reader.accept(record.kind, record.epoch, record.seqno) is not Verdict.TAKE:
                continue
            events.accept(record.kind, record.seqno, record.view, record.sender, record.payload)
            life = Life(record.sender, record.incarnation)
            view = events.view
            if record.view != (view.view_id if view else 0):
                self.problems.append(f"seqno {record.seqno} is stamped with view {record.view}")
            if record.kind != MESSAGE or not self.with_flush:
                continue
            sent_in = processes[life].sent_in[record.local_seqno]
            if sent_in != record.view:
                self.problems.append(f"seqno {record.seqno} was sent in view {sent_in}, delivered in {record.view}")

    def _check_messages(self, alive: list[Process]) -> None:
        """Whoever lives has all that it said ordered once, through however many lives."""
        ordered: Counter[bytes] = Counter()
        reader = Reader()
        for record in self.data:
            if reader.accept(record.kind, record.epoch, record.seqno) is Verdict.TAKE and record.kind == MESSAGE:
                ordered[record.payload] += 1
        self.problems += [f"{payload!r} is ordered {times} times" for payload, times in ordered.items() if times > 1]
        for process in alive:
            self.problems += [f"{payload!r} is lost" for payload in process.said if payload not in ordered]

    def _check_survivors(self) -> None:
        """Who goes on from a view into the next one has delivered the same set in it as all others who do."""
        sets: dict[int, tuple[Life, list[int]]] = {}
        for process in self.processes:
            for view_id, seqnos in process.delivered.items():
                if view_id + 1 not in process.delivered:
                    continue
                life, known = sets.setdefault(view_id, (process.life, seqnos))
                if known != seqnos:
                    self.problems.append(f"in view {view_id}, {life} had {known}, but {process.life} {seqnos}")
