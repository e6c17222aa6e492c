"""A group with members that join, leave, die and flush, under a sequencer that dies, too: one seed, one history.

The sequencer is the process engine's (`tests.world.jobs`): takeover, loop, ticks. The members are processes as they
ship (`tests.world.members`), on a Kafka in memory. Applications broadcast whenever they may; their block() takes its
time or hangs; records and answers get lost; processes are killed between any two records. Members with an outbox start
again. An operator opens and closes the group, and purges DATA. Each partition of FORWARD has a leader, whose clock
jumps, and which is away now and then. In some histories there is a neighbouring site, whose views come by a relay. In
most, jobs of earlier and later versions take over, and the group is upgraded.

Two parts do not ship. The neighbour and its relay are a model (`tests.world.neighbour`); the worlds of sites have
real ones. The numbers of incarnations count from one, so that a person can read them. Clocks that are more
than a day apart are in tests/client/casts/test_wrong_clocks.py.

    python -m tests.simulator --membership --seeds 2000
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ordering.base.errors import (
    AbcastError,
    HistoryUnavailable,
    ProtocolViolation,
    Superseded,
    UsageError,
)
from ordering.checker.anomalies import Anomaly
from ordering.membership.flush import FlushPhase
from ordering.membership.settings import Settings
from tests.simulator.mutation import NONE, Mutation
from tests.world.actors import Killed
from tests.world.guests import DAY_MS, Guests
from tests.world.jobs import in_format
from tests.world.kafka import partition
from tests.world.member_parts import GROUP, SITE
from tests.world.members import ILLEGAL, Process
from tests.world.membership_jobs import IN_MEMORY, MembershipJobs
from tests.world.membership_versions import Versions
from tests.world.neighbour import SITE as FAR
from tests.world.neighbour import Neighbour

POWERS = ("clock", "away", "marker")
"""Powers over partitions, in a third of the histories: of FORWARD, or of all logs."""
GUESTS = ("hostile", "ledger", "day", "counts", "limits", "forget")
COUNT = 250
"""The actions of a history."""
SETTLING_ROUNDS, ROUND_MS = 120, 700
SUDDEN_DEATH = 0.002
UNANSWERED = 0.05
"""The share of a member's records that get no answer: half of them are lost."""
ROLES = ("forward", "relayed")
ACTIONS = {
    "work": 40, "sequence": 30, "join": 5, "leave": 2, "crash": 2, "broadcast": 10, "flush": 5, "stop": 2,
    "sequencer_crash": 3, "wait": 4, "sleep": 4, "crash_in_a_flush": 3, "backlog": 1, "standstill": 1,
    "purge": 2, "restart": 2, "settings": 3, "strand": 2,
}  # fmt: skip
"""The actions, with their weights."""


