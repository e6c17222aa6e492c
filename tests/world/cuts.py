"""A group whose logs lose their ends, their beginnings, or all they have, while it goes on: one seed, one history.

It has the jobs, members and actions of `tests.world.group`, readers that ship (`tests.world.cuts_readers`), and a
ledger that is one of them. The end of DATA or of FORWARD is cut; either is made anew, or the whole group is; retention
takes beginnings. Storms do so where it hurts most. Then an operator does what errors say. What must hold:

* no reader goes on in silence: if DATA has lost the record that it read last, it raises (HistoryChanged,
  HistoryUnavailable), and gets no more;
* a start that knows that DATA went further, or that a ledger has more, is refused;
* nobody raises without a reason;
* a state that DATA tells is the state after its records, read one by one;
* at last all waiting messages are ordered, once, and each reader has all.

Not here: a reader that had a lost record last and looks again only after a purge of that offset: nothing is left to
compare. It begins anew, as after HistoryUnavailable.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import decode_data
from connectors.kafka.codec.epochs import Note, StrayClaim, decode
from connectors.kafka.log.same_log import LedgerRow
from connectors.kafka.log.sign_of_life import group_id
from ordering.base.errors import AbcastError, HistoryChanged, HistoryUnavailable
from ordering.base.names import ROLES, Address, Topic
from ordering.base.packs import unpacked
from ordering.base.records import EPOCH, MESSAGE, Data
from ordering.checker.anomalies import GAP, Anomaly
from ordering.checker.checker import Checker
from ordering.sequencer.state import SequencerState
from tests.simulator.mutation import NONE, Mutation
from tests.world import group
from tests.world.cuts_readers import FALSE_ALARM, CutsMember, Doubter, LedgerOfCuts
from tests.world.group import CLAIMS, DATA, FORWARD, JOBS, GroupWorld, Known
from tests.world.group_history import WEIGHTS, Action, History, Shape
from tests.world.group_job import GROUP, SITE, GroupJob
from tests.world.wires import RUSH

COUNT = 60
LONG_MS = 10_000
"""Longer than anybody goes without a look whether its log is the same."""
ROUNDS = 12
FEW = (1, 2, 5, 20)

GIVEN_AGAIN = "given again"
INCOMPARABLE = "incomparable"
GUESTS = ("limits", "format", "day", "forget")

OTHERS = ("add_partition", "broken_write", "deliverer_crash", "ledger_commit", "ledger_crash")
"""Actions of a group's world that this one has not."""
CUTS = {
    "start": 8,
    "race": 1,
    "begin_to_read": 4,
    "wait": 6,
    "mark": 2,
    "truncate": 1.5,
    "make_anew": 0.5,
    "drop": 1.5,
    "purge": 1.5,
    "storm": 2,
}


def history(seed: int, mutation: Mutation = NONE) -> History:
    """Return the history of a seed."""
    dice = random.Random(seed)
    later = dice.choice((0, 0, 10, 60))
    shape = Shape(
        members=dice.randint(1, 3),
        deliverers=dice.randint(1, 3),
        outboxes=dice.randrange(8),
        batch_rows=dice.choice((3, 8, 30)),
        bad_network=dice.choice((0, 5)),
        steps=dice.choice((15, 40)),
        depth=dice.choice((1, 1, 2)),
        haste=dice.choice((0.3, 0.7, 0.9)),
        snapshot_every=dice.choice((3, 8, 1000)),
        powers=dice.choice(((), ("clock",), ("clock",))),
        ledger=dice.random() < 0.7,
        later=later if mutation.has("later") else 0,
        packs=random.Random(f"packs {seed}").choice((0, 0, 2, 5)) if mutation.has("packs") else 0,
    )
    weights = WEIGHTS | CUTS | dict.fromkeys(OTHERS, 0)
    kinds = [*dice.choices(list(weights), list(weights.values()), k=COUNT), "storm", "storm"]
    actions = [Action(kind, dice.choice((0, 0, 0, 0, 1, 2)), dice.getrandbits(48)) for kind in kinds]
    return History(seed, shape, (Action("start"), *actions), CutsWorld)


