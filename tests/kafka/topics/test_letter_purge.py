"""Purge letters, in memory: a receiver goes on as before, and is told of letters that it has missed."""

from __future__ import annotations

import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from connectors import Member
from connectors.kafka.codec.letter_codec import letter_headers
from connectors.kafka.connection import ranges
from connectors.kafka.topics import letter_purge
from connectors.kafka.topics.letter_bases import key_of_base, read_noted
from connectors.kafka.topics.letter_purge import purge_letters
from connectors.testing.memory_clients import MemoryConsumer
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.errors import AbcastError, HistoryUnavailable, PositionLost
from ordering.base.names import Topic
from tests.waiting import WAIT

SITE = "b"
INBOX = TopicPartition(str(Topic("g", "inbox", SITE)), 0)
DAY_S = 86_400.0


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> MemoryConnection:
    kafka = MemoryConnection()
    kafka.create("g", SITE)

    def delete(below: dict[TopicPartition, int]) -> None:
        for place, offset in below.items():
            kafka.topics.drop(place.topic, offset, place.partition)

    admin = SimpleNamespace(describe_log_dirs=lambda _: [], delete_records=delete)
    monkeypatch.setattr(MemoryConnection, "admin", lambda _: nullcontext(admin))
    return kafka


def write(kafka: MemoryConnection, number: int, incarnation: int = 7, to: bytes = b"b/bob") -> None:
    """Write a letter of another program."""
    headers = letter_headers("b/eve", incarnation, number)
    kafka.topics.append(INBOX, to, b"eve %d" % number, headers)


def take(kafka: MemoryConnection, count: int | None = None, **how: Any) -> list[bytes]:
    """Return bob's next `count` letters, or all."""
    got: list[bytes] = []
    with Member("g", "b/bob", connection=kafka) as bob:
        for letter in bob.inbox(timeout=0.2, **how):
            if len(got) == count:
                break  # this one is in hand, and comes again
            got.append(letter.payload)
    return got


def purge(kafka: MemoryConnection, letters_s: float = 0.001, *, dry_run: bool = False) -> int:
    time.sleep(0.01)
    [purged] = purge_letters(kafka, "g", SITE, letters_s=letters_s, dry_run=dry_run)
    return purged.records


def beginning(kafka: MemoryConnection) -> int:
    return kafka.topics.beginnings.get(INBOX, 0)


@pytest.mark.slow
def test_what_was_taken_goes_and_letters_go_on(kafka: MemoryConnection) -> None:
    """Repeats of deleted letters are dropped, and a gap behind them is noticed."""
    for number in range(1, 6):
        write(kafka, number)
    assert take(kafka, 3) == [b"eve 1", b"eve 2", b"eve 3"]
    assert purge(kafka, dry_run=True) == 3
    assert beginning(kafka) == 0
    assert (purge(kafka), beginning(kafka), purge(kafka)) == (3, 3, 0)
    for number in (2, 6, 3, 8, 7):
        write(kafka, number)
    assert take(kafka) == [b"eve 4", b"eve 5", b"eve 6", b"eve 7"]
    assert (purge(kafka), beginning(kafka)) == (7, 10)
    began = time.monotonic()
    assert take(kafka) == []
    assert time.monotonic() - began < kafka.timeout, "nothing that is gone is waited for"
    write(kafka, 8)
    assert take(kafka) == [b"eve 8"]


@pytest.mark.slow
def test_only_the_newest_note_is_left(kafka: MemoryConnection) -> None:
    for number in range(1, 4):
        write(kafka, number)
        take(kafka)
        assert purge(kafka) == 1
    noted = read_noted(kafka, kafka.consumer(), "g", SITE)
    assert noted.beginnings == {0: {3}}
    assert [base.below for base in noted.bases["b/bob"]] == [3]
    assert read_noted(kafka, kafka.consumer(), "g", SITE, ["b/else"]).bases == {}


def test_a_letter_waits_for_its_receiver(kafka: MemoryConnection) -> None:
    """A letter is kept until bob takes it, or Kafka forgets bob; for the letters' retention if bob has never run."""
    for number in range(1, 4):
        write(kafka, number)
    assert purge(kafka, DAY_S) == 0
    assert take(kafka, 1) == [b"eve 1"]
    assert (purge(kafka), purge(kafka)) == (1, 0)
    kafka.topics.forget_commits()
    assert purge(kafka, DAY_S) == 0
    assert purge(kafka) == 2


