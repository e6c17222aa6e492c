"""A site's casts reach a Kafka by one direction, and never go back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sites import Direction, Mode, Sites
from connectors.kafka.groups.unservable_groups import UnservableGroups
from connectors.relay.casts import Casts, is_entrance
from connectors.relay.marks import last_copy
from connectors.testing import MemoryConnection
from ordering.base.errors import HistoryUnavailable
from ordering.base.names import Topic
from ordering.base.records import Source

NAMES = "abcd"


def deployment(mode: Mode, kafkas: str, links: set[frozenset[str]]) -> Sites:
    """Return sites a, b, c …, each in the Kafka that `kafkas` names in its place."""
    connections = {name: Connection(f"k{kafka}:1") for name, kafka in zip(NAMES, kafkas, strict=False)}
    return Sites(mode, "a" if mode == "hub" else None, "micro-batch", connections, frozenset(links))


def ways(sites: Sites, origin: str) -> list[str]:
    """Return the directions that carry an origin's casts, between different Kafkas."""
    found = []
    for direction in sites.directions():
        source, target = direction
        at_target = {name for name in sites.connections if sites.shares_kafka(name, target)}
        if source not in at_target and is_entrance(sites, direction, origin, at_target):
            found.append(str(direction))
    return found


def pairs(*links: str) -> set[frozenset[str]]:
    return set(map(frozenset, links))


FULL = pairs("ab", "ac", "bc")


@pytest.mark.parametrize(
    ("mode", "kafkas", "links", "carried"),
    [
        ("hub", "123", pairs("ab", "ac"), {"a": ["a-b", "a-c"], "b": ["a-c", "b-a"], "c": ["a-b", "c-a"]}),
        # Sites that share a Kafka get each cast once, and their own casts do not come back to it.
        ("hub", "122", pairs("ab", "ac"), {"a": ["a-b"], "b": ["b-a"], "c": ["c-a"]}),
        ("hub", "112", pairs("ab", "ac"), {"a": ["a-c"], "b": ["a-c"], "c": ["c-a"]}),
        ("isis", "123", FULL, {"a": ["a-b", "a-c"], "b": ["b-a", "b-c"], "c": ["c-a", "c-b"]}),
        ("isis", "112", FULL, {"a": ["a-c"], "b": ["b-c"], "c": ["c-a"]}),
        ("mesh", "123", pairs("ab", "bc"), {"a": ["a-b", "b-c"], "b": ["b-a", "b-c"], "c": ["b-a", "c-b"]}),
        ("mesh", "121", pairs("ab", "bc"), {"a": ["a-b"], "b": ["b-a"], "c": ["c-b"]}),
    ],
)
def test_who_carries_what(
    mode: Mode, kafkas: str, links: set[frozenset[str]], carried: Mapping[str, list[str]]
) -> None:
    sites = deployment(mode, kafkas, links)
    assert {origin: ways(sites, origin) for origin in sites.connections} == carried


@given(
    st.lists(st.sampled_from("1234"), min_size=4, max_size=4),
    st.sets(st.sampled_from(["ab", "ac", "ad", "bc", "bd", "cd"]), min_size=1),
)
def test_each_kafka_has_one_entrance_and_nothing_goes_round(kafkas: list[str], links: set[str]) -> None:
    """Each Kafka gets the casts by one path from the original, however the sites are linked and share Kafkas."""
    sites = deployment("mesh", "".join(kafkas), pairs(*links))
    kafka_of = dict(zip(NAMES, kafkas, strict=True))
    for origin in NAMES:
        made_from: dict[str, str] = {}
        for way in ways(sites, origin):
            source, _, target = way.partition("-")
            assert kafka_of[target] not in made_from, f"{origin}: two fill {kafka_of[target]}"
            made_from[kafka_of[target]] = kafka_of[source]
        assert kafka_of[origin] not in made_from
        reachable = {kafka_of[name] for name in NAMES if sites.distance(name, origin) is not None}
        assert {*made_from, kafka_of[origin]} == reachable
        for kafka in made_from:
            seen = [kafka]
            while seen[-1] in made_from:
                seen.append(made_from[seen[-1]])
                assert len(seen) <= len(NAMES), f"{origin}: {seen} is a circle"
            assert seen[-1] == kafka_of[origin]


def test_what_is_to_be_carried_is_found_in_one_look() -> None:
    """With a thousand groups, a look at the other Kafka's topics for each topic here would cost a second."""
    sites = deployment("isis", "12", pairs("ab"))
    job: Any = Casts(sites, Direction("a", "b"))
    job.is_apart = True
    groups = [f"g{number}" for number in range(20)]
    there = [Topic(group, "data", "b") for group in groups]
    with patch.object(job.target_finder, "find", return_value=there) as find:
        selected = job.select_topics([Topic(group, "cast", site) for group in groups for site in "ab"])
    assert selected == {group: [str(Topic(group, "cast", "a"))] for group in groups}
    assert find.call_count <= 2


def test_a_copy_that_lacks_what_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    """The relay stops where the copy tells its end, and warns where retention has dropped that, too."""
    sites = deployment("isis", "12", pairs("ab"))
    job: Any = Casts(sites, Direction("a", "b"))
    there = job.target = MemoryConnection()
    topic = Topic("g", "cast", "a")
    place = TopicPartition(str(topic), 0)
    there.create("g", "a")

    def first(beginning: int) -> int:
        copy = last_copy(there, str(topic), 0, Source(f"a/{topic}", 0, 0))
        position = copy.made_from + 1 if copy is not None else 0
        return int(job.first_to_carry(place, position, beginning))

    assert (first(0), first(40)) == (0, 40)
    assert not caplog.records, "the copy is new"
    header = [("abcast", f"2 fifo 7 1 - - - a/{topic}-0:9".encode())]
    there.topics.append(place, b"a/m", b"", header)
    assert first(10) == 10
    with pytest.raises(HistoryUnavailable, match="b lacks offsets 10 to 39"):
        first(40)
    there.drop(topic)
    assert first(0) == 0
    assert not caplog.records
    assert first(40) == 40
    [record] = caplog.records
    assert "dropped offsets 0 to 39" in record.getMessage()


def test_a_hole_in_one_copy_stops_no_other_group(monkeypatch: pytest.MonkeyPatch) -> None:
    sites = deployment("isis", "12", pairs("ab"))
    job: Any = Casts(sites, Direction("a", "b"))
    here, there = job.source, job.target = MemoryConnection(), MemoryConnection()
    for needs_a_broker in ("ensure_topic", "check_may"):
        monkeypatch.setattr(f"connectors.relay.relay.{needs_a_broker}", lambda *_: None)
    topics = [Topic(group, "cast", "a") for group in "gh"]
    for kafka in (here, there):
        for topic in topics:
            kafka.create(topic.group, "a")
    there.topics.append(
        TopicPartition(str(topics[0]), 0), b"a/m", b"", [("abcast", f"2 fifo 7 1 - - - a/{topics[0]}-0:9".encode())]
    )
    for _ in range(40):
        here.topics.append(TopicPartition(str(topics[0]), 0), b"a/m", b"", [("abcast", b"2 fifo 7 1 - - -")])
    here.topics.drop(str(topics[0]), 40)
    with pytest.raises(UnservableGroups) as unservable:
        job.positions(topics)
    assert {group: type(error) for group, error in unservable.value.errors.items()} == {"g": HistoryUnavailable}
    assert job.positions(topics[1:]) == {TopicPartition(str(topics[1]), 0): 0}
    with pytest.raises(HistoryUnavailable, match="b lacks offsets 10 to 39"):
        job.positions(topics[:1])
