"""A power failure loses records that Kafka had acknowledged, and no sender sends again: they are ordered all the
same.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import forward_headers
from connectors.takeover.group_maintenance import GroupMaintenance
from connectors.takeover.watchdog import Watchdog
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.names import Topic
from tests.engine.serving import no_rival as no_rival
from tests.engine.serving import serving
from tests.waiting import WAIT, eventually

SITE = "nyc"
DATA = TopicPartition(str(Topic("g", "data", SITE)), 0)
FORWARD = TopicPartition(str(Topic("g", "forward", SITE)), 0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.takeover.watchdog.LOOK_S", 0.1)
    monkeypatch.setattr("connectors.takeover.watchdog.BEHIND_S", 2.0)


def place_of_message(kafka: MemoryConnection) -> int | None:
    log = kafka.topics.partitions[DATA]
    return next((record.offset for record in log if b" message " in record.headers[0][1]), None)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["process", "agreeing"])
@pytest.mark.parametrize("is_counted", [False, True], ids=["at-once", "counted"])
def test_it_is_ordered_again(
    kafka: MemoryConnection, engine: str, is_counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`is_counted`: the watchdog has read the records, and no sign of life tells that DATA had them."""
    may_cut, look, sign = threading.Event(), Watchdog.look, GroupMaintenance.sign

    def looked(watchdog: Watchdog, now: float) -> None:
        look(watchdog, now)
        if watchdog._decided and not watchdog._missing():
            may_cut.set()

    def signed(maintenance: GroupMaintenance, *told: Any) -> None:
        if place_of_message(kafka) is None:
            sign(maintenance, *told)

    monkeypatch.setattr(Watchdog, "look", looked)
    monkeypatch.setattr(GroupMaintenance, "sign", signed)
    if not is_counted:
        may_cut.set()
    with serving(kafka, engine) as job:
        assert job.ready.wait(WAIT)
        kafka.topics.append(FORWARD, b"nyc/a", b"x", forward_headers(1, 1))
        with kafka.topics.changed:
            assert kafka.topics.changed.wait_for(lambda: place_of_message(kafka) is not None, WAIT)
            if not is_counted:
                kafka.topics.truncate(DATA.topic, place_of_message(kafka) or 0)
        if is_counted:
            assert may_cut.wait(WAIT)
            kafka.topics.truncate(DATA.topic, place_of_message(kafka) or 0)
        eventually(lambda: place_of_message(kafka) is not None, 20, "it is ordered again")