@pytest.mark.slow
def test_what_nobody_took_is_told(kafka: MemoryConnection) -> None:
    for number in range(1, 4):
        write(kafka, number)
    assert purge(kafka) == 3
    for _ in range(2):
        with pytest.raises(HistoryUnavailable, match=r"letters to b/bob were deleted before it took them"):
            take(kafka)
    assert take(kafka, from_beginning=True) == []
    write(kafka, 4)
    assert take(kafka) == [b"eve 4"], "it was told, and has said that it goes on"


@pytest.mark.slow
def test_what_is_gone_is_told_to_a_name_that_kafka_has_forgotten(kafka: MemoryConnection) -> None:
    """PositionLost is raised only while no unread letter was deleted."""
    for number in range(1, 4):
        write(kafka, number)
    assert len(take(kafka)) == 3
    kafka.topics.forget_commits()
    with pytest.raises(PositionLost, match="gives all that are left again"):
        take(kafka)
    write(kafka, 4)
    assert purge(kafka) == 4
    write(kafka, 5)
    for _ in range(2):
        with pytest.raises(HistoryUnavailable, match=r"letters to b/bob were deleted before it took them"):
            take(kafka)
    assert take(kafka, from_beginning=True) == [b"eve 5"]


@pytest.mark.slow
def test_others_letters_are_no_loss(kafka: MemoryConnection) -> None:
    """A stranger's key, a state, and a receiver at another site stop nothing: they are no letters for bob."""
    write(kafka, 1)
    kafka.topics.append(INBOX, b"b/eve", b"x", letter_headers("b/x", 1, 1, kind="state"))
    for key in (None, b"", b"nobody", b"c/bob", b"b/bob"):
        kafka.topics.append(INBOX, key, b"x", [("abcast", b"what is this")])
    assert take(kafka) == [b"eve 1"]
    assert purge(kafka) == 7
    write(kafka, 2)
    assert take(kafka) == [b"eve 2"]
    write(kafka, 1, to=b"b/late")
    with Member("g", "b/late", connection=kafka) as late:
        assert next(iter(late.inbox(timeout=WAIT))).payload == b"eve 1"


def test_a_retention_is_no_purge(kafka: MemoryConnection) -> None:
    """A retention leaves no note of the deleted letters."""
    for number in range(1, 4):
        write(kafka, number)
    take(kafka, 1)
    purge(kafka)
    kafka.topics.drop(INBOX.topic, 2)
    with pytest.raises(HistoryUnavailable, match="must have no retention"):
        take(kafka)
    assert purge(kafka) == 0, "what it would note is not the whole"


