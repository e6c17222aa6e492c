"""A small sequencer for tests of members: the real core, codec and takeover, without Spark.

It works on a `MemoryConnection` and on a real broker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType

from kafka.errors import KafkaConnectionError
from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import decode_forward, encode_data
from connectors.kafka.connection.connection import Connection
from connectors.takeover.takeover import take_over
from connectors.takeover.ticks import tick
from ordering.base.names import Topic
from ordering.base.records import Data, Forward, Malformed, Partition, Source
from ordering.sequencer.sequencer import begin_batch, end_batch, step
from ordering.sequencer.state import SequencerState

Seen = Callable[[Forward], bool]


class TinySequencer:
    """Orders one group at one site in a thread: the records of its members, and of relays.

    `drop` may return True for a FORWARD record, to lose it as if it had never reached Kafka. `repeat` writes every
    batch of DATA twice, as Spark's sink does after a retry. An error in the thread ends it; the end of the `with`
    raises that error.
    """

    def __init__(
        self, connection: Connection, group: str, site: str = "nyc", *, drop: Seen | None = None, repeat: bool = False
    ) -> None:
        self.connection = connection
        self.group = group
        self.site = site
        self.drop = drop or (lambda _: False)
        self.repeat = repeat
        self.data_topic = str(Topic(group, "data", site))
        self.state = SequencerState(group)
        self.problem: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> TinySequencer:
        """Take over as a real sequencer does: seal, compute the state from DATA, continue."""
        self._producer = self.connection.producer()
        self.state = take_over(self.connection, self.group, self.site)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(15)
        self._producer.close(timeout=5)
        if self.problem is not None:
            raise self.problem

    def write(self, records: Iterable[Data]) -> None:
        """Write DATA records; return when Kafka has them. Raises KafkaTimeoutError after 10 s."""
        for record in records:
            key, value, headers = encode_data(record)
            self._producer.send(self.data_topic, key=key, value=value, headers=headers)
        self._producer.flush(timeout=10)

    def _run(self) -> None:
        try:
            consumer = self.connection.consumer()
            topic = str(Topic(self.group, "forward", self.site))
            partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
            relayed = [str(each) for each in self.connection.topics_of(self.group, "relayed") if each.site == self.site]
            brought = [
                TopicPartition(name, number) for name in relayed for number in consumer.partitions_for_topic(name)
            ]
            consumer.assign([*partitions, *brought])
            for partition in (*partitions, *brought):
                consumer.seek(partition, self.state.positions.get(Partition(*partition), 0))
            ticked = 0.0
            while not self._stop.is_set():
                if self.state.membership.is_watched and time.monotonic() - ticked > 0.2:
                    ticked = time.monotonic()
                    tick(self._producer, topic, [p.partition for p in partitions], self.state.seqno)
                try:
                    polled = consumer.poll(timeout_ms=50)
                except KafkaConnectionError:  # the consumer reconnects
                    continue
                batch: list[Forward | Malformed] = []
                for partition in sorted(polled):
                    for record in polled[partition]:
                        source = Source(partition.topic, partition.partition, record.offset)
                        forward = decode_forward(source, record.key, record.value, record.headers, record.timestamp)
                        if not (isinstance(forward, Forward) and self.drop(forward)):
                            batch.append(forward)
                if batch:
                    self._decide(batch)
            consumer.close()
        except BaseException as error:  # noqa: BLE001 - raised by __exit__
            self.problem = error

    def _decide(self, batch: list[Forward | Malformed]) -> None:
        self.state, opening = begin_batch(self.state)
        self.state, outputs = step(self.state, batch)
        self.state, closing = end_batch(self.state)
        data = [*opening, *(output for output in outputs if isinstance(output, Data)), *closing]
        self.write(data)
        if self.repeat:
            self.write(data)