class CutsWorld(GroupWorld):
    """The world of a history. The first anomaly ends it."""

    blind, may_come = 0.0, GUESTS
    ledger: LedgerOfCuts | None

    def __init__(self, what: History, mutation: Mutation = NONE) -> None:
        self.damage = 0
        """The number of damages of DATA."""
        self.is_damaged = self.has_lost = False
        """Whether DATA has lost anything since the group was made; whether any log has, ever."""
        self.effective: dict[int, tuple[Data, int, int]] = {}
        """DATA's decisions by their last seqno, each with its offset and time, dropped ones included."""
        self.at_seal: dict[int, tuple[int, int, list[LedgerRow]]] = {}
        """By epoch: the damages before its seal, and what a sign of life (the end of DATA) and the ledger told then."""
        super().__init__(what, mutation)
        self._begin_group()

    def _begin_group(self) -> None:
        """Begin another ledger, if there is one; and give the group the format of packs, if it has it."""
        self.is_damaged = False
        self.ledger = LedgerOfCuts(self) if self.shape.ledger else None
        if self.shape.packs:
            self._upgrade(0)

    def new_member(self, address: Address, *, has_outbox: bool) -> CutsMember:
        return CutsMember(self, address, has_outbox=has_outbox)

    def new_deliverer(self, name: str) -> Doubter:
        return Doubter(self, name)

    @property
    def readers(self) -> list[Doubter]:
        """Readers of DATA."""
        every = [*self.deliverers, *(member.application for member in self.members), self.ledger]
        return [each for each in every if isinstance(each, Doubter)]

    # What the world sees

    def _noted(self, place: TopicPartition, *record: Any) -> Any:
        before = self.known[-1].seqno
        stored = super()._noted(place, *record)
        data = decode_data(stored.key, stored.value, stored.headers) if place == DATA else None
        if data is not None and data.kind == EPOCH and not data.payload:
            rows = [] if self.ledger is None else self.ledger.rows.copy()
            signed = self.kafka.topics.committed.get((group_id(SITE), DATA))
            self.at_seal[data.epoch] = self.damage, 0 if signed is None else signed.offset, rows
        if data is not None and self.known[-1].seqno != before:
            for each in unpacked(data):
                self.effective[each.seqno + each.count - 1] = each, stored.offset, stored.timestamp
        return stored

    def in_short(self, known: Known) -> Known:
        """Return what decisions tell: an epoch without any may have lost its seal."""
        seals = (seal for seal in known.in_short().seals if seal.first_seqno <= known.seqno)
        return known._replace(epoch=0, seals=tuple(seals))

    def check_takeover(self, job: GroupJob, state: SequencerState) -> None:
        """Check that the job gives no seqno again that its start could know: by EPOCH, the ledger, signs of life.

        A sequencer that a lost seal no longer fences may write the lost messages again, in its own epoch. A start then
        finds all seqnos that the ledger has, and goes on behind them; the ledger raises HistoryChanged.
        """
        self._check_told(job, state)
        damage, signed_end, rows = self.at_seal[state.epoch]
        if damage != self.damage:  # others may have looked only then
            return
        if signed_end > (end := len(self.kafka.log(*DATA).records)):
            self.blame(GIVEN_AGAIN, f"{job.process.name} has started at {end}, and a sign of life told {signed_end}.")
        is_another = self.ledger is None or self.ledger.rows[: len(rows)] != rows
        for row in () if is_another else rows:
            there = self.effective.get(row.seqno)
            if row.seqno > state.seqno or (
                there is not None and not row._replace(epoch=there[0].epoch).is_of(there[0])
            ):
                self.blame(GIVEN_AGAIN, f"{job.process.name} has started, and the ledger has {row}.")
                return

    def _check_told(self, job: GroupJob, state: SequencerState) -> None:
        """Check that the job goes on from no less than EPOCH tells below its claim."""
        told = list(self.notes(0, state.epoch - 1))
        own = next(note for note in self.notes(state.epoch) if note.epoch == state.epoch)
        if less := [note for note in told if note.seqno > own.seqno or note.offset >= own.offset]:
            self.blame(GIVEN_AGAIN, f"{job.process.name} has started with {own}, and EPOCH tells {less[0]}.")

    def notes(self, start: int, end: int | None = None) -> Iterator[Note]:
        """Yield the notes in a part of EPOCH."""
        for record in self.kafka.topics.partitions[CLAIMS][start:end]:
            with suppress(StrayClaim):
                entry = decode("", record.offset, record.value, record.headers, 0)
                if isinstance(entry, Note):
                    yield entry

    def judge(self, who: str, error: AbcastError) -> None:
        """Blame an error without a reason."""
        may_know_more = self.is_damaged if who.startswith("job") else self.has_lost  # others outlive a group
        if isinstance(error, HistoryChanged) and not may_know_more:
            self.blame(FALSE_ALARM, f"DATA is whole, and yet: {error}")

    # What happens

    def apply(self, action: Action) -> None:
        if not self.anomalies:
            super().apply(action)

    def _deliver(self, _: int) -> None:
        self.dice.choice(self.readers).read()

    def _begin_to_read(self, who: int) -> None:
        after = self.dice.choice([None, 0, self.dice.randint(0, max(self.effective, default=0))])
        self.deliverers[who % len(self.deliverers)].resume(after)

    def _ledger(self, _: int) -> None:
        if self.ledger is not None:
            self.ledger.read()

    def _wait(self, _: int) -> None:
        self.actors.pass_time(self.dice.choice((100, 1_000, LONG_MS)))

    def _mark(self, _: int) -> None:
        """Write a transaction's marker. A reader of DATA that begins behind one does not know the log."""
        self.kafka.topics.mark(FORWARD)

    @property
    def in_ledger(self) -> int:
        return max(self.effective, default=0) if self.ledger is None else self.ledger.last_seqno("")

    def _purge(self, who: int) -> None:
        self.has_lost = True
        super()._purge(who)
        self.end_the_incomparable()

    def end_the_incomparable(self) -> None:
        """End the readers of a lost record whose offset, the last that they read, was purged."""
        for reader in self.readers:
            is_at_it = reader.cursor is not None and reader.cursor.position == self.kafka.log(*DATA).beginning
            if is_at_it and reader.is_cut:
                self.seen[INCOMPARABLE] += 1
                reader.cursor = None

    def _drop(self, _: int) -> None:
        """Let retention drop records of FORWARD."""
        self.has_lost = True
        log = self.kafka.log(*FORWARD)
        log.drop(self.dice.randint(log.beginning, len(log.records)))

    def _truncate(self, _: int) -> None:
        """Cut the newest records of a log, mostly few."""
        place = self.dice.choice([DATA, DATA, FORWARD])
        self.truncate(place, len(self.kafka.log(*place).records) - self.dice.choice(FEW))

    def truncate(self, place: TopicPartition, end: int) -> None:
        """Cut a log, as a power failure does. Requests on their way end with their connections."""
        log = self.kafka.log(*place)
        end = max(log.beginning, end)
        self._damage(place, end)
        log.truncate(end)
        if place == DATA:
            del self.known[end + 1 :]
            self.effective = {seqno: each for seqno, each in self.effective.items() if each[1] < end}

    def _make_anew(self, _: int) -> None:
        if self.dice.random() < 0.5:
            self.make_group_anew()
        else:
            self.make_anew(self.dice.choice([DATA, FORWARD]))

    def make_anew(self, place: TopicPartition) -> None:
        """Delete a topic, and create it."""
        self._damage(place)
        self.kafka.topics.make_anew([place.topic])
        if place == DATA:
            self.known, self.effective = [Known()], {}

    def make_group_anew(self) -> None:
        """Make the group anew as the errors say: stop its sequencers, make all topics, and another ledger."""
        for who in range(JOBS):
            self._kill(who)
        self.make_anew(DATA)
        self.kafka.topics.make_anew(str(Topic(GROUP, role, SITE)) for role in ROLES)
        self._begin_group()

    def _damage(self, place: TopicPartition, end: int = 0) -> None:
        self.actors.pass_time(self.dice.choice((1, 5_000)))
        self.tell(f"    {place.topic} is damaged")
        self.kafka.leftovers.clear()
        self.note_damage(place)
        if place == DATA:
            for reader in self.readers:
                position = reader.cursor.position if reader.cursor is not None else 0
                reader.is_cut |= end < position <= len(self.kafka.log(*DATA).records)
            ordered = {data.payload for data, _, _ in self.effective.values()}
            for member in self.members:
                member.owed = {payload: each for payload, each in member.owed.items() if payload not in ordered}

    def note_damage(self, place: TopicPartition) -> None:
        """Note that a log is damaged."""
        self.has_lost = True
        if place == DATA:
            self.damage += 1
            self.is_damaged = True

    # Storms

    def _storm(self, _: int) -> None:
        """Lose something where it hurts: rare orders of events, by design rather than by chance."""
        storms = (
            self._lose_an_epoch,
            self._lose_what_the_ledger_has,
            self._lose_unread_forward,
            self._outgrow,
            self._overtake,
            self._order_before_a_seal,
        )
        if self.is_damaged:
            self.make_group_anew()
        self.dice.choice(storms)()

    def _lose_an_epoch(self) -> None:
        """DATA loses all of an epoch but its opening, and the job that runs goes on behind the hole."""
        self._work(self.dice.randint(1, 3))
        self.truncate(DATA, self._opened() + self.dice.choice((0, 0, 0, 1)))
        self._work(5)

    def _lose_what_the_ledger_has(self) -> None:
        """DATA loses what the ledger has read since the last sign of life, or of a new group all; the job dies."""
        if self.dice.random() < 0.7:
            self.make_group_anew()
        for role in ("data", "epoch"):
            self.pass_time(0, (role,), 1.0)
        self._work(1)
        if self.ledger is not None:
            with suppress(HistoryUnavailable):
                self.ledger.catch_up()
        self._kill(0)
        self.truncate(DATA, self._opened())
        self._work(1)

    def _lose_unread_forward(self) -> None:
        """FORWARD loses what a job that has just taken over has not read again yet."""
        self._work(20)
        self._kill(0)
        self._start(0)
        for _ in range(80):
            job = self.jobs[0]
            if job is None or job.machine is not None:
                break
            self._step(0, 1)
        if job is not None and job.pipeline is not None:
            self.truncate(FORWARD, job.pipeline.state.positions.get(FORWARD, 0) + self.dice.choice(FEW))
        self._work(1)

    def _overtake(self) -> None:
        """A job takes over and orders while another one claims. Then DATA loses exactly its records."""
        self._kill(1)
        self._start(1)
        self._writing(1, 1)
        end = len(self.kafka.log(*DATA).records)
        self._kill(0)
        self._work(1)
        self.truncate(DATA, end)
        self._kill(0)
        self._step(1, 40)

    def _order_before_a_seal(self) -> None:
        """A job orders between another one's survey and seal. DATA loses just that, and others have seen it."""
        self._work(1)
        self._start(1)
        self._writing(1, 1)
        end = len(self.kafka.log(*DATA).records)
        self._work(self.dice.randint(1, 4))
        if self.ledger is not None and self.dice.random() < 0.5:
            with suppress(HistoryUnavailable):
                self.ledger.catch_up()
        self.truncate(DATA, end)
        self._kill(0)
        self._step(1, 40)

    def _outgrow(self) -> None:
        """A new group outgrows the one that its readers know, and some have read nothing of."""
        self.make_group_anew()
        self._work(1)
        for reader in self.readers:
            reader.resume(self.dice.choice((None, 0)))
        self.make_group_anew()
        self._work(5)

    def _work(self, messages: int) -> None:
        """Let each member send messages that arrive, and the first job order them, for a while."""
        before = self.known[-1].seqno
        for _ in range(30):
            has_begun = self.known[-1].seqno > before
            self._turn_members(0 if has_begun else messages)
            self._start(0)
            self._step(0, 5)  # soon after, the job gives a sign of life
            if self.jobs[0] is None or (has_begun and all(member.is_idle for member in self.members)):
                break

    def _turn_members(self, messages: int = 0) -> None:
        for member in self.members:
            with self.actors.acting(str(member.address)):
                member.start()
                for _ in range(messages if member.is_idle else 0):
                    member.broadcast()
                for producer in member.producers:
                    producer.arrive()
                member.turn()

    def _opened(self) -> int:
        """The offset behind the snapshot that opens the newest epoch in DATA."""
        epochs = [(at, each) for at, each in enumerate(self._data()) if each.kind == EPOCH]
        newest = max((each.epoch for _, each in epochs), default=0)
        return next((at + 1 for at, each in epochs if each.payload and each.epoch == newest), 0)

    # The end

    def _settle(self) -> None:
        for _ in range(ROUNDS):
            if self.anomalies or self._is_settled():
                return
            self.pass_time(LONG_MS, ("data",), 0.0)
            for who in reversed(range(JOBS)):  # a claim that has come late may have ended the last one
                self._step(who, 40)
                self._settle_job()
            if self.jobs[0] is None:
                self.make_group_anew()
            for wire in list(self.kafka.leftovers):
                self._let_arrive(wire, RUSH, 1.0)
            self._turn_members()
            self._settle_job()
            for reader in self.readers:
                with suppress(HistoryUnavailable):
                    reader.catch_up()
            for member in self.members:
                member.turn()

    def _is_settled(self) -> bool:
        job, known = self.jobs[0], self.known[-1]
        is_true = job is not None and job.pipeline is not None and Known.of(job.pipeline.state)[1:3] == known[1:3]
        return is_true and all(each.is_idle for each in self.members) and not any(map(self._lacks, self.readers))

    def _lacks(self, reader: Doubter) -> bool:
        return reader.cursor is not None and reader.passed != self.known[-1].seqno

    def check(self) -> list[Anomaly]:
        """Return the broken promises."""
        if self.anomalies:
            return self.anomalies
        checker, records = Checker(), [data for data, _, _ in self.effective.values()]
        for data in records:
            checker.data(SITE, data)
        self._check_messages([data for data in records if data.kind == MESSAGE], checker)
        for reader in filter(self._lacks, self.readers):
            self.blame(GAP, f"{reader.name} is at {reader.passed} of {self.known[-1].seqno}.")
        self._check_job()
        return [*checker.finish(), *self.anomalies]


run = functools.partial(group.run, history_of=history)
explain = functools.partial(group.explain, history_of=history)
