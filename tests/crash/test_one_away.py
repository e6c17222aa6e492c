"""A broker that has the only copy of one group dies: the other group, with three copies, goes on, and both do later."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from connectors import Member
from connectors.kafka.topics.topics import create_topics
from connectors.local.broker import EmbeddedBroker
from ordering.base.names import Topic
from tests.crash.conftest import MakeScenario
from tests.waiting import eventually

pytestmark = [pytest.mark.crash, pytest.mark.broker, pytest.mark.soak]

WITHIN_S = {"process": 40.0, "spark": 90.0}
"""Seconds by engine: Kafka notices a dead broker within ten seconds, and a loaded machine takes longer."""
LATER_S = 10.0


@pytest.mark.parametrize("engine", ["process", "spark"])
@pytest.mark.timeout(500)
def test_the_broker_with_the_only_copy(tmp_path: Path, make_scenario: MakeScenario, engine: str) -> None:
    with EmbeddedBroker(tmp_path / "cluster", port=0, nodes=3) as cluster:
        scenario = make_scenario(cluster.bootstrap_servers, copies=3)
        scenario.engine, alone = engine, f"alone-{scenario.group}"
        create_topics(scenario.connection, alone, [scenario.site], 1, 1)
        process = scenario.sequencer()
        alice = scenario.member("alice")
        bob = Member(alone, scenario.address("bob"), connection=scenario.connection)
        assert alice.broadcast(b"x").result(WITHIN_S[engine]) == 1
        assert bob.broadcast(b"x").result(WITHIN_S[engine]) == 1
        with scenario.connection.admin() as admin:
            [data] = admin.describe_topics([str(Topic(alone, "data", scenario.site))])
        node = data["partitions"][0]["leader_id"]
        cluster.kill(node)
        receipt = bob.broadcast(b"y")
        for number in range(4):
            started = time.monotonic()
            alice.broadcast(b"x").result(WITHIN_S[engine])
            took = time.monotonic() - started
            print(f"{engine}: ordered after {took:.2f} s, without the broker")
            assert number < 2 or took < LATER_S, "it was to wait once"
        assert process.running()
        process.stop()
        again = scenario.sequencer()
        alice.broadcast(b"x").result(WITHIN_S[engine])
        cluster.start()
        eventually(receipt.done, 3 * WITHIN_S[engine], "what waited is ordered")
        assert receipt.result() == 2
        alice.broadcast(b"x").result(WITHIN_S[engine])
        assert again.running()
        bob.close(timeout=0)
        scenario.close()
