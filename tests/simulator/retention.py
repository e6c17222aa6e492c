"""DATA is purged at any step, while the ledger lags, sequencers restart and groups idle; or Kafka's retention takes it.

One seed, one history of `tests.simulator.cuts`, without its damages. A sequencer that was taken over goes on for a
while. Before each write of a takeover (claim, seal, opening, note), and before the note of a purge, the others may act.
What must hold besides:

* a DATA from which only purges have deleted anything tells its state, and it is the state that all of its records give;
* a sequencer can always start on it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from kafka.structs import TopicPartition

from connectors.kafka.codec.plain_record import PlainRecord
from connectors.kafka.log.data_log import DataLog
from connectors.testing.memory_topics import MemoryTopics
from ordering.base.errors import AbcastError, HistoryUnavailable
from ordering.base.names import Topic
from ordering.checker.anomalies import Anomaly
from tests.simulator.cuts import DATA, GROUP, SITE, STUCK, Cuts
from tests.simulator.mutation import NONE, Mutation
from tests.world.group import WRONG_STATE
from tests.world.jobs import Job

EPOCH = str(Topic(GROUP, "epoch", SITE))
_SEQUENCER = "ordering.sequencer.sequencer"


class Retained(Cuts):
    """The world of a seed."""

    def __init__(self, seed: int, later: float) -> None:
        super().__init__(seed, later)
        self.has_ledger = True
        self.rivals: list[Job] = []
        """The sequencers that others have taken over, and that have not noticed it."""
        self.has_retention = self.dice.random() < 0.3
        """Whether somebody sets a retention, whatever is said of that."""
        self.is_starting = self.is_acting = False
        """Whether a takeover runs, and whether the others act before a write."""
        self.purged = 0
        self.topics.append = self._append  # type: ignore[assignment, method-assign]

    @property
    def is_whole(self) -> bool:
        """Whether nothing but purges has deleted anything of DATA."""
        return not self.is_damaged

    def acts(self) -> list[tuple[float, Callable[[], None]]]:
        return [
            (20, self.send),
            (8, self.resend),
            (25, self.decide),
            (15, self.decide_late),
            (6, self.look),
            (8, self.start),
            (3, self.kill),
            (15, self.read),
            (10, self.read_ledger),
            (6, self.begin_to_read),
            (6, self.wait),
            (10, self.purge),
            (2, self.retention),
        ]

    def _append(self, place: TopicPartition, *record: Any) -> PlainRecord:
        if (self.is_starting or place.topic == EPOCH) and not self.is_acting:
            self.is_acting = True
            for _ in range(self.dice.choice([0, 0, 1, 2, 4])):
                self.dice.choice([self.decide_late, self.decide_late, self.read_ledger, self.purge])()
            self.is_acting = False
        return MemoryTopics.append(self.topics, place, *record)

    def start(self) -> None:
        """Start a job, mostly after an operator has stopped the last one."""
        if self.job is not None:
            self.rivals.append(self.job)
            self.job = None
        if self.dice.random() < 0.4:
            self.end_rivals()
        self.is_starting = True
        super().start()
        self.is_starting = False
        self.check()

    def end_rivals(self) -> None:
        while self.rivals:
            self.rivals.pop().close()

    def decide_late(self) -> None:
        """Let a rival write a batch, or part of it, or look at last whether it is fenced."""
        if not self.rivals:
            return
        rival = self.dice.choice(self.rivals)
        try:
            if self.dice.random() < 0.1:
                rival.look()
            if rival.decide(self.dice.choice([None, None, 0, 1])):
                return
        except AbcastError as error:
            self.seen.add(f"a rival: {type(error).__name__}")
        self.rivals.remove(rival)
        rival.close()

    def purge(self) -> None:
        before = self.topics.beginnings.get(TopicPartition(*DATA), 0)
        super().purge()
        self.purged += self.topics.beginnings.get(TopicPartition(*DATA), 0) > before
        self.check()

    def retention(self) -> None:
        """Let Kafka delete old records, or all records of an idle group."""
        if self.has_retention:
            end = len(self.topics.partitions[TopicPartition(*DATA)])
            self.topics.drop(DATA.topic, self.dice.choice([end, self.dice.randint(0, end)]))
            self.is_damaged = True

    def check(self) -> None:
        """Compare the state that DATA tells with the one that all of its records give, deleted ones included."""
        if not self.is_whole:
            return
        there = self.effective()
        seqno = max(there, default=0)
        received = {data.sender: (data.incarnation, data.local_seqno) for data, _, _ in there.values() if data.sender}
        try:
            with DataLog(self.connection, GROUP, SITE) as log:
                state = log.state()
        except HistoryUnavailable as error:
            self.blame(WRONG_STATE, str(error))
            return
        told = {sender: tuple(row) for sender, row in state.received.items()}
        if (state.seqno, told) != (seqno, received):
            self.blame(WRONG_STATE, f"DATA tells {state.seqno}, {told}, and not {seqno}, {received}.")

    def end(self) -> None:
        self.end_rivals()
        super().end()

    def make_group_anew(self) -> None:
        if self.is_whole:
            self.blame(STUCK, f"no sequencer can start: {sorted(self.seen)}")
        super().make_group_anew()


@contextmanager
def playing(seed: int, *, has_later: bool = True) -> Iterator[Retained]:
    """A world in which a history can be played. `has_later`: a job may write records of a later kind."""
    world = Retained(seed, random.Random(f"later {seed}").choice((0.0, 0.0, 0.1, 0.6)) if has_later else 0.0)
    often = patch(f"{_SEQUENCER}.SNAPSHOT_EVERY_RECORDS", 4), patch(f"{_SEQUENCER}.SNAPSHOT_RECORDS_PER_SENDER", 1)
    with often[0], often[1], world.clock.installed():
        yield world
        world.kill()
        world.end_rivals()


def run(seed: int, mutation: Mutation = NONE) -> list[Anomaly]:
    """Run a history; return its violations."""
    with mutation.broken(), playing(seed, has_later=mutation.has("later")) as world:
        return world.run()
