"""DATA is purged at any step, while the ledger lags, sequencers restart and groups idle; or Kafka's retention takes it.

One seed, one history. The broker hides purged records and keeps them, so that the checker sees every decision: a number
that is given a second time is in its log twice. The code that ships chooses the records to purge
(`connectors.kafka.topics.data_purge`), one durable effect a step.
"""

from __future__ import annotations

import random

from connectors.kafka.log.log_state import Snapshot
from connectors.kafka.topics.data_purge import deletable, missing_note
from ordering.base.errors import HistoryUnavailable, ProtocolViolation
from ordering.base.reader import Reader, Verdict
from ordering.checker.anomalies import Anomaly
from ordering.checker.checker import Checker
from tests.simulator.broker import SITE, Broker, SimulatedLog
from tests.simulator.dice import Dice
from tests.simulator.mutation import NONE, Mutation
from tests.simulator.rules import Rules
from tests.simulator.sequencers import Sequencer
from tests.simulator.world import WRONG_STATE

ACTIONS = 80
WEIGHTS = {
    "send": 10,
    "sequence": 40,
    "start": 8,
    "crash": 6,
    "ledger": 10,
    "plan_purge": 6,
    "purge": 8,
    "read": 6,
    "retention": 2,
}


class Retained:
    """The history of a seed. `run` it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.broker = Broker(2)  # read again in other batches, they give another order
        self.sequencers: list[Sequencer] = []
        self.sent = 0
        self.in_ledger = 0
        """The last seqno that the ledger has."""
        self.planned: list[Snapshot] = []
        """Purges that are under way, before their first effect."""
        self.purged = 0
        self.has_retention = self.random.random() < 0.3
        """Whether somebody sets a retention, whatever is said of that."""
        self.is_whole = True
        """Whether nothing but purges has deleted anything."""
        self.later = random.Random(f"later {seed}").choice((0, 0, 10, 60))
        """`tests.simulator.world.Shape.later` by other dice, so that seeds stay valid."""

    def run(self) -> list[Anomaly]:
        for _ in range(ACTIONS):
            getattr(self, f"do_{self.random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]}")()
            self._check_that_everybody_can_start()
        self._check_that_a_sequencer_can_start()
        checker = Checker()
        for record in self.broker.data:
            checker.data(SITE, record)
        return checker.finish()

    def do_send(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            self.sent += 1
            sender = f"{SITE}/{self.random.choice('ab')}{self.sent}"
            self.broker.append_message(self.random.randint(0, 1), sender, 1, 1, b"%d" % self.sent)

    def do_start(self) -> None:
        """Start a job, mostly after an operator has stopped the last one."""
        if self.random.random() < 0.4:
            self.do_crash()
        dice = Dice(self.random.getrandbits(30))
        zombie, rows, depth = self.random.random() < 0.3, self.random.choice((1, 4, 20)), self.random.choice((1, 3))
        new = Sequencer(self.broker, Rules(), dice, zombie=zombie, batch_rows=rows, depth=depth, later=self.later)
        self.sequencers.append(new)
        if self.random.random() < 0.7:
            while self.sequencers and self.sequencers[-1].state is None:
                self._advance(self.sequencers[-1])

    def do_sequence(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            if self.sequencers:
                self._advance(self.random.choice(self.sequencers))

    def _advance(self, sequencer: Sequencer) -> None:
        try:
            if sequencer.advance() is not None:
                return
        except HistoryUnavailable:
            pass  # its records were deleted, by a purge or a retention
        self.sequencers.remove(sequencer)

    def do_crash(self) -> None:
        self.sequencers = []

    def do_ledger(self) -> None:
        """Let the ledger take some more rows, as long as the next one exists."""
        new = [(offset, seqno) for offset, seqno in self.effective() if seqno > self.in_ledger]
        for offset, seqno in new[: self.random.choice((1, 5, 1000))]:
            if offset < self.broker.beginning:
                return
            self.in_ledger = seqno

    def effective(self) -> list[tuple[int, int]]:
        """The offset and the last seqno of each record that counts."""
        reader = Reader()
        return [
            (offset, reader.last_seqno)
            for offset, record in enumerate(self.broker.data)
            if reader.judge(record) is Verdict.TAKE
        ]

    def do_plan_purge(self) -> None:
        """Plan a purge of old records."""
        older = max(self.random.randint(0, len(self.broker.data)) for _ in range(3))
        snapshot = deletable(SimulatedLog(self.broker), older, self.in_ledger)
        if snapshot is not None:
            self.planned.append(snapshot)

    def do_purge(self) -> None:
        """Go on with the purge, much later maybe, or be killed on the way."""
        if not self.planned:
            return
        snapshot = self.planned.pop(self.random.randrange(len(self.planned)))
        note = missing_note(SimulatedLog(self.broker), snapshot)
        if note is not None:
            self.broker.notes.append(note)
        if self.random.random() < 0.8:
            self.purged += 1
            self.broker.beginning = max(self.broker.beginning, self.deleted_below(snapshot))

    @staticmethod
    def deleted_below(snapshot: Snapshot) -> int:
        return snapshot.offset

    def do_retention(self) -> None:
        """Let Kafka delete old records, or all records of an idle group."""
        if self.has_retention:
            end = len(self.broker.data)
            self.broker.beginning = self.random.choice((end, self.random.randint(self.broker.beginning, end)))
            self.is_whole = self.is_whole and not self.broker.beginning

    def do_read(self) -> None:
        """Somebody starts to read; the log compares each state that it makes (`SimulatedLog.state`)."""
        effective = self.effective()
        log, last = SimulatedLog(self.broker), effective[-1][1] if effective else 0
        after = self.random.randint(0, last)
        try:
            start = log.after(after)
        except HistoryUnavailable:
            if self.is_whole and after >= self.in_ledger:
                self._wrong(f"what follows seqno {after} is nowhere: the ledger ends at {self.in_ledger}.")
            return
        except ProtocolViolation as error:
            self._wrong(str(error))
            return
        for stored in log.records(start.offset, log.end()):
            start.reader.judge(stored.data)
        if start.reader.last_seqno != last:
            self._wrong(f"a reader from offset {start.offset} ends at {start.reader} of {last}.")

    def _check_that_everybody_can_start(self) -> None:
        if self.is_whole:
            try:
                SimulatedLog(self.broker).state()
            except HistoryUnavailable as error:
                self._wrong(str(error))

    def _check_that_a_sequencer_can_start(self) -> None:
        self.do_crash()
        sequencer = Sequencer(self.broker, Rules(), Dice(1), zombie=True, batch_rows=9)
        self.sequencers = [sequencer]
        while self.sequencers and sequencer.state is None:
            self._advance(sequencer)
        if self.is_whole and sequencer.state is None:
            self._wrong("no sequencer can start.")

    def _wrong(self, what: str) -> None:
        self.broker.wrong_states.append(what)


def run(seed: int, mutation: Mutation = NONE) -> list[Anomaly]:
    """Run a history; return its violations."""
    with mutation.broken():
        history = Retained(seed)
        found = history.run()
        return [*found, *(Anomaly(WRONG_STATE, wrong, ()) for wrong in history.broker.wrong_states)]
