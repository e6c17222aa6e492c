"""A group whose Kafka is wiped, and that is restored from its ledger: one seed, one history.

A group has lived, and its ledger ends in the midst of the order. A restore is cut off at random writes. In between a
sequencer tries to start, and another one, of the lost Kafka, writes. At last the members go on: they send again what
the ledger has, and a new message. What must hold:

* no seqno of the lost history names another message, and no message is ordered twice;
* a reader with a seqno behind the ledger's end is told, any other one goes on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError
from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import decode_data, encode_data
from connectors.kafka.log.data_log import DataLog
from connectors.relay.restore import restore
from connectors.takeover.takeover import take_over
from connectors.testing.memory_clients import MemoryAdmin, MemoryProducer
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.errors import AbcastError, BrokerUnreachable, HistoryRestored, UsageError
from ordering.base.names import Topic
from ordering.base.reader import Reader, Verdict
from ordering.base.records import MESSAGE, Data, Forward, MessageId, Source
from ordering.checker.anomalies import Anomaly
from ordering.sequencer.sequencer import step
from tests.ledger.ledger_of import decided, effective, write_ledger
from tests.simulator.mutation import NONE, Mutation

SITE, LEAP = "nyc", 100
FORWARD = str(Topic("g", "forward", SITE))
DATA = TopicPartition(str(Topic("g", "data", SITE)), 0)
GIVEN_AGAIN, DUPLICATE, UNTOLD, STUCK = "given again", "duplicate", "untold", "stuck"
LIVED = effective(decided(linked=False))
"""The lost history: each record was delivered somewhere."""
SURVIVOR = 20
"""The epoch of a sequencer that has survived, and decided nothing that the ledger has. Another one goes on in the
epoch of the last row."""


class RestoreWorld:
    """The world of a seed. The ledger is a real table, in `directory`."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.dice = random.Random(seed)
        self.last = self.dice.randint(1, len(LIVED) - 1)
        self.ledger = write_ledger(directory / "ledger", LIVED[: self.last])
        self.kafka = MemoryConnection()
        self.left = 0
        """The number of writes until the run is cut off."""
        self.disturbs = self.dice.choice(("", "", "anywhere", "behind the rows"))
        self.epoch = self.dice.choice((SURVIVOR, LIVED[self.last - 1].epoch))

    def run(self) -> set[str]:
        """Restore, go on, and return the anomalies."""
        for _ in range(40):
            self.left = self.dice.choice((2, 5, 20, 60, 200))
            try:
                with self.cut_off():
                    restore(self.kafka, "g", SITE, self.ledger, LEAP)
                break
            except UsageError:  # the operator does as the error says
                self.kafka, self.disturbs = MemoryConnection(), ""
            except (KafkaTimeoutError, BrokerUnreachable):
                if self.dice.random() < 0.5:
                    with suppress(AbcastError):
                        self.go_on()
                        return self.judged()  # a sequencer has started: its decisions count
        else:
            return {STUCK}
        try:
            self.go_on()
        except AbcastError:
            return {STUCK}
        return self.judged()

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Let the run fail at a write, which may have come about."""

        def failing(do: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **options: Any) -> Any:
                self.left -= 1
                if self.left < 0 and self.dice.random() < 0.5:
                    raise KafkaTimeoutError
                result = do(*args, **options)
                if self.disturbs:
                    self.disturb()
                if self.left < 0:
                    raise KafkaTimeoutError
                return result

            return call

        with pytest.MonkeyPatch.context() as broken:
            for owner, name in ((MemoryProducer, "send"), (MemoryAdmin, "create_topics")):
                broken.setattr(owner, name, failing(getattr(owner, name)))
            yield

    def disturb(self) -> None:
        """Let the survivor write once: anywhere, or right behind the rows."""
        log = self.kafka.topics.partitions.get(DATA, [])
        newest = decode_data(log[-1].key, log[-1].value, log[-1].headers).seqno if log else 0
        if newest == self.last if self.disturbs == "behind the rows" else self.dice.random() < 0.1:
            self.survivor_writes(newest)
            self.disturbs = ""

    def survivor_writes(self, behind: int) -> None:
        """Let the sequencer of the lost Kafka write its next decision."""
        if DATA in self.kafka.topics.partitions:
            source = Source(FORWARD, 0, 10**6)
            data = Data(MESSAGE, self.epoch, behind + 1, 1, f"{SITE}/zombie", 1, behind, b"zombie", source)
            self.kafka.topics.append(DATA, *encode_data(data))

    def go_on(self) -> None:
        """Start a sequencer: each sender sends again all that the ledger has of it, and another one a new message."""
        state = take_over(self.kafka, "g", SITE)
        self.survivor_writes(state.seqno)
        again = [each for each in LIVED[: self.last] if each.sender]
        records = [
            Forward(
                each.sender, each.incarnation, each.local_seqno, each.payload, Source(FORWARD, 0, at), kind=each.kind
            )
            for at, each in enumerate(again)
        ]
        records.append(Forward(f"{SITE}/new", 1, 1, b"new", Source(FORWARD, 0, len(again))))
        for record in step(state, records).outputs:
            if isinstance(record, Data):
                self.kafka.topics.append(DATA, *encode_data(record))

    def judged(self) -> set[str]:
        """Compare what readers take with the lost history."""
        reader, ids, found = Reader(), set[MessageId](), set[str]()
        for stored in self.kafka.topics.partitions[DATA]:
            data = decode_data(stored.key, stored.value, stored.headers)
            if reader.judge(data) is not Verdict.TAKE or not data.sender:
                continue
            if data.seqno <= len(LIVED) and data.id != LIVED[data.seqno - 1].id:
                found.add(GIVEN_AGAIN)
            if data.id in ids:
                found.add(DUPLICATE)
            ids.add(data.id)
        if MessageId(f"{SITE}/new", 1, 1) not in ids:
            found.add(STUCK)
        with DataLog(self.kafka, "g", SITE) as log:
            for seqno in range(1, len(LIVED) + 1):
                was_told = False
                try:
                    log.after(seqno)
                except AbcastError as error:
                    was_told = isinstance(error, HistoryRestored)
                if was_told != (seqno > self.last):
                    found.add(UNTOLD)
        return found


def run(seed: int, mutation: Mutation = NONE) -> list[Anomaly]:
    """Run a history; return its violations."""
    with TemporaryDirectory() as directory, mutation.broken():
        found = RestoreWorld(seed, Path(directory)).run()
    return [Anomaly(name, f"seed {seed}", ()) for name in sorted(found)]
