"""A sequencer process: takes over as `connectors.takeover.takeover` does, then decides batches. Every `yield` is a
point where it may be killed, stopped for a while, or overtaken by another one.

A write that fails ends the attempt (Spark's query, or the process engine's), and the next one begins with a takeover.
Of what the failed attempt had not written yet a part may be lost and the rest arrive all the same: at once, or later,
also behind somebody else's seal (`World.leftovers`).

A batch is decided when the one before it is written, as on Spark.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

from connectors.kafka.codec.epochs import Note
from connectors.takeover.survey import find_state
from ordering.base.formats import ADDITIONS
from ordering.base.reader import Seal, with_seal
from ordering.base.records import Data, DeadLetter, Forward, Malformed
from ordering.sequencer import sequencer
from ordering.sequencer.pipeline import Pipeline
from ordering.sequencer.sequencer import absorb, seal, snapshot
from ordering.sequencer.state import SequencerState
from tests.simulator.broker import Broker, SimulatedLog
from tests.simulator.columns import step_by_columns
from tests.simulator.dice import Dice
from tests.simulator.rules import Rules
from tests.world.jobs import write_later


@dataclass
class Batch:
    """The unwritten part of a batch, and its dead letters."""

    data: list[Data]
    dead_letters: list[DeadLetter]


class Sequencer:
    """A process. `advance` does one step and says which; when it returns None the process has ended (fenced)."""

    def __init__(
        self,
        broker: Broker,
        rules: Rules,
        dice: Dice,
        *,
        zombie: bool,
        batch_rows: int,
        later: int = 0,
    ) -> None:
        self.broker = broker
        self.rules = rules
        self.dice = dice
        self.zombie = zombie
        """Never looks whether it is fenced."""
        self.batch_rows = batch_rows
        self.log = SimulatedLog(broker)
        self.later = later
        """Percentage of batches in which it writes a record of a later version."""
        self.pipeline: Pipeline | None = None
        self.own_epoch = 0
        """The newest epoch that this process has claimed."""
        self.rows: list[Forward | Malformed] = []
        self.in_flight: list[Batch] = []
        self.dead_letters: list[DeadLetter] = []
        self._life = self._run()

    def advance(self) -> str | None:
        return next(self._life, None)

    @property
    def state(self) -> SequencerState | None:
        """After everything decided."""
        return None if self.pipeline is None else self.pipeline.state

    @property
    def outputs(self) -> list[Data]:
        """Return the decided and unwritten records."""
        return [record for batch in self.in_flight for record in batch.data]

    def fail(self) -> list[Data]:
        """Let a write fail; return its unwritten part. The next step belongs to a new attempt."""
        rest = self.outputs
        self.in_flight = []
        self._life = self._run()
        return rest

    @property
    def is_writing(self) -> bool:
        return bool(self.in_flight)

    def _run(self) -> Iterator[str]:
        self.pipeline = None
        state = yield from self._take_over()
        if state is None:
            return
        self.pipeline = Pipeline.after_takeover(state, depth=1)
        while True:
            begun, rows = self.pipeline.begin(), self._plan()
            if begun is not None and (not self.in_flight or (rows and self.dice.chance(50))):
                if not self.zombie and self.broker.newest_epoch() > state.epoch:
                    return
                self.rows = rows
                self._decide(*begun)
                yield "planned"
                continue
            batch = self.in_flight[0]
            if batch.data:
                self.broker.append_data(batch.data.pop(0))
                yield "wrote"
            else:
                self.in_flight.pop(0)
                self.dead_letters += batch.dead_letters
                self.pipeline = self.pipeline.acknowledged()
                yield "committed"

    def _decide(self, begun: SequencerState, opening: tuple[Data, ...]) -> None:
        """Attempt the batch. Each attempt must give the same, in whatever order Spark hands over the rows."""
        assert self.pipeline is not None
        self.dice = Dice((self.dice.number * 1103515245 + 12345) & 0xFFFF_FFFF)
        later = random.Random(self.dice.number) if self.later else None
        self.rows.sort(key=lambda record: record.source)
        cut = self.dice.below(len(self.rows) + 1)
        state, outputs = begun, list[Data | DeadLetter](opening)
        for part, rows in enumerate((self.rows[:cut], self.rows[cut:])):
            state, decided = self._step(state, rows)
            outputs += decided
            if part == 0 and later is not None and later.randrange(100) < self.later:
                state, decided = self._write_later(state, later.choice((1, 1, 2, 3, 7)))
                outputs += decided
        data = [record for record in outputs if isinstance(record, Data)]
        self.in_flight.append(Batch(data, [record for record in outputs if isinstance(record, DeadLetter)]))
        self.pipeline = self.pipeline.decided(state)

    @staticmethod
    def _write_later(state: SequencerState, count: int) -> tuple[SequencerState, list[Data | DeadLetter]]:
        if state.format < ADDITIONS.number:
            return state, []
        state, record = write_later(state, count)
        return state, [record]

    def _step(
        self, state: SequencerState, rows: list[Forward | Malformed]
    ) -> tuple[SequencerState, list[Data | DeadLetter]]:
        """Decide a part of the batch, by either form of the core."""
        if not rows:
            return state, []
        by_columns = self.rules.columns and self.dice.chance(50)
        state, outputs = (step_by_columns if by_columns else sequencer.step)(state, rows)
        return state, list(outputs)

    def _plan(self) -> list[Forward | Malformed]:
        """The next micro-batch: from `positions`, some rows of some partitions."""
        assert self.state is not None
        rows: list[Forward | Malformed] = []
        for partition, log in enumerate(self.broker.forward):
            place = self.broker.next_source(partition).topic_partition
            start = max(self.state.positions.get(place, 0), log.beginning)
            rows += [record for _, record in log.read(start, self.batch_rows)]
        return rows

    def _take_over(self) -> Generator[str, None, SequencerState | None]:
        """`connectors.takeover.takeover.take_over`, one durable effect a step. None: fenced before it began."""
        if self.own_epoch and self.broker.newest_epoch() > self.own_epoch:
            return None
        floor = self.log.end()
        found = find_state(self.log, floor)
        yield "measured"
        epoch = self.broker.append_claim(floor)
        self.own_epoch = epoch
        yield "claimed"
        of_format = max(found.format, self.broker.format_of(epoch))
        sealed_at = self.broker.append_data(seal(epoch, of_format))
        yield "sealed"
        before = absorb(found, [stored.data for stored in self.log.records(floor, sealed_at)])
        yield "rebuilt"
        if before.epoch >= epoch:
            return None
        seals = with_seal(before.seals, Seal(epoch, before.seqno + 1))
        state = replace(before, epoch=epoch, seals=seals, unsnapped=0, format=of_format)
        self.broker.append_data(snapshot(state))
        self.broker.notes.append(Note(sealed_at + 1, epoch, state.seqno))
        lacks = [place for place, offset in self.broker.purged.items() if state.positions.get(place, 0) < offset]
        if lacks and self.broker.newest_epoch() == epoch and not self.broker.beginning:
            self.broker.wrong_states.append(f"epoch {epoch} has to read what was purged of {lacks}.")
        yield "opened"
        return state
