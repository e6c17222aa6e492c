"""A sequencer's process on a Kafka in memory: takeover, maintenance and intake as they ship, one thread."""

from __future__ import annotations

import threading
from contextlib import suppress

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.engine.intake import Intake
from connectors.kafka.codec.codec import decode_forward, encode_data
from connectors.takeover.group_maintenance import GroupMaintenance
from connectors.takeover.takeover import Claimer, take_over_groups
from connectors.takeover.watchdog import Watchdog
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.memory_topics import WRITES
from ordering.base.names import Topic
from ordering.base.records import Data, Partition, Source
from ordering.sequencer.sequencer import begin_batch, end_batch, step
from tests.simulator.sequencers import write_later


class Job:
    """A sequencer that has taken over. `close` kills it."""

    def __init__(self, by: Claimer, group: str, now: float) -> None:
        """Raises what a takeover raises."""
        assert isinstance(by.connection, MemoryConnection)
        self.site, self.topics = by.site, by.connection.topics
        self.data = TopicPartition(str(Topic(group, "data", by.site)), 0)
        self._group = group
        forward = sorted({place.topic for place in self._inputs()})
        self.state = take_over_groups(by, {group: forward})[group]
        self.maintenance = GroupMaintenance(by.connection, by.site, by.claimed, "process")
        self.maintenance.take({group: forward})
        end = self.maintenance.ends_of_data([group])[group]
        self.maintenance.sign({}, now)
        self.watchdog = Watchdog(self.maintenance.log, self.maintenance.signed_end, self.maintenance.trouble_of)
        self.watchdog.watch(group, self.state.epoch, self.state.seqno, end)
        self.told = self.state.seqno
        self.restarts = self.topics.restarts
        """The broker's restarts at the last write."""
        self.intake = Intake(by.connection, threading.Event())
        self._read_all()

    def _inputs(self) -> list[TopicPartition]:
        found = ((Topic.parse(place.topic), place) for place in sorted(self.topics.partitions))
        return [
            place
            for topic, place in found
            if topic is not None
            and (topic.group, topic.site) == (self._group, self.site)
            and topic.role in ("forward", "relayed")
        ]

    def _read_all(self) -> None:
        """Read new partitions, too."""
        new = [place for place in self._inputs() if place not in self.intake.positions]
        with suppress(KafkaError):  # of one that is away
            for place, begins in self.intake.beginnings(new).items() if new else ():
                self.intake.positions[place] = max(self.state.positions.get(Partition(*place), 0), begins)
            if new:
                self.intake.read(self.intake.positions)

    def decide(self, cut: int | None, later: int = 0) -> bool:
        """Whether it lives after a batch. If it is killed then, only `cut` records are written.

        `later`: the seqnos of a record of a later kind; 0 if it writes none. Raises PartitionsFailed.
        """
        if self.topics.lacks(self.data, WRITES):
            return True
        self._read_all()
        batch = []
        for place, records in self.intake.poll(0.0).items():
            for record in records:
                source = Source(place.topic, place.partition, record.offset)
                batch.append(decode_forward(source, record.key, record.value, record.headers, record.timestamp))
        batch.sort(key=lambda record: record.source)
        self.state, opening = begin_batch(self.state)
        self.state, decided = step(self.state, batch)
        outputs = [*opening, *(record for record in decided if isinstance(record, Data))]
        if later:
            self.state, of_later = write_later(self.state, later)
            outputs.append(of_later)
        self.state, closing = end_batch(self.state)
        outputs += closing
        if outputs and self.restarts != self.topics.restarts:
            return False  # an idempotent producer's next batch does not follow the last one that the broker knows
        for output in outputs[:cut]:
            self.topics.append(self.data, *encode_data(output))
        return cut is None or cut >= len(outputs)

    def look(self, now: float) -> None:
        """Do what it does each second. Raises Fenced, UsageError, HistoryChanged, NotCounting, BrokerUnreachable."""
        self.maintenance.check_not_fenced()
        self.maintenance.sign({}, now)
        if self.state.seqno > self.told:
            self.watchdog.decided([self._group], self.state.seqno - self.told)
            self.told = self.state.seqno
        self.watchdog.look(now)

    def close(self) -> None:
        self.maintenance.close()
