"""A sequencer process: takes over as `connectors.sequencer.takeover` does, then decides batches. Every `yield` is a
point where it may be killed, stopped for a while, or overtaken by another one.

Spark's faults are here, too: an attempt at a batch that fails ends the query, and the next one begins with a takeover.
Of what the failed attempt had not written yet a part may be lost and the rest arrive all the same: at once, or later,
also behind somebody else's seal (`World.leftovers`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

from connectors.kafka.epochs import Claim, Note
from connectors.sequencer.takeover import History, find_state, reach
from ordering import sequencer
from ordering.reader import Seal
from ordering.records import Data, DeadLetter, Forward, Malformed
from ordering.sequencer import SequencerState, absorb, begin_batch, seal, snapshot
from tests.simulator.broker import GROUP, Broker, SimulatedLog
from tests.simulator.columns import step_by_columns
from tests.simulator.dice import Dice
from tests.simulator.rules import Rules

NOT_YET = 1 << 60
"""The floor of a claim that has none."""


class Sequencer:
    """One process. `advance` does one step and says which; when it returns None the process has ended (fenced)."""

    def __init__(
        self,
        broker: Broker,
        rules: Rules,
        dice: Dice,
        *,
        zombie: bool,
        batch_rows: int,
        history: History | None = None,
    ) -> None:
        self.broker = broker
        self.history = history
        self.rules = rules
        self.dice = dice
        self.zombie = zombie
        """Never looks whether it is fenced."""
        self.batch_rows = batch_rows
        self.log = SimulatedLog(broker)
        self.state: SequencerState | None = None
        self.own_epoch = 0
        """The newest epoch that this process has claimed."""
        self.rows: list[Forward | Malformed] = []
        self.outputs: list[Data] = []
        self.written = 0
        self.dead_letters: list[DeadLetter] = []
        self._decided: tuple[SequencerState, list[DeadLetter]] = (SequencerState(GROUP), [])
        self._life = self._run()

    def advance(self) -> str | None:
        return next(self._life, None)

    def fail(self) -> list[Data]:
        """The running attempt fails; return what it had still to write. The next step belongs to a new query."""
        rest = self.outputs[self.written :]
        if self.rules.one_attempt:
            self.outputs = []
            self._life = self._run()
        elif self.outputs:
            self._decide()
        return rest

    @property
    def is_writing(self) -> bool:
        return bool(self.outputs)

    def _run(self) -> Iterator[str]:
        self.state = yield from self._take_over()
        while self.state is not None:
            if not self.zombie and self.log.newest_epoch() > self.state.epoch:
                return
            self.rows = self._plan()
            self._decide()
            yield "planned"
            while self.written < len(self.outputs):
                self.broker.append_data(self.outputs[self.written])
                self.written += 1
                yield "wrote"
            self.outputs = []
            self.state, dead_letters = self._decided
            self.dead_letters += dead_letters
            yield "committed"

    def _decide(self) -> None:
        """One attempt at the batch. All attempts must give the same, whatever order Spark hands the rows over in."""
        assert self.state is not None
        self.dice = Dice((self.dice.number * 1103515245 + 12345) & 0xFFFF_FFFF)
        if self.rules.sort_rows:
            self.rows.sort(key=lambda record: record.source)
        else:
            self.dice.shuffle(self.rows)
        cut = self.dice.below(len(self.rows) + 1)
        state, outputs = self.state, list[Data | DeadLetter]()
        for part, rows in enumerate((self.rows[:cut], self.rows[cut:])):
            if self.rows and part == (not self.rules.snapshot_first):
                state, opening = begin_batch(state)
                outputs += opening
            state, decided = self._step(state, rows)
            outputs += decided
        self.outputs = [record for record in outputs if isinstance(record, Data)]
        self.written = 0
        self._decided = state, [record for record in outputs if isinstance(record, DeadLetter)]

    def _step(
        self, state: SequencerState, rows: list[Forward | Malformed]
    ) -> tuple[SequencerState, list[Data | DeadLetter]]:
        """Decide a part of the batch, by either form of the core."""
        if not rows:
            return state, []
        by_columns = self.rules.columns and self.dice.chance(50)
        outputs: list[Data | DeadLetter] = []
        # The core refuses rows out of order; the mutation hands them over one by one.
        for piece in [rows] if self.rules.sort_rows else [[row] for row in rows]:
            state, decided = (step_by_columns if by_columns else sequencer.step)(state, piece)
            outputs += decided
        return state, outputs

    def _plan(self) -> list[Forward | Malformed]:
        """The next micro-batch: from `positions`, some rows of some partitions."""
        assert self.state is not None
        rows: list[Forward | Malformed] = []
        for partition, records in enumerate(self.broker.forward):
            start = self.state.positions.get(self.broker.next_source(partition).topic_partition, 0)
            rows.extend(records[start : start + self.batch_rows])
        return rows

    def _take_over(self) -> Generator[str, None, SequencerState | None]:
        """`connectors.sequencer.takeover.take_over`, one durable effect a step. None: fenced before it began."""
        if self.own_epoch and self.log.newest_epoch() > self.own_epoch:
            return None
        if not self.rules.claims_after_end:
            self.log.stale_claims = self.log.claims()
            yield "looked at claims"
        floor, next_epoch = self.log.end(), self.log.newest_epoch() + 1
        found = find_state(self.log, floor, self.history)
        self.log.stale_claims = None
        yield "measured"
        epoch = self.broker.append_claim(floor if self.rules.floor_first else NOT_YET)
        claimed_at = epoch - 1
        if not self.rules.unique_claims:
            epoch = next_epoch
            self.broker.claims[claimed_at] = Claim(epoch, floor)
        self.own_epoch = epoch
        yield "claimed"
        sealed_at = self.broker.append_data(seal(epoch)) if self.rules.seal_first else self.log.end()
        yield "sealed"
        if not self.rules.floor_first:
            self.broker.claims[claimed_at] = Claim(epoch, self.log.end())
        rest = self.log.records(floor, sealed_at) if self.rules.read_back else []
        before = absorb(found, [stored.data for stored in rest])
        yield "rebuilt"
        if before.epoch >= epoch and self.rules.yield_to_others:
            return None
        state = replace(before, epoch=epoch, seals=(*before.seals, Seal(epoch, before.seqno + 1)), unsnapped=0)
        opened_at = self.broker.append_data(snapshot(state))
        self.broker.notes.append(Note(reach(self.log, state, sealed_at, opened_at), epoch, state.seqno))
        yield "opened"
        return state
