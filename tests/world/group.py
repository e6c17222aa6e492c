"""A group with one sequencer at a time, in a world: jobs of the process engine, members, deliverers and the ledger's
writers as they ship (`tests.world.group_job`, `tests.world.clients`), on the Kafka of `tests.world.wires`.

Jobs act call by call, take over at the same time, sleep through others' epochs, are killed between any two calls; their
writes are cut, late, lost in the middle. Members' records are lost, late and repeated; members are killed, and started
with earlier outboxes. Operators forget senders, purge FORWARD and DATA, add partitions; strangers write to FORWARD and
DATA. In some histories Kafka has powers (`tests.world.powers`). Then all faults end, and everything must be ordered.

    python -m tests.simulator --group --seeds 2000
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest.mock import patch

from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import decode_data, decode_forward
from connectors.kafka.codec.epochs import Claim, StrayClaim, decode
from connectors.kafka.codec.headers import highest_incarnation
from connectors.kafka.log import log_state
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.topics.data_purge import purge_data
from connectors.kafka.topics.purge import purge_group
from connectors.kafka.topics.senders import forget_senders, known_senders
from connectors.kafka.topics.upgrade import upgrade
from connectors.kafka.transport.partitioner import partition_of
from connectors.testing.memory_topics import WRITES
from ordering.base.errors import AbcastError, BrokerUnreachable, Fenced, KafkaRefused, UsageError
from ordering.base.names import Address
from ordering.base.packs import MAX_PACK_MESSAGES, unpacked
from ordering.base.reader import Reader, Seal, Verdict, with_seal
from ordering.base.records import FORGET, MESSAGE, Data, Forward
from ordering.checker.anomalies import DIVERGENT, DUPLICATE, GAP, LOST, Anomaly
from ordering.checker.checker import Checker
from ordering.membership.forgetting import from_payload
from ordering.membership.membership import ReceivedRow
from ordering.sequencer.sequencer import absorb
from ordering.sequencer.state import SequencerState
from tests.simulator.mutation import NONE, Mutation
from tests.world.clients import Deliverer, Disk, GroupMember, parts
from tests.world.group_history import Action, History, history
from tests.world.group_job import GROUP, SITE, GroupJob
from tests.world.guests import DAY_MS, Guests
from tests.world.handovers import Handovers
from tests.world.kafka import TooLarge, WorldConnection, WorldKafka, partition
from tests.world.ledgers import LedgerWriter, Table
from tests.world.shrinking import drop_actions
from tests.world.stepping import InTurn, Process, Stepped
from tests.world.wires import RUSH, OnItsWay, WiredConnection, WiredKafka, WiredProducer
from tests.world.world import World

DATA, CLAIMS, FORWARD = (partition(role, SITE) for role in ("data", "epoch", "forward"))
JOBS = 3
GUESTS = ("hostile", "limits", "format", "day")
SETTLING_ROUNDS = 12
SETTLING_CALLS = 400
CALLS_TO_A_WRITE = 30
AT_ONCE = 0.4
"""Probability that leftovers arrive right behind a takeover."""
LATE_JOINERS = 3
UNKNOWN_MESSAGE = "unknown-message"
"""A message was ordered that nobody has broadcast."""
WRONG_STATE = "wrong-state"
"""A state rebuilt from DATA differs from DATA; a process that goes on from it will break a promise."""
STUCK = "stuck"
"""A process met an error that it must not meet, such as a ProtocolViolation."""


class Known(NamedTuple):
    """The state that a prefix of DATA tells, read record by record from its beginning, without any snapshot."""

    epoch: int = 0
    seqno: int = 0
    received: Mapping[str, ReceivedRow] = MappingProxyType({})
    seals: tuple[Seal, ...] = ()

    def after(self, record: Data) -> Known:
        """Return the state after a record."""
        verdict, known = Reader(self.epoch, self.seqno).judge(record), self
        if verdict is Verdict.CONTROL and record.epoch > self.epoch:
            known = self._replace(epoch=record.epoch, seals=with_seal(self.seals, Seal(record.epoch, self.seqno + 1)))
        elif verdict is Verdict.TAKE:
            received = dict(self.received)
            if record.sender:
                received[record.sender] = ReceivedRow(record.incarnation, record.last_local_seqno)
            if record.kind == FORGET:
                for row in from_payload(record.payload) or ():
                    if received.get(row.sender) == row[1:]:
                        del received[row.sender]
            known = self._replace(seqno=record.seqno + record.count - 1, received=received)
        return known

    @classmethod
    def of(cls, state: SequencerState) -> Known:
        """Return what a state tells."""
        return cls(state.epoch, state.seqno, dict(state.received), state.seals)

    def in_short(self) -> Known:
        """Drop the seals of epochs without a decision, which a ledger does not know."""
        epochs = {seal.first_seqno: seal.epoch for seal in sorted(self.seals)}
        return self._replace(seals=tuple(sorted(Seal(epoch, first) for first, epoch in epochs.items())))


@dataclass
class _Site:
    kafka: WorldKafka
    connection: WorldConnection


class GroupWorld(World[_Site]):
    """A group, and everybody in it. `apply` any actions, then `heal`, then `check`."""

    blind = 0.3
    """Probability that a job looks for no newer epochs."""
    ledger: Any = None
    """The ledger with which starting jobs compare DATA."""
    may_come: tuple[str, ...] = GUESTS

    def __init__(self, what: History, mutation: Mutation = NONE) -> None:
        super().__init__(what.seed, {})
        self.shape, self.guests = what.shape, Guests(what.seed, self.may_come, mutation)
        shape = self.shape
        self.kafka = kafka = WiredKafka(what.seed, self.actors, self.guests.powers(shape.powers))
        kafka.leftovers, kafka.haste, kafka.batch_rows = [], shape.haste, shape.batch_rows
        self.operator = self.connect(Process("operator"))
        self.sites = {SITE: _Site(kafka, self.operator)}
        self.operator.create(GROUP, SITE, shape.partitions)
        self._append, kafka.topics.append = kafka.topics.append, self._noted  # type: ignore[method-assign]
        self.known = [Known()]
        """By the end of the prefix of DATA."""
        self.jobs: list[GroupJob | None] = [None] * JOBS
        self.starts, self.settles = 0, False
        self.disk, self.table, self.handovers = Disk(), Table(), Handovers(self)
        self.members = [
            self.new_member(Address(SITE, name), has_outbox=bool(shape.outboxes >> index & 1))
            for index, name in enumerate("abc"[: shape.members])
        ]
        self.deliverers = [self.new_deliverer(f"deliverer {number}") for number in range(shape.deliverers)]
        self.ledgers = [LedgerWriter(self.connect(Process("ledger")), SITE, self.table) for _ in range(2)]

    def new_member(self, address: Address, *, has_outbox: bool) -> GroupMember:
        """Make a member."""
        return GroupMember(self.connect, self.disk, self.table, address, has_outbox=has_outbox)

    def new_deliverer(self, name: str) -> Deliverer:
        """Make a deliverer."""
        return Deliverer(self.connect, self.table, name, SITE)

    def connect(self, process: Process) -> WiredConnection:
        """Return a process's way to Kafka."""
        return WiredConnection.of(self.kafka, process)

    # What the world sees

    def _noted(self, place: TopicPartition, *record: Any) -> Any:
        """Append a record, and note what DATA tells."""
        stored = self._append(place, *record)
        if place == DATA:
            data = decode_data(stored.key, stored.value, stored.headers)
            self.known.append(self.known[-1].after(data))
        self.tell_record(stored)
        return stored

    def state_at(self, log: Any, end: int) -> SequencerState:
        """Compute a state as it ships, and compare it with the prefix of DATA."""
        state = log_state.state_at(log, end)
        told, known = map(self.in_short, (Known.of(state), self.known[end]))
        if told != known:
            self.blame(WRONG_STATE, f"the state below offset {end} is {told}, and not {known}.")
        return state

    def in_short(self, known: Known) -> Known:
        """Return what two ways to a state must have in common."""
        return known.in_short()

    def note_takeover(self, job: GroupJob, state: SequencerState) -> None:
        """Check a job that goes on. Leftovers of others may arrive at once."""
        self.tell(f"{job.process.name} sequences in epoch {state.epoch}, after seqno {state.seqno}")
        self.check_takeover(job, state)
        if self.dice.random() < AT_ONCE:
            self._leftover(self.dice.randrange(JOBS))

    def check_takeover(self, job: GroupJob, state: SequencerState) -> None:
        """Check that FORWARD has all that the newest epoch needs."""
        begins = self.kafka.topics.beginnings
        lacks = [place for place, offset in begins.items() if state.positions.get(place, 0) < offset]
        if [place for place in lacks if place.topic == FORWARD.topic] and self.newest_epoch() == state.epoch:
            self.blame(WRONG_STATE, f"epoch {state.epoch} has to read what was purged of {lacks}.")

    def wait_for_a_leader(self, seconds: float) -> None:
        """Let a partition come back, for which a member waits that alone takes turns."""
        self.pass_time(int(seconds * 1_000), ("forward", "data", "epoch"), 0.0)

    def newest_epoch(self) -> int:
        """Return the epoch of the newest claim; 0 if there is none."""
        for record in reversed(self.kafka.topics.partitions[CLAIMS]):
            entry = None
            try:
                entry = decode("", record.offset, record.value, record.headers, 0)
            except StrayClaim:
                continue
            if isinstance(entry, Claim):
                return entry.epoch
        return 0

    def apply(self, action: Action) -> None:
        """Let it happen; an action that has no object now does nothing."""
        self.dice = self.actors.dice = random.Random(action.dice)
        self.tell(f"{action.kind} {action.who}")
        self.pass_time(self.dice.randint(0, 60), ("forward", "data", "epoch"), 0.1)
        try:
            self._let_guests_act()
            getattr(self, f"_{action.kind}")(action.who)
        except BrokerUnreachable as error:
            self.note_error(action.kind, error)
        except AbcastError as error:
            self.judge(f"{action.kind} {action.who}", error)

    def _let_guests_act(self) -> None:
        self.guests.write_malformed(self.kafka, SITE)
        if self.guests.lets_a_day_pass():
            self.actors.pass_time(DAY_MS)
            if self.guests.has("forget"):
                self._forget(self.guests.dice.randrange(3))

    def judge(self, who: str, error: AbcastError) -> None:
        """Blame an error that no retry mends."""
        if not self._is_of_a_clock(error):
            self.blame(STUCK, f"{who}: {type(error).__name__}: {error}")

    def _is_of_a_clock(self, error: AbcastError) -> bool:
        """Whether the error refuses a member whose last incarnation is too far ahead of its broker's clock now."""
        for address, row in self.known[-1].received.items() if isinstance(error, UsageError) else ():
            if str(error).startswith(f"{address} has sent while the clocks"):
                number = partition_of(address.encode(), len(self.kafka.topics.numbers(FORWARD.topic)))
                skew_ms = self.kafka.log(FORWARD.topic, number).skew_ms
                return row.incarnation > highest_incarnation(self.actors.now_ms + skew_ms)
        return False

    # Members and their network

    def _member(self, who: int) -> GroupMember:
        return self.members[who % len(self.members)]

    def _broadcast(self, who: int) -> None:
        member = self._member(who)
        with self.actors.acting(str(member.address)):
            member.start()
            for _ in range(self.dice.randint(1, 5)):
                member.broadcast()

    def _resend(self, who: int) -> None:
        """Let a member think that its records have been long on their way."""
        member = self._member(who)
        with self.actors.acting(str(member.address)):
            self.actors.sleep(1.0)
            member.turn()

    def _network(self, who: int) -> None:
        """Let some records of a member arrive: in order, twice, or never."""
        for _ in range(self.dice.randint(1, 8)):
            producers = self._member(who).producers
            if not producers:
                return
            producer = self.dice.choice(producers)
            if self._is_bad():
                rest = producer.lose(1)
                self._let_arrive(rest, self.dice.randint(0, len(rest)), 1.0)
                self.kafka.abandon(rest)
            elif self._is_bad():
                self.kafka.leftovers.append(list(producer.wire[:3]))
                producer.arrive(3)
            else:
                producer.arrive(1)

    def _is_bad(self) -> bool:
        return self.dice.randrange(100) < self.shape.bad_network

    def _member_read(self, who: int) -> None:
        member = self._member(who)
        with self.actors.acting(str(member.address)):
            member.start()
            member.application.read()
            member.turn()

    def _member_crash(self, who: int) -> None:
        self._member(who).crash()

    def _backup(self, who: int) -> None:
        self.disk.back_up(self._member(who).outbox)

    def _restore(self, who: int) -> None:
        self._member(who).crash(backup=self.dice.randrange(8))

    def _poison(self, _: int) -> None:
        """Write as a stranger, to FORWARD and DATA. An operator purges FORWARD."""
        topics = self.kafka.topics
        if self.dice.random() < 0.3:
            topics.append(DATA, b"stray", b"", [])
        if self.dice.random() < 0.5:
            purge_group(self.operator, GROUP, SITE, dead_letters_s=1e9)
        place = FORWARD._replace(partition=self.dice.randrange(len(topics.numbers(FORWARD.topic))))
        topics.append(place, b"nobody", b"poison", [])

    def _add_partition(self, _: int) -> None:
        count = len(self.kafka.topics.numbers(FORWARD.topic))
        if count < 4:
            self.kafka.topics.partitions[FORWARD._replace(partition=count)] = []

    def _forget(self, who: int) -> None:
        """Ask to forget a member, a day after its row was looked at, or at once."""
        if self.dice.random() < 0.7:
            self.actors.pass_time(DAY_MS)
        address = str(self._member(who).address)
        rows = [each.row for each in known_senders(self.operator, GROUP, SITE) if each.address == address]
        forget_senders(self.operator, GROUP, SITE, rows, timeout_s=0.0)

    def _upgrade(self, _: int) -> None:
        """Give the group the newest format, from the next takeover on."""
        upgrade(self.operator, GROUP, SITE)

    def _purge(self, _: int) -> None:
        """Purge DATA that the ledger has, while the others go on. Afterwards DATA must still tell its state."""
        kept_s = self.dice.choice((0.0, 0.0, 1.0))
        process = Stepped("purge", lambda: self._purge_data(process, kept_s))
        while process.step(self.dice.randint(1, 4)):
            self._step(self.dice.randrange(JOBS), self.dice.randint(1, self.shape.steps))
        if process.error is not None:
            raise process.error
        with DataLog(self.operator, GROUP, SITE) as log:
            log.state()

    def _purge_data(self, process: Process, kept_s: float) -> None:
        connection, known = self.connect(process), self.in_ledger
        purge_data(connection, GROUP, SITE, kept_s=kept_s, in_ledger=known, lacking=lambda *_: "")

    @property
    def in_ledger(self) -> int:
        """The last seqno that a purge may take."""
        return self.table.last_seqno

    # Jobs

    def _start(self, who: int) -> None:
        """Start a job, whether or not another one runs."""
        if self.jobs[who % JOBS] is None:
            self.starts += 1
            is_blind = self.dice.random() < self.blind
            name, shape = f"job {self.starts}", self.shape
            stands_by = shape.standbys > 0 and (self.settles or self.dice.randrange(100) < shape.standbys)
            self.jobs[who % JOBS] = GroupJob(
                *(self.kafka, name, self.note_takeover),
                is_blind=is_blind and not stands_by,
                shape=shape,
                stands_by=stands_by,
                ledger=self.ledger,
            )

    def _hand_over(self, _: int) -> None:
        self.handovers.ask(has_faults=True)

    def _repeat_request(self, _: int) -> None:
        self.handovers.repeat()

    def _race(self, who: int) -> None:
        """Let two jobs take over at the same time, call by call."""
        rivals = (who, who + 1)
        for slot in rivals:
            self._start(slot)
        for _ in range(self.dice.randint(20, 150)):
            self._step(self.dice.choice(rivals), 1)

    def _sequence(self, who: int) -> None:
        self._step(who, self.dice.randint(1, self.shape.steps))

    def _step(self, who: int, calls: int) -> None:
        job = self.jobs[who % JOBS]
        if job is None:
            return
        with self.actors.acting(job.process.name):
            if job.process.step(calls):
                return
        self.jobs[who % JOBS] = None
        job.process.kill()
        error = job.process.error
        if not isinstance(error, AbcastError):
            raise error or AssertionError("a job ends by itself")
        self.note_error(job.process.name, error)
        is_limited = isinstance(error, KafkaRefused) and self.guests.has("limits")  # it says so, and starts again
        if not (isinstance(error, Fenced) or error.retriable or is_limited):
            self.judge(job.process.name, error)

    def _job_crash(self, who: int) -> None:
        """kill -9, mostly in the middle of a write: records on their way may still arrive."""
        if self.dice.random() < 0.7:
            self._writing(who, 1)
        self._kill(who)

    def _kill(self, who: int) -> None:
        job, self.jobs[who % JOBS] = self.jobs[who % JOBS], None
        if job is not None:
            job.process.kill()

    def _task_failure(self, who: int) -> None:
        """In the middle of a write the oldest record fails, or all do: the job takes over again. The rest may come."""
        producer = self._writing(who, 1)
        if producer is not None:
            self.kafka.abandon(producer.lose(self.dice.randrange(2)))

    def _broken_write(self, who: int) -> None:
        """In the middle of a write something is lost, and all the rest arrives at once."""
        producer = self._writing(who, 2)
        if producer is not None:
            for each in producer.lose(self.dice.randint(1, 2)):
                self.kafka.write(each)
            self._sequence(who)

    def _writing(self, who: int, records: int) -> WiredProducer | None:
        """Let a job go on until it has so many records on their way; return the producer."""
        haste, self.kafka.haste = self.kafka.haste, 0.0
        found = None
        for _ in range(CALLS_TO_A_WRITE):
            job = self.jobs[who % JOBS]
            wires = [each for each in job.process.producers if len(each.wire) >= records] if job is not None else []
            if job is None or (wires and self.dice.random() < 0.6):
                found = wires[0] if wires else None
                break
            self._step(who, 1)
        self.kafka.haste = haste
        return found

    def _leftover(self, who: int) -> None:
        """Let leftovers of a dead process or a closed producer arrive in part."""
        left = self.kafka.leftovers = [each for each in self.kafka.leftovers if each]
        if left:
            self._let_arrive(left[who % len(left)], self.dice.randint(1, 4), 0.85)

    def _let_arrive(self, wire: list[OnItsWay], count: int, share: float) -> None:
        """Let some of the first records arrive. A member's record may come once more."""
        again = list[OnItsWay]()
        for each in wire[:count]:
            if self.dice.random() < share and not self.kafka.topics.lacks(each.sent.topic_partition, WRITES):
                try:
                    self.kafka.write(each)
                except TooLarge:  # and the records behind it with it
                    wire.clear()
                    break
                if each.sent.topic_partition.topic == FORWARD.topic and self._is_bad():
                    again.append(each)
        del wire[:count]
        if again:
            self.kafka.leftovers.append(again)

    # Readers

    def _deliver(self, who: int) -> None:
        self.deliverers[who % len(self.deliverers)].read()

    def _deliverer_crash(self, who: int) -> None:
        self.deliverers[who % len(self.deliverers)].cursor = None

    def _ledger(self, who: int) -> None:
        ledger = self.ledgers[who % len(self.ledgers)]
        ledger.read(self.dice.randint(1, 16))
        if self.dice.random() < 0.6:
            ledger.commit()

    def _ledger_commit(self, who: int) -> None:
        self.ledgers[who % len(self.ledgers)].commit()

    def _ledger_crash(self, who: int) -> None:
        self.ledgers[who % len(self.ledgers)].crash()

    # The end

    def heal(self) -> None:
        """No more faults: one job, a network that works, and time enough for everything to arrive."""
        self.tell("all faults end")
        self.dice = self.actors.dice = random.Random(0)
        self.kafka.heal()
        for log in self.kafka.logs.values():
            log.skew_ms = 0
        self.kafka.haste, self.kafka.batch_rows = 1.0, 500
        self.actors.catch_up()
        try:
            self._settle()
        except AbcastError as error:
            self.blame(STUCK, f"healing: {type(error).__name__}: {error}")

    def _settle(self) -> None:
        for who in range(JOBS):
            self._kill(who)
        self.settles = True
        self._settle_job()
        for wire in list(self.kafka.leftovers):
            self._let_arrive(wire, RUSH, 1.0)
        for _ in range(SETTLING_ROUNDS):
            self.pass_time(1_000, ("data",), 0.0)
            for member in self.members:
                with self.actors.acting(str(member.address)):
                    member.start()
                    member.turn()
                    for producer in member.producers:
                        producer.arrive()
            self._settle_job()
            for member in self.members:
                member.turn()
            if self.jobs[0] is not None and all(member.is_idle for member in self.members):
                break
        if self.shape.standbys and self.jobs[0] is not None and self.jobs[0].pipeline is not None:
            self.handovers.check_the_end()
        for ledger in self.ledgers:
            ledger.crash()
            ledger.read(RUSH)
            ledger.commit()
        self._join_late()
        for reader in [*self.deliverers, *(member.application for member in self.members)]:
            reader.catch_up()

    def _settle_job(self) -> None:
        """Let a job write all that it has decided. A claim that has come late may have ended the last one."""
        self._start(0)
        for _ in range(SETTLING_CALLS // 20):
            self._step(0, 20)
            job = self.jobs[0]
            if job is None or (job.pipeline is not None and not job.pipeline.in_flight):
                break

    def _join_late(self) -> None:
        """Start deliverers just before decisions across a seal: where a reader is easiest to mislead."""
        known = self.known[-1]
        for seal in known.seals[-LATE_JOINERS:]:
            sealed_at = next(at for at, each in enumerate(self.known) if each.epoch == seal.epoch)
            # `after` begins at the offset that equals the seqno: once before the seal, once right behind it.
            for seqno in sorted({max(0, seal.first_seqno - 3), seal.first_seqno - 1, sealed_at}):
                if seqno <= known.seqno:
                    deliverer = self.new_deliverer(f"late joiner at epoch {seal.epoch} after {seqno}")
                    deliverer.resume(seqno)
                    self.deliverers.append(deliverer)

    def check(self) -> list[Anomaly]:
        """Return every broken promise: of the logs, by the checker, and of the world's actors."""
        checker, reader, effective = Checker(causal=True), Reader(), list[Data]()
        for stored in self.kafka.topics.partitions[DATA]:
            record = decode_data(stored.key, stored.value, stored.headers)
            checker.data(SITE, record)
            if reader.judge(record) is Verdict.TAKE:
                effective.append(record)
        readers = [*self.deliverers, *(member.application for member in self.members)]
        for each in readers:
            for seqno, message, payload in each.delivered:
                if message.sender:
                    checker.delivery(each.name, seqno, message, payload)
            if each.passed < reader.last_seqno:
                self.blame(GAP, f"{each.name} is stuck at {each.passed} of {reader.last_seqno}.")
        for row in self.table.rows:
            checker.ledger(row.seqno, row.id, row.payload)
        if len(self.table.rows) < reader.last_seqno:
            self.blame(GAP, f"the ledger has {len(self.table.rows)} of {reader.last_seqno} rows.")
        self._check_messages(
            [each for record in effective for each in unpacked(record) if each.kind == MESSAGE], checker
        )
        self._check_sources(record for record in effective if record.source is not None)
        self._check_job()
        return [*checker.finish(), *self.anomalies]

    def _check_messages(self, messages: Sequence[Data], checker: Checker) -> None:
        ordered: dict[bytes, Data] = {}
        sent = set().union(*(member.sent for member in self.members))
        for record in messages:
            if record.payload not in sent:
                self.blame(UNKNOWN_MESSAGE, f"{record.id} was never broadcast.")
            if record.payload in ordered:
                self.blame(DUPLICATE, f"{record.id} and {ordered[record.payload].id} are the same message.")
            ordered.setdefault(record.payload, record)
        for member in self.members:
            if not member.is_idle:
                self.blame(LOST, f"{member.address} still has unordered messages.")
            for payload, owed in member.owed.items():
                found = ordered.get(payload)
                seqno = owed.receipt._number if owed.receipt is not None else 0
                if found is None or (seqno and found.seqno != seqno):
                    self.blame(LOST, f"{payload!r} is owed, its receipt says {seqno}, and DATA has {found}.")
                else:
                    checker.sent(found.id, owed.after, payload)

    def _check_sources(self, records: Iterable[Data]) -> None:
        for record in records:
            assert record.source is not None
            stored = self.kafka.topics.partitions[TopicPartition(*record.source.topic_partition)][record.source.offset]
            found = decode_forward(record.source, stored.key, stored.value, stored.headers, stored.timestamp)
            last = record.id._replace(local_seqno=record.last_local_seqno)
            if not isinstance(found, Forward) or found.id._replace(local_seqno=found.last_local_seqno) != last:
                self.blame(WRONG_STATE, f"{last}, the last of its record, is not at {record.source}.")

    def _check_job(self) -> None:
        job, told = self.jobs[0], absorb(SequencerState(GROUP), self._data())
        if job is None or job.pipeline is None:
            self.blame(STUCK, f"no job goes on: {dict(self.seen)}")
            return
        state = job.pipeline.state
        if (state.epoch, state.seqno, state.received) != (told.epoch, told.seqno, told.received):
            self.blame(DIVERGENT, "the sequencer's state is not what DATA tells.")

    def _data(self) -> Iterator[Data]:
        return (decode_data(each.key, each.value, each.headers) for each in self.kafka.topics.partitions[DATA])

    def close(self) -> None:
        """End all processes."""
        for who in range(JOBS):
            self._kill(who)
        for member in self.members:
            member.process.kill()


@contextmanager
def playing(what: History, mutation: Mutation = NONE) -> Iterator[GroupWorld]:
    """Provide a world in which a history can be played."""
    world: GroupWorld = (what.world or GroupWorld)(what, mutation)
    patches: dict[str, Any] = {
        "ordering.sequencer.sequencer.SNAPSHOT_EVERY_RECORDS": what.shape.snapshot_every,
        "ordering.sequencer.sequencer.SNAPSHOT_RECORDS_PER_SENDER": 1,
        "connectors.kafka.log.log_state._FIRST_WINDOW": what.shape.window,
        "connectors.kafka.log.seqno_search._FIRST_STEP": what.shape.window,
        "connectors.kafka.log.seqno_search._NEAR": 2,
        "connectors.engine.batch.COLUMNS_FROM": what.shape.columns_from,
        "ordering.base.packs.MAX_PACK_MESSAGES": what.shape.packs or MAX_PACK_MESSAGES,
        "connectors.client.tail.go_back_n.BUSY_RECORDS": 1,
        "connectors.kafka.log.data_log.state_at": world.state_at,
        "connectors.takeover.takeover.SideBySide": InTurn,
        "connectors.engine.job.seconds_for_rival": lambda *_: 0.0,
        **parts(world.disk, world.wait_for_a_leader),
        **world.guests.patches(),
        **world.handovers.patches(),
        "secrets.randbelow": lambda below: world.actors.dice.randrange(below),
        "time.time_ns": lambda: world.actors.now_ms * 1_000_000,
    }
    with ExitStack() as stack:
        stack.enter_context(world.actors.installed())
        for target, replacement in patches.items():
            stack.enter_context(patch(target, replacement))
        stack.enter_context(mutation.broken())
        stack.callback(world.close)
        yield world


def play(what: History, mutation: Mutation = NONE) -> tuple[list[Anomaly], list[str]]:
    """Play a history; return what it breaks, and its story."""
    with playing(what, mutation) as world:
        for action in what.actions:
            world.apply(action)
        world.heal()
        return world.check(), world.story


def run(
    seed: int, mutation: Mutation = NONE, history_of: Callable[[int, Mutation], History] = history
) -> list[Anomaly]:
    """Play the history of a seed; return what it breaks."""
    return play(history_of(seed, mutation), mutation)[0]


def shrink(what: History, name: str, mutation: Mutation = NONE) -> History:
    """Drop as many actions as can be dropped while the anomaly `name` stays."""

    def fails(actions: Sequence[Action]) -> bool:
        return any(found.name == name for found in play(what._replace(actions=tuple(actions)), mutation)[0])

    return what._replace(actions=tuple(drop_actions(what.actions, fails)))


def explain(seed: int, mutation: Mutation, name: str, history_of: Callable[[int, Mutation], History] = history) -> str:
    """Return the shortest history that still breaks the same, event by event; without a name, the whole history."""
    what = history_of(seed, mutation)
    if name:
        what = shrink(what, name, mutation)
    return "\n".join([f"{name} {what.shape}:", *play(what, mutation)[1]])
