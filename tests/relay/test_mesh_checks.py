"""A mesh's relay beside its copies, in a Kafka in memory: heartbeats of all groups, and a look at each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka.structs import OffsetAndMetadata, TopicPartition

from connectors.kafka.codec.codec import decode_forward, encode_data
from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.groups.unservable_groups import UnservableGroups
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.sign_of_life import group_id
from connectors.relay import mesh
from connectors.relay.mesh import LOOK_EVERY_S, LOOK_FOR_S, Carried, LinkStalled, MeshData
from connectors.relay.spark.job import SparkRelay
from connectors.spark.job import JobOptions
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.errors import (
    AbcastError,
    BrokerUnreachable,
    HistoryUnavailable,
    KafkaRefused,
    LaterVersion,
    TopicMissing,
    UsageError,
)
from ordering.base.formats import Format
from ordering.base.names import Role, Topic
from ordering.base.records import EPOCH, HEARTBEAT, VIEW, Data, Forward, Source
from ordering.sequencer.sequencer import seal
from tests.relay.carrying import relays_in_memory

OPEN_S = 0.2
"""The seconds that it takes to open a log."""
VIEWED = Data(
    VIEW,
    1,
    1,
    1,
    payload=json.dumps({"members": [["far/a", 1]], "joined": [], "left": [], "suspected": [], "flush": 0}).encode(),
)


class Link:
    """A relay from `far` to `here`, all of whose copies are ordered, and a clock that only slow logs move."""

    def __init__(self, *groups: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.far, self.here, self.now = MemoryConnection(), MemoryConnection(), 1_000.0
        self.looked: list[str] = []
        for group in groups:
            self.far.create(group, "far")
            self.here.create(group, "here")
            self.here.topics.partitions[self.relayed(group)] = []
            self.write(group, seal(1), VIEWED)
        monkeypatch.setattr(mesh, "time", SimpleNamespace(monotonic=lambda: self.now))
        ends = {"far": self.far, "here": self.here}
        links = frozenset([frozenset(ends)])
        self.relay = MeshData(Sites("mesh", None, "micro-batch", ends, links), Direction("far", "here"))
        self.copied: dict[TopicPartition, int] = {}
        self.relay.begin(lambda: self.copied)
        positions = self.relay.positions([Topic(group, "data", "far") for group in groups])
        self.copied = dict.fromkeys(positions, 1)  # the seal: the neighbour lacks the view

        def opened(connection: MemoryConnection, group: str, site: str) -> DataLog:
            self.now += OPEN_S
            if connection is self.here:
                self.looked.append(group)
            return DataLog(connection, group, site)

        monkeypatch.setattr(mesh, "DataLog", opened)
        self.relay.check()
        self.now += LOOK_EVERY_S
        self.relay.check()
        assert not self.looked, "nothing was carried before"
        self.now += LOOK_EVERY_S

    def relayed(self, group: str) -> TopicPartition:
        return TopicPartition(str(Topic(group, "relayed", "here", "far")), 0)

    def write(self, group: str, *records: Data) -> None:
        producer = self.far.producer()
        for record in records:
            key, value, headers = encode_data(record)
            producer.send(str(Topic(group, "data", "far")), key=key, value=value, headers=headers, partition=0)

    def beats(self, group: str) -> int:
        """Return the number of heartbeats so far."""
        place = self.relayed(group)
        found = [
            decode_forward(Source(place.topic, 0, each.offset), each.key, each.value, each.headers, each.timestamp)
            for each in self.here.topics.partitions[place]
        ]
        return sum(isinstance(each, Forward) and each.kind == HEARTBEAT for each in found)


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Link]]:
    with relays_in_memory():
        yield lambda *groups: Link(*groups, monkeypatch=monkeypatch)


def test_heartbeats_go_on_while_many_groups_are_looked_at(link: Callable[..., Link]) -> None:
    """Silence for longer than `suspect_after_ms` makes the neighbour suspect all members at this site."""
    groups = [f"g{number}" for number in range(30)]
    one = link(*groups)
    while len(one.looked) < len(groups):
        began, beats = one.now, one.beats("g0")
        one.relay.check()
        assert one.now - began <= LOOK_FOR_S + 2 * OPEN_S
        assert one.beats("g0") == beats + 1
    assert sorted(one.looked) == sorted(groups)
    one.relay.check()
    assert len(one.looked) == len(groups), "the next look has its time"
    one.now += LOOK_EVERY_S
    one.relay.check()
    assert len(one.looked) > len(groups)


def more_partitions(one: Link) -> None:
    one.here.topics.partitions[TopicPartition("abcast.b.data.here", 1)] = []


def missing(one: Link) -> None:
    one.here.topics.delete("abcast.b.data.here")


def later_version(one: Link) -> None:
    key, value, headers = encode_data(Data(EPOCH, 2, format=Format(999, "9.8.7")))
    one.here.producer().send("abcast.b.data.here", key=key, value=value, headers=headers, partition=0)


def dropped(one: Link) -> None:
    one.far.drop(Topic("b", "data", "far"))


@pytest.mark.parametrize(
    ("harm", "kind"),
    [
        (more_partitions, UsageError),
        (missing, TopicMissing),
        (later_version, LaterVersion),
        (dropped, HistoryUnavailable),
    ],
)
def test_an_error_of_one_group_is_no_error_of_the_others(
    link: Callable[..., Link], harm: Callable[[Link], None], kind: type[AbcastError]
) -> None:
    one = link("a", "b", "c")
    harm(one)
    with pytest.raises(UnservableGroups) as raised:
        one.relay.check()
    assert raised.value.errors.keys() == {"b"}
    assert isinstance(raised.value.errors["b"], kind)
    assert {"a", "c"} <= set(one.looked)
    one.relay.drop("b")
    one.now += LOOK_EVERY_S
    one.relay.check()


def test_a_group_that_may_not_be_written_begins_no_session(
    link: Callable[..., Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right is missing at its relayed topic alone."""
    one = link("a", "b", "c")

    def check(connection: MemoryConnection, operation: str, topics: list[Topic]) -> None:
        assert (connection, operation) == (one.here, "WRITE")
        if topics == [Topic("b", "relayed", "here", "far")]:
            raise KafkaRefused("no right")

    monkeypatch.setattr(mesh, "check_may", check)
    with pytest.raises(UnservableGroups) as raised:
        one.relay.positions([Topic(group, "data", "far") for group in "abc"])
    assert raised.value.errors.keys() == {"b"}
    with pytest.raises(KafkaRefused):
        one.relay.try_again("b")


