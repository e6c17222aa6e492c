"""A consumer notices that a log is another one, also in partitions that were not read for a while."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from unittest import mock

import pytest
from kafka.errors import KafkaConnectionError, KafkaError
from kafka.structs import TopicPartition

from connectors.kafka.codec import seldom
from connectors.kafka.log import same_log_consumer
from connectors.kafka.log.same_log_consumer import SameLogConsumer
from connectors.kafka.transport import PlainRecord
from connectors.testing.memory_clients import MemoryConsumer
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.memory_topics import OFFSETS
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
        """Poll once; the poll must raise where a log has changed."""
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
    """Partitions are paused and read again, the broker is away, and one of them changes at any time."""
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
    """The reader learns that its offset is out of range, and not yet why; the next records are of another log."""
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


def test_one_partition_is_away_and_another_was_purged() -> None:
    """The reader goes on with the purged one, whatever is not told of the other."""
    reader = Read()
    topics, (away, purged, _) = reader.kafka.topics, PLACES
    for place in PLACES:
        topics.append(place, b"k", b"", [])
    assert reader.goes_on()
    topics.take_away(away.topic)
    topics.drop(purged.topic, 1)
    topics.restart()
    topics.append(purged, b"k", b"", [])
    for _ in range(4):
        assert reader.goes_on()
    assert len(reader.given[purged]) == 2


@pytest.mark.parametrize("seed", range(50))
def test_a_topic_made_anew_whose_last_read_record_was_dropped(seed: int) -> None:
    """The reader can't compare its last record, yet only a log made anew has a record at such an offset."""
    dice, reader, clock = random.Random(seed), Read(), Clock()
    topics, place = reader.kafka.topics, PLACES[0]
    with mock.patch.object(same_log_consumer, "time", clock):
        for _ in range(read := dice.randint(2, 9)):
            topics.append(place, b"k", b"", [])
        assert reader.goes_on()
        topics.drop(place.topic, read)
        for _ in range(dice.randint(1, 4)):  # errors and pauses while the log is the same
            clock.now += dice.choice((0, 6))
            topics.restart()
            assert reader.goes_on()
            assert reader.goes_on()
        topics.make_anew([place.topic])
        topics.ahead_ms += 5_000
        for _ in range(read + dice.randint(0, 3)):
            topics.append(place, b"k", b"", [])
        assert not all(reader.goes_on() for _ in range(3))


@pytest.mark.parametrize("pause_s", [1, 6])
def test_rare_polls_get_the_records_behind_dropped_ones(pause_s: int) -> None:
    """After a pause the last record is fetched again. That it was dropped takes no further poll."""
    reader, clock = Read(), Clock()
    topics, place = reader.kafka.topics, PLACES[0]
    with mock.patch.object(same_log_consumer, "time", clock):
        for number in range(1, 9):
            topics.append(place, b"k", b"", [])
            clock.now += pause_s
            assert reader.goes_on()
            assert len(reader.given[place]) == number
            topics.drop(place.topic, number)


def test_records_deleted_amid_an_open_transaction() -> None:
    """A reader of committed records begins there, though Kafka tells it an end below the beginning."""
    place, kafka = PLACES[0], MemoryConnection()
    kafka.topics.partitions[place] = []
    kafka.topics.transact(place, [b"0", b"1", b"2"])
    kafka.topics.drop(place.topic, 2)
    consumer = kafka.consumer(isolation_level="read_committed")
    log = SameLogConsumer(consumer, lambda place, what: HistoryChanged(f"{place.topic} {what}"), looks=False)
    log.read({place: 2})
    assert log.poll(0.0) == {}
    kafka.topics.end_transaction(place, commits=True)
    assert [record.offset for record in log.poll(0.0)[place]] == [2]


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1e9

    monotonic = staticmethod(time.monotonic)

    def time(self) -> float:
        """Return the seconds."""
        return self.now


class Growing:
    """Logs that grow, with transactions' markers, and that a purge follows; and their reader."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.kafka = dice, MemoryConnection()
        self.topics, self.consumer = self.kafka.topics, self.kafka.consumer()
        self.topics.silence_s = 0.0
        self.log = SameLogConsumer(self.consumer, lambda place, what: HistoryChanged(f"{place.topic} {what}"))
        self.topics.partitions.update({place: [] for place in PLACES})
        self.grow(6)
        self.starts = {place: dice.randint(0, len(self.topics.partitions[place])) for place in PLACES}
        self.positions, self.given = dict(self.starts), {place: list[PlainRecord]() for place in PLACES}
        self.log.read(self.positions)

    def grow(self, most: int) -> None:
        for place in PLACES:
            for _ in range(self.dice.randint(0, most)):
                if self.dice.random() < 0.3:
                    self.topics.mark(place)
                else:
                    self.topics.append(place, b"k", b"", [("abcast", b"1")])

    def purge(self) -> None:
        """Drop records of a partition up to the consumer's place at most."""
        place = self.dice.choice(PLACES)
        beginning = self.topics.beginnings.get(place, 0)
        passed = max(beginning, self.positions[place], self.consumer.next.get(place, 0))
        self.topics.drop(place.topic, self.dice.randint(beginning, passed))

    def poll(self) -> None:
        with suppress(KafkaConnectionError):
            for place, records in self.log.poll(0.0).items():
                self.given[place] += records
                self.positions[place] = records[-1].offset + 1


