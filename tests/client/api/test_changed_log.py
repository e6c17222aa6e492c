"""A log is made anew, or loses its end, under live members: each notices before it goes on."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest
from kafka.structs import TopicPartition

from connectors import Delivery, Member
from connectors.client.values.letter import Letter
from connectors.kafka.codec.codec import decode_data, encode_data
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log import same_log_consumer
from connectors.kafka.log.data_cursor import DataCursor
from connectors.kafka.log.data_log import DataLog, Start
from connectors.kafka.topics.topics import create_topics, delete_topics, find_topics
from connectors.kafka.transport import LIBRARIES
from connectors.local.broker import EmbeddedBroker
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import AbcastError, HistoryChanged, HistoryUnavailable
from ordering.base.names import ROLES, Role, Topic
from ordering.base.reader import Reader as SequenceReader
from ordering.base.records import Data, Source
from ordering.sequencer.sequencer import seal
from ordering.sequencer.state import SequencerState
from tests.changed_logs import CHANGES, Change, change
from tests.client.members import with_casts
from tests.waiting import eventually

SITE = "nyc"


class Reader:
    """Delivers in a thread; `got` has the deliveries, `problem` the error that ended the thread."""

    def __init__(self, member: Member, stream: Iterable[Delivery | Letter] | None = None) -> None:
        self.got: list[tuple[int, object]] = []
        self.problem: AbcastError | None = None
        self._run_through = stream or member.deliveries()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for taken in self._run_through:
                self.got.append((taken.seqno if isinstance(taken, Delivery) else taken.local_seqno, taken.payload))
        except AbcastError as error:
            self.problem = error

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()


@contextmanager
def ending_so(member: Member) -> Iterator[Member]:
    """Run a member whose log changes: its end raises the error, too."""
    with contextlib.suppress(HistoryChanged), member:
        yield member
        with pytest.raises(HistoryChanged):
            member.broadcast(b"more")


def write(role: Role, sender: Member, count: int) -> None:
    """Send messages, casts or letters, as the topic of `role` takes them."""
    for number in range(count):
        if role == "inbox":
            sender.send(f"{SITE}/r", b"%d" % number).result(20)
        else:
            sender.broadcast(b"%d" % number, order="fifo" if role == "cast" else "total").result(20)


ROLES_READ: tuple[Role, ...] = ("data", "cast", "inbox")


@pytest.mark.slow
@pytest.mark.parametrize("how", CHANGES, ids=lambda how: how.__name__)
@pytest.mark.parametrize("role", ROLES_READ)
def test_who_reads_a_topic_that_has_changed_is_told(role: Role, how: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    """A live reader of each topic delivers no record of the other log."""
    monkeypatch.setattr(same_log_consumer, "LOOK_S", 0.2)
    kafka = MemoryConnection(timeout=5.0)
    kafka.create("g", SITE)
    with contextlib.ExitStack() as closing:
        closing.enter_context(SequencerThread(kafka, "g", SITE))
        closing.enter_context(contextlib.suppress(AbcastError))
        member, sender = (closing.enter_context(with_casts(kafka, "g", name)) for name in "rs")
        reader = Reader(member, member.inbox() if role == "inbox" else None)
        write(role, sender, 5)
        eventually(lambda: len(reader.got) == 5, what="all is read")
        change(kafka, str(Topic("g", role, SITE)), how)
        reader.join()
    assert isinstance(reader.problem, HistoryChanged)
    assert len(reader.got) == 5


@pytest.mark.slow
@pytest.mark.parametrize("how", [*CHANGES, list], ids=lambda how: how.__name__)
def test_an_inbox_that_has_changed_between_two_runs(how: Change) -> None:
    """The next run raises; a run from the beginning gives the letters that are there, and the one after it goes on."""
    kafka = MemoryConnection(timeout=5.0)
    kafka.create("g", SITE)

    def run(**settings: bool) -> list[bytes]:
        with Member("g", f"{SITE}/r", connection=kafka) as member:
            return [letter.payload for letter in member.inbox(timeout=0.2, **settings)]

    with SequencerThread(kafka, "g", SITE), Member("g", f"{SITE}/s", connection=kafka) as sender:
        write("inbox", sender, 5)
        assert len(run()) == 5
        change(kafka, str(Topic("g", "inbox", SITE)), how)
        if how is list:
            assert run() == []
            kafka.topics.drop(str(Topic("g", "inbox", SITE)), 0)
        else:
            with pytest.raises((HistoryChanged, HistoryUnavailable)):
                run()
            run(from_beginning=True)
        write("inbox", sender, 2)
        assert run()[-2:] in ([b"0", b"1"], [b"1"], [])


def broadcast(connection: Connection, group: str, name: str, texts: list[bytes]) -> None:
    with Member(group, f"{SITE}/{name}", connection=connection) as member:
        for receipt in [member.broadcast(text) for text in texts]:
            receipt.result(20)


def regrow(kafka: MemoryConnection, topic: str, epoch: int, count: int) -> None:
    """Write other decisions, with a seal of `epoch`, at the end of a log that lost its own."""
    place = TopicPartition(topic, 0)
    seqno = max((decode_data(*record[-3:]).seqno for record in kafka.topics.partitions[place]), default=0)
    records = [seal(epoch), *(Data("message", epoch, seqno + n, 0, f"{SITE}/b", 1, n) for n in range(1, count))]
    for record in records[:count]:
        kafka.topics.append(place, *encode_data(record))


@pytest.mark.parametrize("seed", range(40))
def test_what_was_read_stands_there_or_it_is_told(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is cut anywhere, or made anew, and grows again before a reader looks, or later, or never."""
    monkeypatch.setattr(same_log_consumer, "LOOK_S", 0.2)
    rng = random.Random(seed)
    kafka = MemoryConnection(timeout=5.0)
    kafka.create("g", SITE)
    data = str(Topic("g", "data", SITE))
    log = kafka.topics.partitions[TopicPartition(data, 0)]
    with (
        Member("g", f"{SITE}/r", connection=kafka) as member,
        ending_so(Member("g", f"{SITE}/s", connection=kafka)) as sender,
    ):
        with SequencerThread(kafka, "g", SITE):
            broadcast(kafka, "g", "a", [b"old %d" % number for number in range(8)])
            sender.broadcast(b"mine").result(20)
            reader = Reader(member)
            eventually(lambda: len(reader.got) == 9, what="all is read")
        waits = sender.broadcast(b"never ordered")
        length = len(log)
        with kafka.topics.changed:  # nobody looks in between
            if rng.random() < 0.3:
                kafka.topics.make_anew(str(Topic("g", role, SITE)) for role in ROLES)
            else:
                kafka.topics.truncate(data, rng.randrange(length))
            epoch = rng.choice((1, 9))
            if rng.random() < 0.7:
                regrow(kafka, data, epoch, rng.randrange(2 * length))
        reader.join()
        assert isinstance(reader.problem, HistoryChanged)
        assert "was recreated, or has lost its end" in str(reader.problem)
        assert len(reader.got) == 9
        with pytest.raises(HistoryChanged):
            waits.result(20)


