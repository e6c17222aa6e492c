"""Everybody in one group, what may happen to them, and what must hold when it is over."""

from __future__ import annotations

from typing import NamedTuple

from connectors.kafka.codec.codec import WRONG_VERSION
from ordering.base.errors import AbcastError, Fenced
from ordering.base.reader import Reader, Verdict
from ordering.base.records import MESSAGE, STRAY, STRAY_EPOCH, Data
from ordering.checker.anomalies import DIVERGENT, DUPLICATE, GAP, LOST, Anomaly
from ordering.checker.checker import Checker
from ordering.membership.forgetting import SenderRow, to_payload
from ordering.sequencer.sequencer import absorb
from ordering.sequencer.state import SequencerState
from tests.simulator.broker import GROUP, SITE, Broker, SimulatedLog
from tests.simulator.dice import Dice
from tests.simulator.members import Member
from tests.simulator.readers import Deliverer, LedgerWriter, Table
from tests.simulator.rules import Rules
from tests.simulator.sequencers import Sequencer

SEQUENCERS = 3
HEALING_ROUNDS = 6
LATE_JOINERS = 2
MOST_STEPS_TO_A_WRITE = 20
UNKNOWN_MESSAGE = "unknown-message"
"""Not a promise with a name of its own: somebody delivered what nobody broadcast."""
WRONG_STATE = "wrong-state"
"""A state rebuilt from DATA differs from DATA; a process that goes on from it will break a promise."""
STUCK = "stuck"
"""A process that met an error it must not meet, such as a ProtocolViolation."""


class Action(NamedTuple):
    """An action: its target (modulo the number of targets), and its `Dice`."""

    kind: str
    who: int = 0
    dice: int = 0


class Shape(NamedTuple):
    """The size of a world."""

    members: int = 2
    partitions: int = 1
    deliverers: int = 2
    outboxes: int = 0b01
    batch_rows: int = 8
    bad_network: int = 12
    """Percent of the records that are lost, late, and repeated."""
    steps: int = 10
    """Most steps of a sequencer at once: the fewer, the more two of them mix."""
    depth: int = 1
    """Batches of a sequencer that may be under way."""
    later: int = 0
    """Percentage of batches in which the sequencers, of a later version, write a record of an unknown kind."""


