"""Purging copies of other sites' inboxes, in memory: the relays behind them miss no letter."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.structs import TopicPartition

from connectors.kafka.codec.letter_codec import letter_headers
from connectors.kafka.connection.sites import Direction, Sites
from connectors.relay.letter_copies import purge_copies
from connectors.relay.letters import Letters
from connectors.relay.marks import last_copy
from connectors.testing.memory_clients import MemoryConsumer
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.errors import BrokerUnreachable
from ordering.base.names import Topic
from ordering.base.records import Source
from tests.relay.carrying import relays_in_memory

INBOX = TopicPartition("abcast.g.inbox.c", 0)
CHAIN = "abc"


@pytest.fixture
def sites() -> Iterator[Sites]:
    """Yield a chain of three; letters from a to c are copied at a and at b."""
    kafkas = {site: MemoryConnection(f"{site}:1") for site in CHAIN}
    for kafka in kafkas.values():
        kafka.create("g", "c")
    links = frozenset(frozenset(ends) for ends in ("ab", "bc"))
    with relays_in_memory():
        yield Sites("mesh", None, "micro-batch", kafkas, links)


def log(sites: Sites, site: str) -> list[Any]:
    kafka = sites.connection(site)
    assert isinstance(kafka, MemoryConnection)
    return kafka.topics.partitions[INBOX]


def beginning(sites: Sites, site: str) -> int:
    kafka = sites.connection(site)
    assert isinstance(kafka, MemoryConnection)
    return kafka.topics.beginnings.get(INBOX, 0)


def write(sites: Sites, site: str, number: int, mark: str = "-") -> None:
    kafka = sites.connection(site)
    assert isinstance(kafka, MemoryConnection)
    [(name, header)] = letter_headers("a/eve", 7, number)
    kafka.topics.append(INBOX, b"c/carl", b"%d" % number, [(name, header.removesuffix(b"-") + mark.encode())])


def relay(sites: Sites, source: str, target: str) -> Letters:
    return Letters(sites, Direction(source, target))


def carry(sites: Sites, source: str, target: str, count: int) -> None:
    """Start a relay that copies so many records at most."""
    copy = last_copy(sites.connection(target), INBOX.topic, 0, Source(f"{source}/{INBOX.topic}", 0, 0))
    position = copy.made_from + 1 if copy is not None else 0
    first = relay(sites, source, target).first_to_carry(INBOX, position, beginning(sites, source))
    for record in log(sites, source)[first : first + count]:
        write(sites, target, int(record.value), f"{source}/{INBOX.topic}-0:{record.offset}")


def purge(sites: Sites, site: str, *, dry_run: bool = False) -> int:
    time.sleep(0.002)
    return sum(each.records for each in purge_copies(sites, site, "g", dry_run=dry_run, settled_s=0.001))


def test_what_has_arrived_goes(sites: Sites) -> None:
    for number in range(1, 6):
        write(sites, "a", number)
    carry(sites, "a", "b", 4)
    assert purge(sites, "a") == 0, "b has them, and c has none"
    carry(sites, "b", "c", 3)
    assert (purge(sites, "a", dry_run=True), beginning(sites, "a")) == (3, 0)
    assert (purge(sites, "a"), beginning(sites, "a"), purge(sites, "a")) == (3, 3, 0)
    assert purge(sites, "b") == 2, "the newest tells the relay from a where to go on"
    assert purge(sites, "c") == 0, "this is the inbox itself"


def test_another_way_misses_nothing(sites: Sites) -> None:
    """The link from b to c goes, while a letter waits at b; then a has one of its own."""
    for number in range(1, 6):
        write(sites, "a", number)
    carry(sites, "a", "b", 4)
    carry(sites, "b", "c", 3)
    purge(sites, "a")
    carry(sites, "a", "c", 5)
    assert [int(record.value) for record in log(sites, "c")] == [1, 2, 3, 4, 5]


def test_only_what_is_old_goes(sites: Sites) -> None:
    write(sites, "a", 1)
    carry(sites, "a", "b", 1)
    carry(sites, "b", "c", 1)
    assert [each.records for each in purge_copies(sites, "a", "g")] == [0]


def test_a_kafka_that_is_shared_is_left_alone(sites: Sites) -> None:
    """The other site has a relay of its own, which may be behind."""
    shared = {**sites.connections, "b": sites.connection("a")}
    assert purge_copies(Sites("mesh", None, "micro-batch", shared, sites.links), "a", "g") == []


def test_the_inbox_itself_is_left_alone(sites: Sites) -> None:
    """c has the Kafka of a by another address. An earlier version sent its letters round, which left marks."""
    kafka = sites.connection("a")
    assert isinstance(kafka, MemoryConnection)
    by_another = MemoryConnection("other:1", topics=kafka.topics)
    sites = Sites("mesh", None, "micro-batch", {**sites.connections, "c": by_another}, sites.links)
    for number in range(1, 4):
        write(sites, "a", number)
    carry(sites, "a", "b", 3)
    carry(sites, "b", "c", 3)
    assert (purge(sites, "a"), purge(sites, "c"), beginning(sites, "c")) == (0, 0, 0)
    assert len(log(sites, "c")) == 6


@pytest.mark.parametrize("more", [0, 3, 4, 9])
@pytest.mark.parametrize("site", ["a", "b"])
def test_a_copy_that_was_made_anew(sites: Sites, site: str, more: int, caplog: pytest.LogCaptureFixture) -> None:
    """The marks are of the old copy: letters of the new one, which may be longer, have not arrived."""
    for number in range(1, 6):
        write(sites, "a", number)
    carry(sites, "a", "b", 5)
    carry(sites, "b", "c", 5)
    log(sites, site).clear()
    for number in range(6, 7 + more):
        if site == "a":
            write(sites, "a", number)
        else:
            write(sites, "b", number, f"a/{INBOX.topic}-0:{number}")
    assert (purge(sites, "a"), purge(sites, "b") if site == "b" else 0) == (0, 0)
    assert {beginning(sites, "a"), beginning(sites, "b")} == {0}
    assert "was recreated" in caplog.text


@pytest.mark.parametrize("site", CHAIN)
def test_another_purges_meanwhile(sites: Sites, site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another purge, here or at the next site, runs at once: the rest is deleted now or next time, and no purge
    fails.
    """
    for number in range(1, 6):
        write(sites, "a", number)
    carry(sites, "a", "b", 5)
    carry(sites, "b", "c", 5)
    seek, kafka = MemoryConsumer.seek, sites.connection(site)
    assert isinstance(kafka, MemoryConnection)

    def seek_late(consumer: MemoryConsumer, place: TopicPartition, offset: int) -> None:
        if consumer.kafka is kafka.topics and offset == 0:
            kafka.topics.drop(INBOX.topic, 2)
        seek(consumer, place, offset)

    monkeypatch.setattr(MemoryConsumer, "seek", seek_late)
    deleted = purge(sites, "a")
    assert (deleted, beginning(sites, "a")) == ((0, 2) if site == "a" else (5, 5))
    assert purge(sites, "a") == (3 if site == "a" else 0)


