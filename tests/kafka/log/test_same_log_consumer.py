"""A consumer that sees that a log is another one, also of partitions that were left alone for a while."""

from __future__ import annotations

import random

import pytest
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.kafka.log.same_log_consumer import SameLogConsumer
from connectors.kafka.transport import PlainRecord
from connectors.testing.memory_kafka import OFFSETS, MemoryConnection
from ordering.base.errors import HistoryChanged
from tests.changed_logs import CHANGES, change

PLACES = [TopicPartition(f"t{number}", 0) for number in range(3)]


class Read:
    """A consumer, and the records that it has returned of each partition."""

    def __init__(self) -> None:
        self.kafka = MemoryConnection()
        self.given: dict[TopicPartition, list[PlainRecord]] = {place: [] for place in PLACES}
        self.kafka.topics.silence_s = 0.0
        self.kafka.topics.partitions.update({place: [] for place in PLACES})
        self.log = SameLogConsumer(self.kafka.consumer(), lambda place, _: HistoryChanged(place.topic))
        self.read(PLACES)

    def read(self, places: list[TopicPartition]) -> None:
        self.log.read({place: len(self.given[place]) for place in places})

    def stands(self, place: TopicPartition) -> bool:
        return self.given[place] == self.kafka.topics.partitions[place][: len(self.given[place])]

    def goes_on(self) -> bool:
        """Poll once, which must tell that a log has changed where it has."""
        try:
            polled = self.log.poll(0.0)
        except HistoryChanged as error:
            changed = TopicPartition(str(error), 0)
        except KafkaError:
            return True
        else:
            for place, records in polled.items():
                self.given[place] += records
                assert self.stands(place), "it went on in silence"
            return True
        assert not self.stands(changed), "it is the same log"
        return False


@pytest.mark.parametrize("seed", range(200))
def test_what_is_given_is_of_one_log(seed: int) -> None:
    """Partitions are left alone and read again, the broker is away, one of them changes at any time."""
    dice, reader = random.Random(seed), Read()
    topics, changes_at = reader.kafka.topics, dice.randint(5, 60)
    for moment in range(60):
        if moment >= changes_at:
            long = [place for place in PLACES if len(topics.partitions[place]) > 2]
            for place in dice.sample(long, min(1, len(long))):
                change(reader.kafka, place.topic, dice.choice(CHANGES))
                changes_at = 60
            if not reader.goes_on():
                return
        for place in PLACES:
            for _ in range(dice.choice((0, 0, 1, 3))):
                topics.append(place, b"k", b"", [("abcast", b"%d" % dice.randrange(2))])
        if dice.random() < 0.3:
            reader.read([place for place in PLACES if dice.random() < 0.6])
        if dice.random() < 0.1:
            topics.restart()
        topics.away = {dice.choice(PLACES): frozenset({OFFSETS})} if dice.random() < 0.5 else {}
        if not reader.goes_on():
            return
    topics.away.clear()
    for place in PLACES:  # the records that follow are compared
        topics.append(place, b"k", b"", [])
    reader.read(PLACES)
    goes_on = [reader.goes_on() for _ in range(5)]
    assert all(goes_on) is all(map(reader.stands, PLACES))


def test_a_log_that_grows_past_its_reader_before_its_end_is_told() -> None:
    """The reader learns that its place is out of range, and not yet why; the next records are of another log."""
    reader = Read()
    topics, place = reader.kafka.topics, PLACES[0]
    for _ in range(5):
        topics.append(place, b"k", b"", [])
    assert reader.goes_on()
    topics.partitions[place], topics.ahead_ms = [], 5_000  # no connection is lost by that
    topics.take_away(place.topic, OFFSETS)
    assert reader.goes_on()
    for _ in range(9):
        topics.append(place, b"k", b"", [])
    topics.bring_back(place.topic)
    assert not reader.goes_on()
