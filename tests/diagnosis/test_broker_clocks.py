"""Clocks of brokers, by the times of records on a Kafka in memory with two brokers."""

from __future__ import annotations

import pytest
from kafka.structs import TopicPartition

from connectors.diagnosis import broker_clocks
from connectors.diagnosis.broker_clocks import BrokerClocks, ClockDifference
from connectors.diagnosis.statuses import Statuses
from connectors.testing.memory_clients import MemoryConsumer
from connectors.testing.memory_kafka import MemoryConnection

SITE = "nyc"
FORWARD, DATA = (f"abcast.g.{role}.{SITE}" for role in ("forward", "data"))


class Brokers:
    """Broker 0 leads FORWARD, broker 1 leads DATA. `now`: the true time. `ahead_s`: what the clocks show beyond it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(broker_clocks, "LOOK_EVERY_S", 0.0)
        self.connection = MemoryConnection()
        self.connection.create("g", SITE)
        self.connection.topics.leaders[DATA] = 1
        self.now, self.ahead_s = 1_764_000_000.0, {FORWARD: 0.0, DATA: 0.0, "here": 0.0}
        self.clocks = BrokerClocks(self.connection, lambda: self.now + self.ahead_s["here"])

    def write(self, *topics: str) -> None:
        for topic in topics:
            self.connection.topics.clock = lambda: self.now + self.ahead_s[topic]  # noqa: B023 - used at once
            self.connection.producer().send(topic, value=b"x")

    def told(self, *topics: str, step_s: float = 0.5) -> ClockDifference | None:
        """Compare twice; between the looks these topics get a record each."""
        self.clocks.compare(["g"], SITE)
        self.now += step_s
        self.write(*topics)
        self.now += step_s
        return self.clocks.compare(["g"], SITE)


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    return Brokers(monkeypatch)


def test_one_is_ahead_of_the_other(brokers: Brokers) -> None:
    """The difference is told up to the time between the looks, and never more than it is."""
    brokers.ahead_s |= {FORWARD: 30.0, DATA: -20.0}
    told = brokers.told(FORWARD, DATA)
    assert told is not None
    assert told[:2] == ("broker 0", "broker 1")
    assert 48.9 <= told.at_least_s <= 50.0
    assert Statuses((), clocks=told).to_json(SITE)["wrong"] == [
        "the clock of broker 0 is 49 s or more ahead of the clock of broker 1: set both by NTP"
    ]


def test_clocks_that_agree_differ_by_nothing(brokers: Brokers) -> None:
    """However long nobody looked."""
    for step_s in (0.0, 0.5, 600.0):
        told = brokers.told(FORWARD, DATA, step_s=step_s)
        assert told is not None
        assert told.at_least_s == 0.0
        assert Statuses((), clocks=told).to_json(SITE)["wrong"] == []


def test_a_record_that_is_not_shown_yet(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A right clock stamped it before the first look, and a follower that hung kept it from being shown."""
    brokers.connection.topics.copies[FORWARD] = (3, 3)
    brokers.write(FORWARD)
    brokers.now += 40
    with monkeypatch.context() as patch:
        patch.setattr(MemoryConsumer, "_end", lambda *_: 0)
        assert brokers.clocks.compare(["g"], SITE) is None
    told = brokers.clocks.compare(["g"], SITE)
    assert told is not None
    assert told.at_least_s == 0.0
    brokers.ahead_s[FORWARD] = -60.0
    told = brokers.told(FORWARD)
    assert told is not None
    assert told.behind == "broker 0"
    assert 14.4 <= told.at_least_s <= 15.0


def test_this_machine_is_one_of_them(brokers: Brokers) -> None:
    brokers.ahead_s["here"] = -15.0
    told = brokers.told(FORWARD, DATA)
    assert told is not None
    assert told.behind == "this machine"
    assert 14.4 <= told.at_least_s <= 15.0


def test_what_bounds_nothing(brokers: Brokers) -> None:
    """An idle group, an unwritten one, another leader, and a clock that was set in between."""
    brokers.ahead_s |= {FORWARD: 30.0}
    assert brokers.clocks.compare(["g"], SITE) is None
    assert brokers.told() is None
    told = brokers.told(DATA)
    assert told is not None
    assert told.at_least_s == 0.0
    brokers.clocks.compare(["g"], SITE)
    brokers.write(FORWARD)
    brokers.connection.topics.leaders[FORWARD] = 2
    assert brokers.clocks.compare(["g"], SITE) is None
    brokers.write(FORWARD)
    brokers.ahead_s[FORWARD] += 1000
    brokers.write(FORWARD)
    assert brokers.clocks.compare(["g"], SITE) is None
    assert brokers.told(FORWARD) is not None


def test_a_kafka_that_does_not_answer(brokers: Brokers) -> None:
    """No difference is known then, nor at the next look, which has nothing to compare with."""
    brokers.told(FORWARD, DATA)
    brokers.connection.topics.take_away(FORWARD, "offsets")
    assert brokers.clocks.compare(["g"], SITE) is None
    brokers.connection.topics.bring_back(FORWARD)
    brokers.write(FORWARD)
    assert brokers.clocks.compare(["g"], SITE) is None
    assert brokers.told(FORWARD, DATA) is not None


def test_looks_are_rare(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Askers in between get what the last look told, without a question to Kafka."""
    told = brokers.told(FORWARD)
    monkeypatch.setattr(broker_clocks, "LOOK_EVERY_S", 30.0)
    brokers.connection.topics.partitions.pop(TopicPartition(FORWARD, 0))
    assert brokers.clocks.compare(["g"], SITE) is told