def test_a_next_kafka_that_is_silent(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Kafka without an answer may lack the letters: none is deleted."""
    write(sites, "a", 1)
    carry(sites, "a", "b", 1)
    carry(sites, "b", "c", 1)

    def silent(*_: object) -> int:
        raise BrokerUnreachable("nobody answers")

    monkeypatch.setattr("connectors.relay.letter_copies.last_copy", silent)
    assert (purge(sites, "a"), beginning(sites, "a")) == (0, 0)


def test_a_way_that_is_there_again(sites: Sites, caplog: pytest.LogCaptureFixture) -> None:
    """The way carried letters before another way did, and the other's were purged: it goes on behind them, with a
    warning.
    """
    for number in range(1, 3):
        write(sites, "a", number)
    carry(sites, "a", "c", 2)
    for number in range(3, 6):
        write(sites, "a", number)
    carry(sites, "a", "b", 5)
    carry(sites, "b", "c", 5)
    purge(sites, "a")
    assert not caplog.records
    write(sites, "a", 6)
    carry(sites, "a", "c", 5)
    assert [int(record.value) for record in log(sites, "c")] == [1, 2, 1, 2, 3, 4, 5, 6]
    [record] = caplog.records
    assert "letters 2 to 4 of abcast.g.inbox.c-0 were deleted at a" in record.getMessage()


def test_an_inbox_that_is_there_is_not_carried(sites: Sites) -> None:
    """a and c share a Kafka, and the way from one to the other leads by b: letters would go round."""
    shared = {**sites.connections, "c": sites.connection("a")}
    sites = Sites("mesh", None, "micro-batch", shared, sites.links)
    for way, inboxes in (("ab", "b"), ("cb", "b"), ("ba", "a"), ("bc", "c")):
        job = relay(sites, *way)
        assert {site for site in CHAIN if job.is_read(Topic("g", "inbox", site))} == set(inboxes), way


@pytest.mark.parametrize("seed", range(40))
def test_every_letter_arrives(sites: Sites, seed: int) -> None:
    """Relays start again and again, and copies are purged between any two steps."""
    dice, written = random.Random(seed), 0
    for _ in range(60):
        step = dice.choice(["write", "a to b", "b to c", "purge a", "purge b"])
        if step == "write":
            written += 1
            write(sites, "a", written)
        elif step.startswith("purge"):
            purge(sites, step[-1])
        else:
            carry(sites, step[0], step[-1], dice.randrange(1, 5))
    for source, target in ("ab", "bc"):
        carry(sites, source, target, written)
    assert [int(record.value) for record in log(sites, "c")] == list(range(1, written + 1))
    assert beginning(sites, "b") > 0 or written < 10