class MembershipWorld(MembershipJobs):
    """A seed's history."""

    def __init__(self, seed: int, directory: Path, mutation: Mutation = NONE) -> None:
        """`directory`: of the outboxes. Jobs of other versions take over, and an operator upgrades."""
        guests = Guests(seed, GUESTS, mutation)
        super().__init__(seed, ACTIONS, guests.powers(POWERS) if seed % 3 == 2 else ())
        self.directory, self.guests = directory, guests
        self.roles = (*ROLES, "data", "epoch") if seed % 6 == 5 and mutation is NONE else ROLES
        """The roles of topics that Kafka's powers hit."""
        self.with_flush = self.dice.random() < 0.6
        self.versions = Versions(seed, self.kafka) if mutation.has("versions") else None
        self.connection.create(GROUP, SITE, self.dice.randint(1, 3))
        self.neighbour: Neighbour | None = None
        if self.dice.random() < 0.5:
            self.kafka.topics.partitions[partition("relayed", SITE, FAR)] = []
            self.neighbour = Neighbour(self.dice, self._relay)
            self._actions = {**ACTIONS, "relayed": 8, "neighbour": 3}
        self.settings = Settings(self.dice.random() < 0.3, self.with_flush, 3_000, 8_000)
        self.change_settings(self.settings)

    def run(self) -> list[Anomaly]:
        """Act, settle, and check all."""
        try:
            for _ in range(COUNT):
                self.act()
                self._let_guests_act()
                self.kafka.mishap(self.kafka.places(self.roles), 0.05)
                if len(self.anomalies) > 10:
                    return self.anomalies
            self._settle()
        except ProtocolViolation as error:
            self.blame(ILLEGAL, str(error))
            return self.anomalies
        self.check()
        return self.anomalies

    def act(self) -> None:
        """Do one action."""
        [kind] = self.dice.choices(list(self._actions), list(self._actions.values()))
        self.tell(kind.replace("_", " "))
        getattr(self, f"_{kind}")()
        self.tell_data()

    def _let_guests_act(self) -> None:
        self.guests.write_malformed(self.kafka, SITE)
        self.guests.keep_ledger(self.connection)
        if self.guests.lets_a_day_pass():
            before = self.known().received
            self._pass(DAY_MS)
            if self.guests.has("forget"):
                self._sequence()
                self._forget(before)

    def _one(self) -> Process | None:
        return self.dice.choice(self.alive) if self.alive else None

    # Members.

    @contextmanager
    def _acting(self, process: Process) -> Iterator[None]:
        """Let a process act. It may be killed, and stops when it is told that it can't go on."""
        try:
            self.kafka.unanswered = 0.0 if self.is_healed else UNANSWERED
            with self.actors.acting(process.address, 0.0 if self.is_healed else SUDDEN_DEATH):
                yield
        except Killed:
            self._kill(process)
        except (HistoryUnavailable, Superseded) as error:
            self.note_error(process.address, error)
            self._kill(process)
        finally:
            self.kafka.unanswered = 0.0

    def _work(self) -> None:
        if (process := self._one()) is not None:
            self._turn(process, self.dice.randint(1, 12))

    def _turn(self, process: Process, records: int) -> None:
        with self._acting(process):
            process.turn(records)
            if process.wants_to_join and process.is_alive and (self.is_healed or self.dice.random() < 0.3):
                process.join()

    def _join(self) -> None:
        """A new process: a member, or a stranger for a while."""
        self._newcomer(joins=self.dice.random() < 0.8)

    def _newcomer(self, *, joins: bool) -> Process | None:
        """Start a process, if it may be started; return it if it lives."""
        name = self.dice.choice("abcdefg")
        if not self.known().seqno or len(self.alive) >= 5 or any(process.name == name for process in self.alive):
            return None
        file = self.directory / f"{len(self.processes)}.outbox"
        self._begin(name, file if self.dice.random() < 0.6 else None, joins=joins)
        return self.processes[-1] if self.processes[-1].is_alive else None

    def _begin(self, name: str, outbox: Path | None, *, joins: bool, before: Process | None = None) -> None:
        process = Process(self, name, outbox, before)
        self.processes.append(process)
        self.newest[process.address] = process
        with self._acting(process):
            try:
                process.begin()
                process.wants_to_join = True
                if joins:
                    process.join()
            except (HistoryUnavailable, Superseded):
                process.said.clear()  # an operator gives the outbox up
                raise
            except AbcastError as error:  # it is started again later
                self.note_error(process.address, error)
                if isinstance(error, ProtocolViolation | UsageError):
                    self.blame(ILLEGAL, f"{process.address}: {error}")
                self._kill(process)
        if not process.is_alive and before is not None and process.said:
            self.waiting.append(process)

    def _restart(self) -> None:
        """Kill a process with an outbox, and start it again, at once or later."""
        if self.waiting and self.dice.random() < 0.5:
            self._start_again(self.waiting.pop(0))
        process = self._one()
        if process is not None and not process.has_left and process.path is not None:
            self._kill(process)
            self._start_again(process)

    def _start_again(self, before: Process) -> None:
        if all(process.name != before.name for process in self.alive):
            self._begin(before.name, before.path, joins=False, before=before)

    def _leave(self) -> None:
        process = self._one()
        if process is not None and process.now.is_heard and not process.has_left:
            with self._acting(process):
                process.leave()

    def _crash(self) -> None:
        if (process := self._one()) is not None:
            self._kill(process)

    def _crash_in_a_flush(self) -> None:
        """Crash a process in a flush: its requester half of the time."""
        flush = self.known().membership.flush
        members = [each for each in self.alive if each.is_in]
        requesters = [each for each in members if each.address == flush.requester]
        if members and flush.phase is not FlushPhase.RUNNING:
            self._kill(self.dice.choice(requesters or members if self.dice.random() < 0.5 else members))

    def _kill(self, process: Process) -> None:
        self.tell(f"  {self.short(process.life)} is killed")
        flush = self.known().membership.flush
        who = "requester" if flush.id and flush.requester == process.address else "member"
        self.crashes[who if process.is_in else "joiner", flush.phase] += 1
        process.die()

    def _broadcast(self) -> None:
        if (process := self._one()) is not None:
            with self._acting(process):
                process.broadcast()

    def _flush(self) -> None:
        if (process := self._one()) is not None:
            with self._acting(process):
                process.want_flush()

    def _stop(self) -> None:
        """End a quiet point; now and then a requester gives up before."""
        if (process := self._one()) is not None:
            with self._acting(process):
                if not process.end_flush() and self.dice.random() < 0.3:
                    process.give_up_flush()

    # Time.

    def _wait(self) -> None:
        """Let time pass: live members beat, and the job ticks."""
        self._pass(self.dice.choice((200, 1_000, 1_500)))
        if self.neighbour is not None:
            self._relayed()

    def _pass(self, elapsed_ms: int, paused: Process | None = None) -> None:
        self.actors.pass_time(elapsed_ms)
        for process in self.alive:
            if process is not paused:
                with self._acting(process):
                    process.beat()
        self._look()

    def _sleep(self) -> None:
        """Somebody sleeps: just started perhaps, or in a flush. It is suspected, and may miss what retention drops."""
        started = self._newcomer(joins=True) if self.dice.random() < 0.3 else None
        sleeper = started or self._one()
        if sleeper is None:
            return
        if self.dice.random() < 0.3:
            self._flush()
            self._sequence()
            self._turn(sleeper, 100)
        is_long = started is not None or self.dice.random() < 0.3
        for _ in range(12 if is_long else 5):
            self._pass(1_000, sleeper)
            for process in self.alive if is_long else ():
                if process is not sleeper:
                    self._turn(process, 100)
            self._sequence()
        if is_long and self.dice.random() < 0.7:
            self._sequencer_crash()
            self._sequence()
            self._purge()
        if sleeper.is_alive:
            with self._acting(sleeper):
                sleeper.broadcast()  # it knows of nothing yet

    def _strand(self) -> None:
        """A stranger asks to join behind messages that a group does not take any more. It may be open again soon."""
        if self.settings.closed or self.known().membership.settings != self.settings:
            return
        process = self._newcomer(joins=False)
        if process is None:
            return
        self._settings()
        for _ in range(4):
            self._sequence()
        if self.dice.random() < 0.3:
            self._settings()
        with self._acting(process):
            for _ in range(2):
                process.broadcast()
            process.join()
        if process.is_alive:
            self._turn(process, 5)

    def _backlog(self) -> None:
        """The sequencer falls behind by more than a flush may take."""
        for _ in range(12):
            self._work()
            self._wait()

    def _standstill(self) -> None:
        """Let no record be written for a while; then the job ticks."""
        self.actors.pass_time(30_000)
        self._look()
        self._sequence()

    # The neighbouring site.

    def _relay(self, sender: str, kind: str, incarnation: int, local_seqno: int, payload: bytes) -> None:
        self.append(sender, incarnation, local_seqno, kind, payload, partition("relayed", SITE, FAR))

    def _relayed(self) -> None:
        """The relay waits until it can write."""
        assert self.neighbour is not None
        if partition("relayed", SITE, FAR) not in self.kafka.topics.away:
            self.neighbour.work()

    def _neighbour(self) -> None:
        """Something happens there."""
        there = self.neighbour
        assert there is not None
        events = [there.change_view, there.take_over, there.start_relay, there.kill_relay, there.stop_relay]
        self.dice.choices(events, (3, 2, 4, 1, 1))[0]()

    # The end.

    def _settle(self) -> None:
        self.is_healed = True
        self.kafka.heal()
        for number in range(SETTLING_ROUNDS):
            if number < 100:
                self.kafka.mishap(self.kafka.places(self.roles), 0.1)
            if number == 60 and self.kafka.powers:
                self._die_for_good()
            while self.waiting:
                self._start_again(self.waiting.pop())
            for process in list(self.alive):
                with self._acting(process):
                    process.end_flush()
                self._turn(process, 1_000)
            if self.neighbour is not None:
                self.neighbour.heal()
            self._pass(ROUND_MS)
            self._sequence()
            self.tell_data()
            if number > 20 and not self.kafka.powers and self.is_settled():
                break
        for process in list(self.alive):
            self._turn(process, 1_000)

    def _die_for_good(self) -> None:
        """From now on no takeover resets the time: the log's clock must find dead members, however it jumps."""
        self.is_steady = True
        if (process := self._one()) is not None:
            self._kill(process)


@contextmanager
def playing(seed: int, mutation: Mutation = NONE) -> Iterator[MembershipWorld]:
    """Provide a world in which a history can be played."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=IN_MEMORY)))
        world = MembershipWorld(seed, directory, mutation)
        stack.enter_context(world.shipping())
        stack.enter_context(in_format(seed, mutation))
        patches: dict[str, Any] = {
            **(world.versions.patches() if world.versions is not None else {}),
            "connectors.engine.batch.COLUMNS_FROM": 64 if seed % 2 else 2,
            "ordering.sequencer.sequencer.SNAPSHOT_EVERY_RECORDS": 8,
            "ordering.sequencer.sequencer.SNAPSHOT_RECORDS_PER_SENDER": 1,
        }
        for target, replacement in patches.items():
            stack.enter_context(patch(target, replacement))
        stack.enter_context(mutation.broken())
        try:
            yield world
        finally:
            world.close()


def run(seed: int, mutation: Mutation = NONE) -> list[Anomaly]:
    """Run one history; return what it breaks."""
    with playing(seed, mutation) as world:
        return world.run()