@pytest.mark.slow
def test_a_receiver_that_is_overtaken(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A purge deletes the log from which the receiver builds its table: it goes on with the note."""
    for number in range(1, 5):
        write(kafka, number)
    assert len(take(kafka)) == 4
    write(kafka, 5)
    poll, purged = MemoryConsumer.poll, list[int]()

    def overtaken(consumer: MemoryConsumer, timeout_ms: int = 0) -> Any:
        if INBOX in consumer.next and not purged:
            purged.append(0)
            purged.append(purge(kafka))
        return poll(consumer, timeout_ms)

    monkeypatch.setattr(MemoryConsumer, "poll", overtaken)
    assert take(kafka) == [b"eve 5"]
    assert purged == [0, 4]


@pytest.mark.slow
@pytest.mark.parametrize("is_missed", [False, True])
def test_a_run_from_the_beginning_is_overtaken(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, is_missed: bool
) -> None:
    """The receiver is told of unread letters that were deleted; those behind its position are no loss."""
    for number in range(1, 5):
        write(kafka, number)
    assert len(take(kafka)) == 4
    write(kafka, 5)
    poll, polls = MemoryConsumer.poll, list[int]()

    def overtaken(consumer: MemoryConsumer, timeout_ms: int = 0) -> Any:
        if INBOX in consumer.next:
            polls.append(0)
            if len(polls) == (1 if is_missed else 2):
                kafka.topics.forget_commits()  # else what it has yet to take is waited for
                polls.append(purge(kafka))
        return poll(consumer, timeout_ms)

    monkeypatch.setattr(MemoryConsumer, "poll", overtaken)
    if is_missed:
        with pytest.raises(HistoryUnavailable, match=r"letters to b/bob were deleted before it took them"):
            take(kafka, from_beginning=True)
    else:
        assert take(kafka, from_beginning=True) == [b"eve %d" % number for number in range(1, 6)]
    assert sum(polls) in (4, 5)
    assert take(kafka, from_beginning=True) == ([b"eve 5"] if beginning(kafka) == 4 else [])


@pytest.mark.slow
def test_a_note_that_is_damaged(kafka: MemoryConnection, caplog: pytest.LogCaptureFixture) -> None:
    """The next letter is unknown: the receiver raises, and the purge deletes nothing more."""
    for number in range(1, 4):
        write(kafka, number)
    take(kafka, 2)
    assert purge(kafka) == 2
    memory = TopicPartition(str(Topic("g", "memory", SITE)), 0)
    kafka.topics.append(memory, key_of_base("b/bob", 2), b'{"lost":', [])
    with pytest.raises(HistoryUnavailable, match=r"the letters below offset 2 of .* can't be read"):
        take(kafka)
    kafka.topics.append(memory, key_of_base("b/bob", 2), b'{"lost":0,"received":{"b/eve":[7,2]}}', [])
    assert take(kafka) == [b"eve 3"]
    kafka.topics.append(memory, key_of_base("b/bob", 2), b"", [])
    assert (purge(kafka), beginning(kafka)) == (0, 2)
    assert "are deleted: what is noted of letters to b/bob below 2 can't be read" in caplog.text


def test_the_last_mark_of_a_relay_stays(kafka: MemoryConnection) -> None:
    for number in range(1, 4):
        text = f"2 letter 7 {number} c/eve c/{INBOX.topic}-0:{number}".encode()
        kafka.topics.append(INBOX, b"b/bob", b"%d" % number, [("abcast", text)])
    assert len(take(kafka)) == 3
    assert (purge(kafka), beginning(kafka)) == (2, 2)


@pytest.mark.parametrize("step", range(3))
def test_a_crash_in_the_middle(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """The crash comes before the note, before the deletion, or before old notes are removed."""
    for number in range(1, 4):
        write(kafka, number)
    take(kafka, 2)
    with monkeypatch.context() as crash:
        name = ("_write", None, "_delete_notes")[step]

        def crashed(*_: object) -> None:
            raise AbcastError("killed")

        crash.setattr(*((letter_purge._LetterPurge, name) if name else (letter_purge, "delete")), crashed)  # type: ignore[call-overload]
        with pytest.raises(AbcastError, match="killed"):
            purge(kafka)
    assert beginning(kafka) == (0, 0, 2)[step]
    write(kafka, 4)
    assert take(kafka, 1) == [b"eve 3"]
    assert purge(kafka) == (3, 3, 1)[step]
    assert take(kafka) == [b"eve 4"]


@pytest.mark.parametrize("has_read", [False, True])
def test_a_purge_that_another_one_overtakes(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, has_read: bool
) -> None:
    """The purge may have read a log with holes: it deletes nothing."""
    for number in range(1, 4):
        write(kafka, number)
    take(kafka, 2)
    read = ranges.read_range

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(letter_purge, "read_range", read)
        found = list(read(*arguments)) if has_read else []
        assert purge(kafka) == 2
        return found or read(*arguments)

    monkeypatch.setattr(letter_purge, "read_range", overtaken)
    assert purge(kafka) == 0
    assert beginning(kafka) == 2
    assert take(kafka) == [b"eve 3"]


def test_too_many_senders(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(letter_purge, "MAX_BASE_BYTES", 10)
    write(kafka, 1)
    take(kafka)
    assert (purge(kafka), beginning(kafka)) == (0, 0)
    assert "b/bob has too many senders" in caplog.text


def test_a_group_without_a_memory(kafka: MemoryConnection) -> None:
    del kafka.topics.partitions[TopicPartition(str(Topic("g", "memory", SITE)), 0)]
    write(kafka, 1)
    assert purge_letters(kafka, "g", SITE, letters_s=DAY_S) == []
