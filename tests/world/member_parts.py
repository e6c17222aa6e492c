"""The parts of a member's process that have threads, or Kafka's clients: here they take turns.

A member's connection loses records, and answers for them. A tailer reads few records in a turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka.structs import TopicPartition

from connectors.client.incarnation.callbacks import Callback, Callbacks
from connectors.client.incarnation.forwarder import Forwarder
from connectors.client.incarnation.rejoin import REJOIN_PATIENCE_S, Rejoin
from connectors.kafka.log.data_cursor import DataCursor
from connectors.kafka.log.data_log import Start
from connectors.kafka.log.effective import Effective
from connectors.kafka.transport import PlainRecord
from connectors.testing.memory_clients import MemoryProducer
from connectors.testing.memory_topics import MemoryFuture
from ordering.base.records import MESSAGE
from ordering.participant.participant_table import ParticipantPhase as Part
from tests.world.kafka import WorldConnection
from tests.world.kafka import _Consumer as _WorldConsumer
from tests.world.kafka import _Producer as _WorldProducer
from tests.world.threads import StillTailer

if TYPE_CHECKING:
    from tests.world.members import Process

GROUP, SITE = "g", "s"


@dataclass(frozen=True, slots=True)
class MemberConnection(WorldConnection):
    """A process's way to Kafka, which loses records."""

    process: Any = None

    def producer(self, **settings: Any) -> MemoryProducer:
        """Return a producer, whose actor may be killed before any record."""
        made: MemoryProducer = self.process.producer(settings)
        return made


class MemberProducer(_WorldProducer):
    """A producer whose records the process sees, and which learns in a later turn that they are written."""

    def __init__(self, process: Process, settings: dict[str, Any]) -> None:
        super().__init__(process.world.kafka, settings)
        self._process = process

    def send(self, topic: str, *args: Any, **options: Any) -> MemoryFuture:
        self._process.sends(options["headers"] if "headers" in options else args[2])
        sent = super().send(topic, *args, **options)
        if sent.is_done and sent.exception is None:
            sent.is_done = False
            self._process.unheard.append(sent)
        return sent


class _Consumer(_WorldConsumer):
    """The tailer's consumer: a poll returns few records."""

    def __init__(self, process: Process) -> None:
        super().__init__(process.world.kafka, is_of_loop=False)
        self._process = process

    def poll(self, timeout_ms: int = 0) -> dict[TopicPartition, list[PlainRecord]]:
        before = dict(self.next)
        found = super().poll(timeout_ms)
        for place, at in before.items():
            self.next[place] = min(self.next[place], at + self._process.most_records)
            if place in found:
                found[place] = [record for record in found[place] if record.offset < self.next[place]]
        return {place: records for place, records in found.items() if records}


class Tailer(StillTailer):
    """A tailer of a process, which hears of the records."""

    connection: MemberConnection

    def cursor(self, start: Start) -> DataCursor:
        """Open a cursor."""
        return DataCursor(_Consumer(self.connection.process), self.partition, start)

    def _notify(self, records: Sequence[Effective]) -> None:
        """Pass runs of records on, each up to a control record, which the application sees."""
        run: list[Effective] = []
        for record in records:
            run.append(record)
            if record.kind != MESSAGE:
                self._pass_on(run)
                run = []
        self._pass_on(run)

    def _pass_on(self, run: list[Effective]) -> None:
        process = self.connection.process
        before = process.now
        super()._notify(run)
        process.hears(run, before)


class Calls(Callbacks):
    """The application's calls, without a thread."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked: set[int] = set()
        """The flushes that block() was to answer."""

    def then(self, call: Any) -> None:
        """Queue a call behind the others."""
        self.asked.add(call.args[0])
        super().then(call)

    def _put(self, call: Callback) -> None:
        self._calls.put(call)

    def due(self) -> Iterator[Callback]:
        """Yield the queued calls. A call may queue further ones."""
        while not self._calls.empty():
            if (call := self._calls.get()) is not None:
                yield call


class SteppedRejoin(Rejoin):
    """A rejoin without a thread."""

    old: Forwarder | None = None
    since = 0.0

    def start(self, old: Forwarder) -> None:
        """Begin anew in a later turn."""
        self._in_progress += 1
        self.old, self.since = old, time.monotonic()

    def turn(self, process: Process) -> None:
        """Begin the next incarnation, unless the excluded one's messages may still be ordered."""
        old = self.old
        if old is None or process.world.kafka.topics.away:
            return
        is_stranger = old.participant.phase is Part.EXCLUDED
        if is_stranger and old.has_pending and not old.has_ended and self._is_patient():
            return
        self.old = None
        if is_stranger:  # else there is no reason to lose anything
            process.excuse(old)
        try:
            self._begin_anew(old)
        finally:
            self._in_progress -= 1

    def _is_patient(self) -> bool:
        return self._incarnations.outbox is not None or time.monotonic() - self.since < REJOIN_PATIENCE_S


def count_incarnations(numbers: Any, above: int, note: Callable[[int], object]) -> int:
    """Claim the next incarnation of a name: a count, in the place of its clock."""
    incarnation = int(max(numbers.latest(), above)) + 1
    note(incarnation)
    numbers._offsets.commit(numbers._forward, 0, f"incarnation={incarnation}", numbers._timeout_s)
    return incarnation
