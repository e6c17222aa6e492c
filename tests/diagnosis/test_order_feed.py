"""The order for pages, on a Kafka in memory: it is followed while somebody asks, by one reader, within bounds."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.errors import UnsupportedVersionError
from kafka.structs import TopicPartition

from connectors import Member
from connectors.diagnosis import order_feed
from connectors.diagnosis.order_feed import NotFollowed, OrderFeed, OrderFeeds
from connectors.kafka.codec.dead_letter_codec import dead_letter_headers
from connectors.testing.memory_clients import MemoryConsumer
from connectors.testing.memory_group import MemoryGroup
from connectors.testing.memory_topics import READS
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.names import Topic
from ordering.base.records import DeadLetter, Source
from tests.packed import pack_log
from tests.waiting import WAIT, eventually

SITE = "nyc"
_numbers = itertools.count()


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    with MemoryGroup("g", SITE) as made:
        yield made


def feeds_of(group: MemoryGroup, *, payloads: bool = False) -> OrderFeeds:
    return OrderFeeds({SITE: group.connection}, lambda name: name != "hidden", payloads=payloads)


def ask(feeds: OrderFeeds, after: int = 0, group: str = "g") -> dict[str, Any]:
    told = feeds.ask(SITE, group, after, WAIT)
    assert isinstance(told, dict)
    return told


def send(group: MemoryGroup, *payloads: bytes) -> int:
    """Broadcast; return the last seqno."""
    return group.member(f"m{next(_numbers)}").broadcast_many(payloads).result(WAIT)


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "abcast-order"]


def test_each_record_comes_once(group: MemoryGroup) -> None:
    """In order, with its sender and its wait; another asker gets all of them, too. Both have one reader."""
    feeds, seen = feeds_of(group), list[dict[str, Any]]()
    last = send(group, *(b"%d" % number for number in range(30)))
    while not seen or seen[-1]["seqno"] < last:
        seen += ask(feeds, seen[-1]["seqno"] if seen else 0)["records"]
    assert [each["seqno"] for each in seen] == list(range(1, last + 1))
    assert [each["local_seqno"] for each in seen] == list(range(1, 31))
    assert {each["kind"] for each in seen} == {"message"}
    assert all(each["sender"].startswith("nyc/m") and each["took_ms"] >= 0 for each in seen)
    assert not any("payload" in each for each in seen)
    assert ask(feeds)["records"] == seen
    assert readers() == ["abcast-order"]
    another = send(group, b"x")
    assert [each["seqno"] for each in ask(feeds, last)["records"]] == [another]
    feeds.close(WAIT)
    assert readers() == []


def test_messages_of_a_pack() -> None:
    """Each is shown alone; of a long payload, only the beginning."""
    with MemoryGroup("g", SITE) as group:
        send(group, *(b"%d" % number for number in range(20)))
        send(group, b"\xff" + b"a" * 999)
    pack_log(group.connection, "g", SITE, 1)
    feeds = feeds_of(group, payloads=True)
    eventually(lambda: ask(feeds)["last"] == 21, WAIT, "all of them")
    payloads = [each["payload"] for each in ask(feeds)["records"]]
    assert payloads == [*map(str, range(20)), f"\ufffd{'a' * (order_feed.MOST_TEXT - 1)}…"]
    feeds.close(WAIT)


@pytest.mark.slow
def test_it_ends_with_the_page(group: MemoryGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the reader ends; another page begins near the end."""
    monkeypatch.setattr(order_feed, "ASKED_WITHIN_S", 0.3)
    monkeypatch.setattr(order_feed, "_BACK", 5)
    feeds = feeds_of(group)
    last = send(group, *[b"x"] * 10)
    assert [each["seqno"] for each in ask(feeds)["records"]] == list(range(last - 4, last + 1))
    eventually(lambda: not readers(), WAIT, "the end of the reader")
    last = send(group, *[b"x"] * 10)

    def shown() -> list[int]:
        told = feeds.ask(SITE, "g", 0, 0.1)
        return [each["seqno"] for each in told["records"]] if isinstance(told, dict) else []

    eventually(lambda: shown() == list(range(last - 4, last + 1)), WAIT, "the newest")
    feeds.close(WAIT)


