"""Retention drops DATA past the last snapshot and past everything, while a ledger lags behind and sequencers restart.

One seed, one history. The broker hides what retention has dropped and keeps it, so that the checker sees all that was
ever decided: a number that is given a second time is in its log twice.
"""

from __future__ import annotations

import random
from dataclasses import replace

from connectors.kafka.data_log import StateAt
from connectors.sequencer.takeover import missing_note
from ordering.checker import Anomaly, Checker
from ordering.errors import HistoryUnavailable, ProtocolViolation
from ordering.reader import Reader, Seal, Verdict
from ordering.records import Data
from ordering.sequencer import SequencerState, absorb
from tests.simulator.broker import GROUP, SITE, Broker, SimulatedLog
from tests.simulator.dice import Dice
from tests.simulator.rules import Rules
from tests.simulator.sequencers import Sequencer

ACTIONS = 80
WEIGHTS = {
    "send": 10,
    "sequence": 40,
    "start": 8,
    "crash": 6,
    "ledger": 10,
    "retain": 3,
    "empty": 3,
    "read": 6,
    "note": 3,
}


class Retained:
    """The history of a seed. `run` it; `refusals` counts the starts that were refused."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.broker = Broker(2)  # read again in other batches, they give another order
        self.sequencers: list[Sequencer] = []
        self.sent = 0
        self.rows: list[tuple[int, Data]] = []
        self.knows_offsets = self.random.random() < 0.8
        """Whether the ledger does: one of an earlier version does not."""
        self.refusals = 0

    def run(self) -> list[Anomaly]:
        for _ in range(ACTIONS):
            getattr(self, f"do_{self.random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]}")()
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
        """Most of them by an operator who has stopped the last one."""
        if self.random.random() < 0.7:
            self.do_crash()
        dice = Dice(self.random.getrandbits(30))
        zombie, rows, depth = self.random.random() < 0.3, self.random.choice((1, 4, 20)), self.random.choice((1, 3))
        self.sequencers.append(
            Sequencer(
                self.broker,
                Rules(),
                dice,
                zombie=zombie,
                batch_rows=rows,
                history=lambda _: self._told(),
                depth=depth,
            )
        )
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
            self.refusals += 1
        self.sequencers.remove(sequencer)

    def do_crash(self) -> None:
        self.sequencers = []

    def do_ledger(self) -> None:
        """It takes some rows more, as long as retention has left what comes next."""
        new = [(offset, record) for offset, record in self.effective() if record.seqno > len(self.rows)]
        for offset, record in new[: self.random.randint(1, 12)]:
            if offset < self.broker.beginning:
                return
            self.rows.append((offset, record))

    def effective(self) -> list[tuple[int, Data]]:
        reader = Reader()
        return [
            (offset, record)
            for offset, record in enumerate(self.broker.data)
            if reader.accept(record.kind, record.epoch, record.seqno) is Verdict.TAKE
        ]

    def _told(self) -> StateAt | None:
        if not self.rows:
            return None
        records = [record for _, record in self.rows]
        first = {record.epoch: record.seqno for record in reversed(records)}
        seals = tuple(Seal(epoch, first[epoch]) for epoch in sorted(first))
        state = replace(absorb(SequencerState(GROUP), records), positions={}, seals=seals)
        return StateAt(state, self.rows[-1][0] + 1 if self.knows_offsets else None)

    def do_note(self) -> bool:
        """The driver's, whose upkeep this is; whether it could be done."""
        log = SimulatedLog(self.broker)
        try:
            note = missing_note(log)
        except HistoryUnavailable:
            return False
        if note is not None:
            self.broker.notes.append(note)
        return log.end() > log.beginning()

    def do_retain(self) -> None:
        self.broker.beginning = self.random.randint(self.broker.beginning, len(self.broker.data))

    def do_empty(self) -> None:
        self.broker.beginning = len(self.broker.data)

    def do_read(self) -> None:
        """Somebody starts to read; the log compares each state that it makes (`SimulatedLog.state`)."""
        log, last = SimulatedLog(self.broker), len(self.effective())
        try:
            start = log.after(self.random.randint(0, last))
        except HistoryUnavailable:
            return
        except ProtocolViolation as error:
            self.broker.wrong_states.append(str(error))
            return
        for stored in log.records(start.offset, log.end()):
            start.reader.accept(stored.data.kind, stored.data.epoch, stored.data.seqno)
        if start.reader.last_seqno != last:
            self.broker.wrong_states.append(f"a reader from offset {start.offset} ends at {start.reader} of {last}.")

    def starts_with_a_whole_ledger(self) -> bool:
        """At the end: the ledger has everything, the driver has done its upkeep, and then nothing is left of DATA."""
        self.do_crash()
        self.rows = self.effective()
        self.do_empty()
        refused = self.refusals
        sequencer = Sequencer(self.broker, Rules(), Dice(1), zombie=True, batch_rows=9, history=lambda _: self._told())
        self.sequencers = [sequencer]
        while self.sequencers and sequencer.state is None:
            self._advance(sequencer)
        return self.refusals == refused