@pytest.mark.parametrize("seed", range(100))
def test_a_log_that_only_grows_and_is_dropped_behind_its_reader(seed: int) -> None:
    """A reader misses no record and raises no error, whatever markers transactions leave, wherever the clock jumps."""
    clock = Clock()
    with mock.patch.object(same_log_consumer, "time", clock):
        logs = Growing(dice := random.Random(seed))
        for _ in range(50):
            logs.grow(2)
            if dice.random() < 0.3:
                logs.purge()
            if dice.random() < 0.15:
                logs.topics.restart()
            if dice.random() < 0.2:
                logs.log.read({place: at for place, at in logs.positions.items() if dice.random() < 0.7})
            logs.topics.away = {dice.choice(PLACES): frozenset({OFFSETS})}
            clock.now += dice.choice((0, 0, 0, 6, -6, -86_400))
            logs.poll()
        logs.topics.away.clear()
        logs.log.read(logs.positions)
        for _ in range(9):
            logs.poll()
    for place, start in logs.starts.items():
        behind = logs.topics.partitions[place][start:]
        assert logs.given[place] == [each for each in behind if (place, each.offset) not in logs.topics.marks]


def test_a_clock_that_was_set_back() -> None:
    """The reader sees that its log ends before its place, within the usual time."""
    clock, place = Clock(), PLACES[0]
    with mock.patch.object(same_log_consumer, "time", clock):
        reader = Read()
        reader.kafka.topics.append(place, b"k", b"", [])
        assert reader.goes_on()
        clock.now -= 86_400
        assert reader.goes_on()
        reader.kafka.topics.partitions[place] = []
        with mock.patch.object(MemoryConsumer, "poll", return_value={}):  # as where the topic is gone
            for _ in range(4):
                clock.now += 3
                if not reader.goes_on():
                    return
    pytest.fail("it did not look")


@pytest.mark.slow
def test_one_end_that_is_not_told_hides_no_change_of_another_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end is not told while an in-sync replica can't be reached, though the partition can be read."""
    monkeypatch.setattr(seldom, "_warned", {})
    clock, (away, shorter, _) = Clock(), PLACES
    with mock.patch.object(same_log_consumer, "time", clock):
        reader = Read()
        topics = reader.kafka.topics
        for place in PLACES:
            topics.append(place, b"k", b"", [])
        assert reader.goes_on()
        topics.take_away(away.topic, OFFSETS)
        with mock.patch.object(MemoryConsumer, "poll", return_value={}):
            for _ in range(2 * int(same_log_consumer.UNTOLD_S)):
                clock.now += 3
                assert reader.goes_on()
            assert f"the end of {away.topic}-0 is not told" in caplog.text
            assert shorter.topic not in caplog.text
            topics.partitions[shorter] = []
            for _ in range(4):
                clock.now += 3
                if not reader.goes_on():
                    return
    pytest.fail("the change was not noticed")


class Fetching(MemoryConsumer):
    """A consumer that fetches in the background, as librdkafka does: behind a seek, a poll that does not wait is
    early, and the next one returns the records of that time.
    """

    is_moved = False
    fetched: dict[TopicPartition, list[PlainRecord]] | None = None

    def seek(self, place: TopicPartition, offset: int) -> None:
        super().seek(place, offset)
        self.is_moved, self.fetched = True, None

    def poll(self, timeout_ms: int = 0) -> dict[TopicPartition, list[PlainRecord]]:
        if self.is_moved:
            self.is_moved, self.fetched = False, super().poll(timeout_ms)
            return {}
        fetched, self.fetched = self.fetched, None
        return fetched or super().poll(timeout_ms)


@pytest.mark.parametrize("pause_s", [1, 6])
def test_rare_polls_that_do_not_wait_get_the_records(pause_s: int) -> None:
    """Each poll after a pause doubts the log. If each fetched the last record again, none would return anything."""
    reader, clock, given = Read(), Clock(), 0
    topics, place = reader.kafka.topics, PLACES[0]
    log = SameLogConsumer(Fetching(topics), lambda place, _: HistoryChanged(place.topic))
    log.read({place: 0})
    with mock.patch.object(same_log_consumer, "time", clock):
        for number in range(1, 21):
            topics.append(place, b"k", b"", [])
            clock.now += pause_s
            given += len(log.poll(0.0).get(place, ()))
            assert given >= number - 2


@pytest.mark.parametrize("pause_s", [31, -31, 86_400])
def test_a_log_made_anew_in_a_long_pause_before_the_comparison(pause_s: int) -> None:
    """The client may hold the last record of the old log: it is fetched again."""
    reader, clock = Read(), Clock()
    topics, place = reader.kafka.topics, PLACES[0]
    log = SameLogConsumer(Fetching(topics), lambda place, _: HistoryChanged(place.topic))
    log.read({place: 0})
    with mock.patch.object(same_log_consumer, "time", clock):
        topics.append(place, b"k", b"", [])
        while not log.poll(0.0):
            pass
        clock.now += 6
        assert not log.poll(0.0)  # the last record is on its way
        topics.partitions[place] = []
        topics.ahead_ms += 5_000
        for _ in range(3):
            topics.append(place, b"k", b"", [])
        clock.now += pause_s
        assert not log.poll(0.0)
        with pytest.raises(HistoryChanged):
            log.poll(0.0)