class World:
    """The simulated group. `apply` what you like, then `heal`, then `anomalies`."""

    def __init__(self, shape: Shape, rules: Rules) -> None:
        self.shape = shape
        self.rules = rules
        self.broker = Broker(shape.partitions)
        names = "abcdefgh"[: shape.members]
        self.members = [
            Member(self.broker, rules, name, outbox=bool(shape.outboxes >> index & 1))
            for index, name in enumerate(names)
        ]
        self.sequencers: list[Sequencer | None] = [None] * SEQUENCERS
        self.leftovers: list[list[Data]] = []
        self.deliverers = [Deliverer(self.broker, rules, f"deliverer {n}") for n in range(shape.deliverers)]
        self.table = Table()
        self.ledgers = [LedgerWriter(self.broker, rules, self.table) for _ in range(2)]
        self.problems: list[Anomaly] = []
        self.changes = 0
        """Changes by an operator."""

    def apply(self, action: Action) -> None:
        """Let it happen; an action that has no object now does nothing."""
        try:
            getattr(self, f"_do_{action.kind}")(action.who, Dice(action.dice))
        except AbcastError as error:
            self.problems.append(Anomaly(STUCK, f"{action.kind} {action.who}: {type(error).__name__}: {error}", ()))

    # Members and their network.

    def _member(self, who: int) -> Member:
        return self.members[who % len(self.members)]

    def _do_broadcast(self, who: int, dice: Dice) -> None:
        for _ in range(1 + dice.below(5)):
            self._member(who).broadcast()

    def _do_resend(self, who: int, dice: Dice) -> None:
        self._member(who).resend()

    def _do_network(self, who: int, dice: Dice) -> None:
        """Some records of the wire arrive: in order, late, twice, or never."""
        member = self._member(who)
        for _ in range(1 + dice.below(8)):
            if not member.wire:
                return
            index = dice.below(len(member.wire)) if dice.chance(self.shape.bad_network) else 0
            if dice.chance(self.shape.bad_network):
                member.wire.pop(index)
            else:
                member.append(index, keep=dice.chance(self.shape.bad_network))

    def _do_member_read(self, who: int, dice: Dice) -> None:
        self._member(who).read(1 + dice.below(30))

    def _do_member_crash(self, who: int, dice: Dice) -> None:
        self._member(who).crash()

    def _do_backup(self, who: int, dice: Dice) -> None:
        self._member(who).back_up()

    def _do_restore(self, who: int, dice: Dice) -> None:
        """Kill a member, and start it with an earlier outbox."""
        self._member(who).crash(dice.below(8))

    def _do_poison(self, who: int, dice: Dice) -> None:
        """Write as a stranger: foreign records, or ones without a proper address, into a forward topic; and into
        DATA.
        """
        if dice.number % 3 == 0:
            self.broker.append_data(Data(STRAY, STRAY_EPOCH))
        if dice.number % 2 == 0:
            self._purge()
        partition = dice.below(len(self.broker.forward))
        if dice.chance(50):
            self.broker.append_malformed(partition, WRONG_VERSION)
        else:
            self.broker.append_message(partition, "nobody", 1, 1, b"poison")

    def _purge(self) -> None:
        """An operator deletes FORWARD below what DATA says was considered."""
        for partition, offset in self.rules.purged_below(SimulatedLog(self.broker).state()).items():
            self.broker.kafka.log(*partition).drop(offset)

    def _do_add_partition(self, who: int, dice: Dice) -> None:
        if len(self.broker.forward) < 4:
            self.broker.add_partition()

    def _do_forget(self, who: int, dice: Dice) -> None:
        """Ask to forget a member by its row in DATA, now or a while ago."""
        member, state = self._member(who), SimulatedLog(self.broker).state()
        row = state.ordered(member.address)
        if row.incarnation:
            self.changes += 1
            incarnation = max(self.changes, state.membership.incarnation_floor + 1)
            payload = to_payload([SenderRow(member.address, *row)])
            self.broker.append_forget(member.partition, incarnation, payload)

    # Sequencers.

    def _do_start(self, who: int, dice: Dice) -> None:
        """Somebody starts a sequencer, whether or not another one runs."""
        slot = who % SEQUENCERS
        if self.sequencers[slot] is None:
            self.sequencers[slot] = Sequencer(
                self.broker,
                self.rules,
                Dice(dice.number >> 8),
                zombie=dice.chance(30),
                batch_rows=self.shape.batch_rows,
                depth=self.shape.depth,
                later=self.shape.later,
            )

    def _do_race(self, who: int, dice: Dice) -> None:
        """Two sequencers take over at the same time, step by step."""
        rivals = (who, who + 1)
        for slot in rivals:
            self._do_start(slot, dice)
        for _ in range(4 + dice.below(10)):
            self._do_sequence(rivals[dice.below(2)], Dice(0))

    def _do_sequence(self, who: int, dice: Dice) -> None:
        slot = who % SEQUENCERS
        for _ in range(1 + dice.below(self.shape.steps)):
            sequencer = self.sequencers[slot]
            if sequencer is not None and sequencer.advance() is None:
                self.sequencers[slot] = None

    def _do_sequencer_crash(self, who: int, dice: Dice) -> None:
        """kill -9: records in the producer's buffer may still be on their way to the broker."""
        self._fail(who, dice)
        self.sequencers[who % SEQUENCERS] = None

    def _do_task_failure(self, who: int, dice: Dice) -> None:
        """The attempt at a batch fails: its process goes on with a new query."""
        self._fail(who, dice)

    def _do_broken_write(self, who: int, dice: Dice) -> None:
        """In the middle of a write something is lost, all the rest arrives at once, and the attempt fails."""
        sequencer = self.sequencers[who % SEQUENCERS]
        if sequencer is None:
            return
        for _ in range(MOST_STEPS_TO_A_WRITE):
            if sequencer.is_writing and dice.chance(60):
                break
            if sequencer.advance() is None:
                break
        if sequencer.is_writing:
            self._fail(who, dice, lose_first=1 + dice.below(2))
            self._write(self.leftovers[-1], len(self.leftovers[-1]), Dice(0))
            self._do_sequence(who, dice)

    def _fail(self, who: int, dice: Dice, lose_first: int = 0) -> None:
        """Fail the running attempt; what it had not written yet may come later: not all of it, but in order."""
        sequencer = self.sequencers[who % SEQUENCERS]
        if sequencer is not None:
            rest = sequencer.fail()
            lost, kept = rest[:lose_first], rest[lose_first:]
            self.leftovers.append(kept if self.rules.writes_in_order else [*kept, *lost])

    def _write(self, records: list[Data], count: int, dice: Dice) -> None:
        """Let some of the first `count` leftovers arrive; keep the later ones in `records`."""
        for record in records[:count]:
            if dice.below(100) < 85:
                self.broker.append_data(record)
        del records[:count]

    def _do_leftover(self, who: int, dice: Dice) -> None:
        """Let the buffer of a dead or failed attempt arrive in part."""
        self.leftovers = [left for left in self.leftovers if left]
        if self.leftovers:
            self._write(self.leftovers[who % len(self.leftovers)], 1 + dice.below(4), dice)

    # Readers.

    def _do_deliver(self, who: int, dice: Dice) -> None:
        self.deliverers[who % len(self.deliverers)].read(1 + dice.below(16), columns=dice.chance(40))

    def _do_deliverer_crash(self, who: int, dice: Dice) -> None:
        self.deliverers[who % len(self.deliverers)].crash()

    def _do_ledger(self, who: int, dice: Dice) -> None:
        ledger = self.ledgers[who % len(self.ledgers)]
        ledger.read(1 + dice.below(16), columns=dice.chance(40))
        if dice.chance(60):
            ledger.commit()

    def _do_ledger_commit(self, who: int, dice: Dice) -> None:
        self.ledgers[who % len(self.ledgers)].commit()

    def _do_ledger_crash(self, who: int, dice: Dice) -> None:
        self.ledgers[who % len(self.ledgers)].crash()

    # The end.

    def heal(self) -> None:
        """No more faults: one sequencer, a working network, and time enough for everything to arrive."""
        try:
            self._heal()
        except AbcastError as error:
            self.problems.append(Anomaly(STUCK, f"healing: {type(error).__name__}: {error}", ()))

    def _heal(self) -> None:
        sequencer = Sequencer(
            self.broker, self.rules, Dice(12345), zombie=True, batch_rows=1000, later=self.shape.later
        )
        while sequencer.state is None:
            if sequencer.advance() is None:
                raise Fenced("the last sequencer finds a newer one.")
        for records in self.leftovers:
            for record in records:
                self.broker.append_data(record)
        self.sequencers = [sequencer, None, None]
        self._settle(sequencer)
        for deliverer in self.deliverers:
            deliverer.read(len(self.broker.data))
        self._join_late()
        self.ledgers[0].crash()
        self.ledgers[0].read(len(self.broker.data), columns=False)
        self.ledgers[0].commit()

    def _settle(self, sequencer: Sequencer) -> None:
        """Until no member has anything left."""
        for _ in range(HEALING_ROUNDS):
            for member in self.members:
                member.resend()
                while member.wire:
                    member.append(0)
            sequencer.advance()
            while sequencer.is_writing:
                sequencer.advance()
            for member in self.members:
                member.read(len(self.broker.data))
            if not any(len(member.table) for member in self.members):
                break
        for member in self.members:
            member.read(len(self.broker.data))  # one that has just started again reads on behind its last message

    def _join_late(self) -> None:
        """Start deliverers just before decisions across a seal: where a reader is easiest to mislead."""
        assert self.sequencers[0] is not None
        state = self.sequencers[0].state
        assert state is not None
        sealed_at = {record.epoch: offset for offset, record in enumerate(self.broker.data) if not record.payload}
        for seal in state.seals[-LATE_JOINERS:]:
            # `after` begins at the offset that equals the seqno: once before the seal, once right behind it.
            for seqno in sorted({max(0, seal.first_seqno - 3), seal.first_seqno - 1, sealed_at.get(seal.epoch, 0) + 1}):
                if seqno <= state.seqno:
                    deliverer = Deliverer(self.broker, self.rules, f"late joiner at epoch {seal.epoch} after {seqno}")
                    deliverer.cursor.resume(seqno)
                    deliverer.read(len(self.broker.data))
                    self.deliverers.append(deliverer)

    def anomalies(self) -> list[Anomaly]:
        """Every broken promise: the checker's, and what only the model can know."""
        checker = Checker(causal=True)
        for record in self.broker.data:
            checker.data(SITE, record)
        for member in self.members:
            member.report(checker)
        for deliverer in self.deliverers:
            deliverer.report(checker)
        for row in self.table.rows:
            checker.ledger(row.seqno, row.id, row.payload)
        return [*checker.finish(), *self._model_anomalies(), *self.problems]

    def _model_anomalies(self) -> list[Anomaly]:
        reader = Reader()
        taken = [record for record in self.broker.data if reader.judge(record) is Verdict.TAKE]
        end = reader.last_seqno
        found: list[Anomaly] = []
        for member in self.members:
            if len(member.table):
                found.append(Anomaly(LOST, f"{member.address} still holds {len(member.table)} messages.", ()))
        for name, last in [(deliverer.name, deliverer.cursor.last_seqno) for deliverer in self.deliverers] + [
            (member.address, member.cursor.last_seqno) for member in self.members
        ]:
            if last < end:
                found.append(Anomaly(GAP, f"{name} is stuck at {last} of {end}.", (last + 1,)))
        if len(self.table.rows) < end:
            found.append(Anomaly(GAP, f"the ledger has {len(self.table.rows)} of {end} rows.", ()))
        known = {broadcast for member in self.members for broadcast in member.broadcast_ever}
        messages = [record for record in taken if record.kind == MESSAGE]
        wrong = [record.seqno for record in messages if (record.id, record.payload) not in known]
        first = {record.payload: record.seqno for record in reversed(messages)}
        again = [record.seqno for record in messages if first[record.payload] != record.seqno]
        if again:
            found.append(Anomaly(DUPLICATE, "ordered under two ids.", tuple(again)))
        if wrong:
            found.append(Anomaly(UNKNOWN_MESSAGE, "ordered, but never broadcast.", tuple(wrong)))
        state, replayed = (
            self.sequencers[0] and self.sequencers[0].state,
            absorb(SequencerState(GROUP), self.broker.data),
        )
        if state and (state.epoch, state.seqno, state.received) != (replayed.epoch, replayed.seqno, replayed.received):
            found.append(Anomaly(DIVERGENT, "the sequencer's state is not what DATA tells.", ()))
        found += [Anomaly(WRONG_STATE, wrong, ()) for wrong in self.broker.wrong_states]
        return found