def test_a_group_whose_session_can_t_begin_ends_no_other_group(link: Callable[..., Link]) -> None:
    """Its topic has too few replicas, so only a write tells."""
    one = link("a", "b", "c")
    one.here.topics.refusals[one.relayed("b").topic] = 1
    with pytest.raises(UnservableGroups) as raised:
        one.relay.positions([Topic(group, "data", "far") for group in "abc"])
    assert {group: type(error) for group, error in raised.value.errors.items()} == {"b": BrokerUnreachable}


@pytest.mark.parametrize("role", ["data", "epoch", "relayed"])
@pytest.mark.parametrize("site", ["far", "here"])
def test_a_log_without_a_leader_is_not_asked(link: Callable[..., Link], role: Role, site: str) -> None:
    """A look at it would hold up the heartbeats of all groups."""
    one = link("a", "b")
    topic = Topic("b", role, site, "far" if role == "relayed" else "")
    finder: Any = SimpleNamespace(leaderless=lambda: [topic])
    nothing: Any = SimpleNamespace(leaderless=list)
    one.relay.finder, one.relay.target_finder = (finder, nothing) if site == "far" else (nothing, finder)
    found = one.relay.leaderless({group: [f"abcast.{group}.data.far"] for group in "ab"})
    assert list(found) == ([] if (role, site) == ("relayed", "far") else ["b"])