@pytest.mark.slow
def test_a_broker_that_was_away_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is the same: the reader reads its last record once more, and goes on."""
    monkeypatch.setattr(same_log_consumer, "LOOK_S", 0.2)
    kafka = MemoryConnection(timeout=5.0)
    kafka.create("g", SITE)
    with SequencerThread(kafka, "g", SITE), Member("g", f"{SITE}/r", connection=kafka) as member:
        reader = Reader(member)
        for number in range(10):
            broadcast(kafka, "g", f"a{number}", [b"%d" % number])
            if number == 5:  # retention may drop the record that was read last
                kafka.topics.drop(str(Topic("g", "data", SITE)), len(reader.got))
            kafka.topics.restart()
        eventually(lambda: len(reader.got) == 10, what="all is read")
        assert reader.got == [(number + 1, b"%d" % number) for number in range(10)]
        assert reader.problem is None


@pytest.mark.broker
@pytest.mark.parametrize("transport", LIBRARIES)
def test_topics_that_are_made_anew(broker: EmbeddedBroker, transport: str) -> None:
    """The new topics have more records than the old ones had."""
    connection = Connection(broker.bootstrap_servers, transport=transport)
    other = Connection(broker.bootstrap_servers, transport=transport, timeout=11.0)  # as another process would
    group = f"anew-{transport}"
    create_topics(connection, group, [SITE])
    with (
        Member(group, f"{SITE}/r", connection=connection) as member,
        ending_so(Member(group, f"{SITE}/s", connection=connection, resend_after_s=1.0)) as sender,
    ):
        with SequencerThread(connection, group, SITE):
            for number in range(5):
                sender.broadcast(b"old %d" % number).result(20)
            reader = Reader(member)
            eventually(lambda: len(reader.got) == 5, what="all is read")
        delete_topics(other, [topic for topic in find_topics(other) if topic.group == group])
        eventually(lambda: not [topic for topic in find_topics(other) if topic.group == group], what="they are gone")
        create_topics(other, group, [SITE])
        with SequencerThread(other, group, SITE):
            broadcast(other, group, "z", [b"new %d" % number for number in range(8)])
            reader.join()
            assert isinstance(reader.problem, HistoryChanged)
            assert [payload for _, payload in reader.got] == [b"old %d" % number for number in range(5)]


def idle_log() -> tuple[MemoryConnection, TopicPartition, SequencerState]:
    kafka = MemoryConnection()
    kafka.create("g", SITE)
    with SequencerThread(kafka, "g", SITE):
        broadcast(kafka, "g", "a", [b"%d" % number for number in range(8)])
    with DataLog(kafka, "g", SITE) as log:
        return kafka, TopicPartition(str(log.topic), 0), log.state()


def begin_at_the_end(kafka: MemoryConnection, place: TopicPartition, state: SequencerState) -> DataCursor:
    start = Start(len(kafka.topics.partitions[place]), SequenceReader(state.epoch, state.seqno))
    return DataCursor(kafka.consumer(), place, start)


@pytest.mark.parametrize("how", CHANGES, ids=lambda how: how.__name__)
def test_who_has_read_nothing_yet_is_told_so_too(how: Change) -> None:
    """A reader that began at the end of an idle log knows the log's last record."""
    kafka, place, state = idle_log()
    cursor = begin_at_the_end(kafka, place, state)
    assert list(cursor.poll(0.0)) == []
    change(kafka, place.topic, how)
    assert list(cursor.poll(0.0)) == []  # the connection is lost
    with pytest.raises(HistoryChanged):
        cursor.poll(0.0)


def test_who_begins_behind_what_retention_has_dropped_reads_on() -> None:
    """No record is left in front of the reader for it to know."""
    kafka, place, state = idle_log()
    kafka.topics.drop(place.topic, len(kafka.topics.partitions[place]))
    cursor = begin_at_the_end(kafka, place, state)
    assert list(cursor.poll(0.0)) == []
    new = Data(
        "message", state.epoch, state.seqno + 1, 0, f"{SITE}/b", 1, 1, b"new", Source("abcast.g.forward.nyc", 0, 99)
    )
    kafka.topics.append(place, *encode_data(new))
    assert [each.value for each in cursor.poll(0.0)] == [b"new"]
