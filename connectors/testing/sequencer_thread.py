"""A sequencer for tests of members: the process engine's loop in a thread, without its supervisor.

It works on a `MemoryConnection` and on a real broker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType

from kafka.structs import TopicPartition

from connectors.engine.forward_partitions import ForwardPartitions
from connectors.engine.group_supervisor import Taken
from connectors.engine.job import Sequencers
from connectors.engine.loop import Loop
from connectors.engine.sequencing import Sequencing
from connectors.engine.writing import Writer, WrittenBatch
from connectors.kafka.codec.codec import decode_forward, encode_data
from connectors.kafka.connection.connection import Connection
from connectors.kafka.transport import Record
from connectors.takeover.groups import positions_of
from connectors.takeover.rows import Output
from connectors.takeover.takeover import take_over
from connectors.takeover.ticks import tick
from ordering.base.errors import AbcastError
from ordering.base.names import Topic
from ordering.base.records import Data, Forward, Source
from ordering.sequencer.pipeline import Pipeline
from ordering.sequencer.state import SequencerState

TICK_S = 0.2
"""The time between two ticks of a group with members."""

Seen = Callable[[Forward], bool]


class SequencerThread(Sequencers):
    """Orders one group at one site: the records of its members, and of relays.

    `drop` may return True for a FORWARD record, to lose it as if it had never reached Kafka. `repeat` writes every
    batch twice, as Spark's sink does after a retry. An error in the thread ends it; the end of the `with` raises that
    error.
    """

    def __init__(
        self, connection: Connection, group: str, site: str = "nyc", *, drop: Seen | None = None, repeat: bool = False
    ) -> None:
        super().__init__(site)
        self.connection, self.group, self.site = connection, group, site
        self.drop = drop
        self.pipelines: Mapping[str, Pipeline] = {}
        self._writer = _TwiceWriter if repeat else Writer
        self._problem: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._next_tick = 0.0

    @property
    def state(self) -> SequencerState:
        """The state after everything decided: at least after everything in DATA."""
        return self._machine.pipeline.state

    def machine(self, state: SequencerState) -> Sequencing:
        """Return the group's sequencer."""
        self._machine = _Dropping(state, self)
        return self._machine

    def __enter__(self) -> SequencerThread:
        """Take over, and begin to order."""
        self._producer = self.connection.producer()
        state = take_over(self.connection, self.group, self.site)
        forward = str(Topic(self.group, "forward", self.site))
        relayed = [str(topic) for topic in self.connection.topics_of(self.group, "relayed") if topic.site == self.site]
        topics = {self.group: [forward, *relayed]}
        starts, errors = ForwardPartitions(self.connection).find(topics, positions_of([state]))
        for error in errors.values():
            raise error
        self._forward = [place for place in starts if place.topic == forward]
        self._loop = Loop(self.connection, self.site, self, self._stop, self._writer)
        self._loop.take(Taken({self.group: state}, starts))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(15)
        self._loop.close()
        self._producer.close(timeout=5)
        if self._problem is not None:
            raise self._problem

    def write(self, records: Iterable[Data]) -> None:
        """Write DATA records; return when Kafka has them. Raises KafkaTimeoutError after 10 s."""
        topic = str(Topic(self.group, "data", self.site))
        for record in records:
            key, value, headers = encode_data(record)
            self._producer.send(topic, key=key, value=value, headers=headers)
        self._producer.flush(timeout=10)

    def _run(self) -> None:
        try:
            self._loop.run(self)
        except BaseException as error:  # noqa: BLE001 - raised by __exit__
            self._problem = error

    # The part of a supervisor, in the loop's thread

    def raise_failure(self) -> None:
        """Do nothing: no other thread can fail."""

    def report_failure(self, group: str, epoch: int, error: AbcastError) -> None:  # noqa: ARG002 - there is one group
        """Raise the error. The loop itself raises that of its only group."""
        raise error

    def changes(self) -> Sequence[Taken]:
        """Return no change. Tick a group with members now and then."""
        pipeline = self._machine.pipeline
        if pipeline.state.membership.is_watched and time.monotonic() >= self._next_tick:
            self._next_tick = time.monotonic() + TICK_S
            for place in self._forward:
                tick(self._producer, place.topic, [place.partition], pipeline.written)
        return ()


class _Dropping(Sequencing):
    """A sequencer that never sees some records."""

    def __init__(self, state: SequencerState, thread: SequencerThread) -> None:
        super().__init__(state, thread.site)
        self._thread = thread

    def take(self, place: TopicPartition, records: Sequence[Record]) -> None:
        drop = self._thread.drop
        kept = records if drop is None else [record for record in records if not _is_dropped(record, drop)]
        if kept:
            super().take(place, kept)


def _is_dropped(record: Record, drop: Seen) -> bool:
    source = Source(record.topic, record.partition, record.offset)
    read = decode_forward(source, record.key, record.value, record.headers, record.timestamp)
    return isinstance(read, Forward) and drop(read)


class _TwiceWriter(Writer):
    def write(self, outputs: Iterable[Output]) -> WrittenBatch:
        once = list(outputs)
        return super().write([*once, *once])