def test_a_heartbeat_that_one_group_prevents_is_written_for_the_others(
    link: Callable[..., Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = link("a", "b", "c")

    def look() -> None:
        raise LaterVersion("it is too new")

    presence: Any = one.relay._presence
    monkeypatch.setattr(presence._groups["b"], "look", look)
    beats = one.beats("c")
    with pytest.raises(UnservableGroups, match="it is too new") as raised:
        one.relay.check()
    assert raised.value.errors.keys() == {"b"}
    assert one.beats("c") == beats + 1


def stalled(one: Link) -> set[str]:
    """Return the groups whose sessions a check ends."""
    errors: Mapping[str, AbcastError] = {}
    try:
        one.relay.check()
    except UnservableGroups as unservable:
        errors = unservable.errors
    assert all(isinstance(error, LinkStalled) for error in errors.values())
    return set(errors)


def test_records_that_are_not_ordered_end_the_session_of_their_group(link: Callable[..., Link]) -> None:
    """The patience with another group does not grow by that."""
    one = link("a", "b")
    for group in "ab":
        topic = Topic(group, "data", "far")
        one.copied[TopicPartition(str(topic), 0)] = 2
        one.now += LOOK_EVERY_S
        one.relay.check()
        one.now += LOOK_EVERY_S
        with pytest.raises(UnservableGroups, match=f"group {group}: here has not ordered the records") as raised:
            one.relay.check()
        assert raised.value.errors.keys() == {group}
        assert isinstance(raised.value.errors[group], LinkStalled)
        one.copied[TopicPartition(str(topic), 0)] = 1
        one.relay.drop(group)
        one.relay.positions([topic])


def test_groups_that_stall_together_begin_anew_together(link: Callable[..., Link]) -> None:
    """A query on Spark begins anew with each."""
    groups = [f"g{number}" for number in range(30)]
    one = link(*groups)
    one.copied = dict.fromkeys(one.copied, 2)
    told: list[set[str]] = []
    while not told:
        for _ in groups:
            told += filter(None, [stalled(one)])
        one.now += LOOK_EVERY_S
    assert told == [set(groups)]


def test_groups_that_stall_cost_a_query_on_spark_one_start(link: Callable[..., Link], tmp_path: Path) -> None:
    """Otherwise it would begin anew without them, and then with them. Beside an error of another kind it does."""
    one, no_spark = link("a", "b"), cast("Any", None)
    options = JobOptions(one.far, "far", tmp_path)
    job = SparkRelay(no_spark, options, MeshData, one.relay.sites, one.relay.direction)
    job.relay = one.relay
    for session in one.relay._sessions.values():
        session.carried = Carried(2, 1_000)
    with pytest.raises(LinkStalled, match=r"group [ab]: here.*\ngroup [ab]: here"):
        job.check()
    missing(one)
    one.now += 2 * LOOK_EVERY_S
    with pytest.raises(UnservableGroups) as raised:
        job.check()
    assert {group: type(error) for group, error in raised.value.errors.items()} == {"a": LinkStalled, "b": TopicMissing}


def stalls(one: Link) -> bool:
    return bool(stalled(one))


def test_the_patience_with_a_neighbour_that_is_away_doubles(link: Callable[..., Link]) -> None:
    """Each new session carries all that is not ordered once more."""
    one, place = link("a"), TopicPartition("abcast.a.data.far", 0)
    one.copied[place] = 2
    lasted = []
    for _ in range(3):
        one.relay.begin(lambda: one.copied)
        one.relay.positions([Topic("a", "data", "far")])
        began = one.now
        while not stalls(one):
            one.now += LOOK_EVERY_S
        lasted.append(one.now - began)
    assert lasted == pytest.approx([60, 60, 120], abs=5)


def test_the_patience_with_a_group_that_is_deleted_is_forgotten(link: Callable[..., Link]) -> None:
    one = link("a", "b")
    one.relay._patience_s = {"a": 60.0, "b": 60.0}
    one.relay._sessions["a"].carried = Carried(2, 1_000)  # it is behind
    one.relay.drop("b")
    one.far.topics.delete(str(Topic("b", "data", "far")))
    assert stalled(one) == {"a"}
    assert one.relay._patience_s == {"a": 120.0}


class Behind:
    """A neighbour that is behind, and signs."""

    def __init__(self, one: Link) -> None:
        self.one, self.place = one, one.relayed("a")
        one.copied[TopicPartition("abcast.a.data.far", 0)] = 2
        one.relay._sessions["a"].carried = Carried(2, self.end)

    @property
    def end(self) -> int:
        return len(self.one.here.topics.partitions[self.place])

    def stalls_at(self, considered: int) -> bool:
        """Whether a look, 30 s later, ends the attempt. The neighbour's DATA grows, and so do the copies."""
        metadata = self.one.here.metadata_client()
        metadata.commit(group_id("here"), {self.place: OffsetAndMetadata(considered, "", -1)}, 1.0)
        key, value, headers = encode_data(seal(2))
        self.one.here.producer().send("abcast.a.data.here", key=key, value=value, headers=headers, partition=0)
        self.one.now += LOOK_EVERY_S
        return stalls(self.one)


def test_a_neighbour_that_works_off_its_copies_gets_them_once(link: Callable[..., Link]) -> None:
    one = link("a")
    behind = Behind(one)
    for _ in range(100):
        one.here.producer().send(behind.place.topic, value=b"", partition=0)
    end = behind.end
    one.relay._sessions["a"].carried = Carried(2, end)
    assert not any(behind.stalls_at(considered) for considered in range(end - 50, end))
    assert not one.relay._patience_s
    assert not behind.stalls_at(end), "its decisions may be on their way"
    assert behind.stalls_at(end)


def test_a_neighbour_that_considers_no_more_is_told_again(link: Callable[..., Link]) -> None:
    """Its sequencer is gone, or orders records of its own site and can't read the copies."""
    behind = Behind(link("a"))
    assert not behind.stalls_at(0)
    assert behind.stalls_at(0)


def test_copies_that_were_cut_are_all_considered_soon(link: Callable[..., Link]) -> None:
    one = link("a")
    behind = Behind(one)
    one.relay._sessions["a"].carried = Carried(2, behind.end + 10_000)
    assert not behind.stalls_at(behind.end)
    assert not behind.stalls_at(behind.end)
    assert behind.stalls_at(behind.end)