@pytest.mark.slow
def test_a_flood_is_not_followed(group: MemoryGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader goes on near the end, and reaches it though nothing more comes; it keeps no more than its bound."""
    monkeypatch.setattr(order_feed, "_BEHIND_EVERY_S", 0.0)
    monkeypatch.setattr(order_feed, "_AFTER_A_JUMP_S", 0.0)
    data, kafka = TopicPartition(str(Topic("g", "data", SITE)), 0), group.connection.topics
    flood = group.member("flood")
    last = flood.broadcast_many([b"x"] * 100).result(WAIT)
    feed = OrderFeed(group.connection, "g", SITE, payloads=False)
    eventually(lambda: feed.ask(0, WAIT)["last"] == last, WAIT, "the reader")
    kafka.take_away(data.topic, READS)
    flood.broadcast_many([b"x"] * 5000)
    eventually(lambda: len(kafka.partitions[data]) > 5000, WAIT, "the flood")
    kafka.bring_back(data.topic)
    eventually(lambda: feed.ask(last, WAIT)["last"] == last + 5000, WAIT, "the end")
    seqnos = [each["seqno"] for each in feed._records]
    assert len(seqnos) <= order_feed.KEPT
    assert any(one + 1 < other for one, other in itertools.pairwise(seqnos))
    feed.close(WAIT)


def test_what_is_not_there(group: MemoryGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of another job, no name, a site that is not shown; a group without topics is an error in a sentence."""
    feeds = feeds_of(group)
    for site, name in ((SITE, "hidden"), (SITE, "no name!"), (SITE, ""), ("sfo", "g")):
        refused = feeds.ask(site, name, 0, WAIT)
        assert isinstance(refused, NotFollowed)
        assert refused.is_unknown
    assert ask(feeds, group="never.created")["error"].startswith("topic abcast.never.created.")
    monkeypatch.setattr(order_feed, "MOST_FEEDS", 1)
    refused = feeds.ask(SITE, "g", 0, WAIT)
    assert isinstance(refused, NotFollowed)
    assert not refused.is_unknown
    feeds.close(WAIT)
    assert readers() == []


def test_dead_letters_have_their_reason(group: MemoryGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their sender is any bytes; their payload is never shown. Who may not read them is shown the order alone."""
    monkeypatch.setattr(order_feed, "_LETTERS_EVERY_S", 0.0)
    topic = str(Topic("g", "dead-letter", SITE))
    for number in range(7):
        dead = DeadLetter(Source("abcast.g.forward.nyc", 0, number), f"reason {number}")
        group.connection.producer().send(topic, key=b"\xff", value=b"secret", headers=dead_letter_headers(dead, ()))
    send(group, b"x")
    feeds = feeds_of(group, payloads=True)
    group.connection.topics.forbidden.add(topic)
    eventually(lambda: ask(feeds)["dead_letters_error"], WAIT, "the refusal")
    told = ask(feeds)
    assert told["dead_letters_error"].startswith("Dead letters are not shown: User:ANONYMOUS may not READ")
    assert ([each["seqno"] for each in told["records"]], told["dead_letters"], told["error"]) == ([1], [], "")
    group.connection.topics.forbidden.clear()
    eventually(lambda: ask(feeds)["dead_letters"], WAIT, "dead letters")
    letters = ask(feeds)["dead_letters"]
    assert [each["reason"] for each in letters] == [f"reason {number}" for number in range(2, 7)]
    assert {each["sender"] for each in letters} == {"\ufffd"}
    assert "secret" not in str(letters)
    feeds.close(WAIT)


@pytest.mark.slow
def test_a_reader_survives_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has a sentence; once the right is given, the order is followed again."""
    monkeypatch.setattr(order_feed, "_AFTER_AN_ERROR_S", 0.1)
    with MemoryGroup("g", SITE) as group:
        last = send(group, b"x")
    feeds, data = feeds_of(group), str(Topic("g", "data", SITE))

    def refuse(*_: object) -> None:
        raise UnsupportedVersionError

    assert ask(feeds)["last"] == last
    group.connection.topics.forbidden.add(data)
    eventually(lambda: f"may not READ {data}" in ask(feeds, last)["error"], WAIT, "the sentence")
    group.connection.topics.forbidden.clear()
    eventually(lambda: ask(feeds)["error"] == "", WAIT, "the order")
    with monkeypatch.context() as patch:
        patch.setattr(MemoryConsumer, "rest", refuse)
        eventually(lambda: ask(feeds, last)["error"].startswith("UnsupportedVersionError"), WAIT, "the error")
    eventually(lambda: ask(feeds)["error"] == "", WAIT, "the order")
    feeds.close(WAIT)


@pytest.mark.slow
def test_a_group_made_anew_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has seen the same seqnos of the old group."""
    monkeypatch.setattr(order_feed, "_AFTER_AN_ERROR_S", 0.1)
    with MemoryGroup("g", SITE) as group:
        last = send(group, *[b"old"] * 50)
    feeds, kafka = feeds_of(group, payloads=True), group.connection.topics
    eventually(lambda: ask(feeds)["last"] == last, WAIT, "the old ones")
    kafka.make_anew({place.topic for place in kafka.partitions})
    with SequencerThread(group.connection, "g", SITE), Member("g", f"{SITE}/a", connection=group.connection) as alice:
        alice.broadcast_many([b"new"] * 3).result(WAIT)
        eventually(lambda: ask(feeds, last)["last"] == 3, WAIT, "the new ones")
    assert [each["payload"] for each in ask(feeds, last)["records"]] == ["new"] * 3
    feeds.close(WAIT)


def test_a_feed_that_is_not_asked_yet_is_kept(group: MemoryGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another group's first asker comes in between. All readers end with the process, and none begins."""
    feeds, really = feeds_of(group), OrderFeed.ask
    send(group, b"x")

    def late(feed: OrderFeed, after: int, wait_s: float) -> dict[str, Any]:
        monkeypatch.setattr(OrderFeed, "ask", really)
        feeds.ask(SITE, "another", 0, 0.0)
        return feed.ask(after, wait_s)

    monkeypatch.setattr(OrderFeed, "ask", late)
    ask(feeds)
    feeds.close(WAIT)
    assert readers() == []
    assert isinstance(feeds.ask(SITE, "g", 0, WAIT), NotFollowed)
    assert readers() == []


def test_few_askers_wait(group: MemoryGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are answered at once: they would take all places of an endpoint."""
    monkeypatch.setattr(order_feed, "MOST_WAITING", 1)
    feeds, last = feeds_of(group), send(group, b"x")
    assert ask(feeds)["last"] == last
    told = list[dict[str, Any]]()
    waits = threading.Thread(target=lambda: told.append(ask(feeds, last)))
    waits.start()
    eventually(lambda: not feeds._waiting._value, WAIT, "the one that waits")
    assert ask(feeds, last)["records"] == []
    assert waits.is_alive()
    another = send(group, b"x")
    waits.join(WAIT)
    assert [each["seqno"] for each in told[0]["records"]] == [another]
    feeds.close(WAIT)
