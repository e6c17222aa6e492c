"""Brokers: killed and restarted under load, and a cluster restarted node by node."""

from __future__ import annotations

import itertools
import json
import signal
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from kafka.structs import TopicPartition

from connectors import Delivery
from connectors.diagnosis.statuses import read_statuses
from connectors.local.broker import EmbeddedBroker
from ordering.base.names import Topic
from tests.crash.conftest import MakeScenario
from tests.crash.scenario import Scenario
from tests.waiting import eventually

pytestmark = [pytest.mark.crash, pytest.mark.broker]

MAX_SILENCE_MS = 45_000
"""Some seconds, on a machine that is idle. By default, Java's admin client alone may wait for a minute."""
PREFERRED = 0
"""The election that makes a partition's first replica its leader."""
HEALTHY = 200
"""Messages that are ordered between two kills."""


@pytest.mark.long
@pytest.mark.usefixtures("on_either_engine")
@pytest.mark.timeout(300)
def test_killed_under_load(scenario: Scenario, broker: EmbeddedBroker) -> None:
    """No acknowledged message is lost; members and sequencer go on by themselves."""
    loads = [scenario.load("alice"), scenario.load("bob", threads=2)]
    observer = scenario.observer("olga")
    process = scenario.sequencer()
    observer.wait(30)
    broker.kill()
    killed_at = time.monotonic()
    time.sleep(2)
    broker.start()
    started_at = time.monotonic()
    observer.wait(observer.taken[-1].seqno + 100, 120)
    print(
        f"the broker was away for {started_at - killed_at:.1f} s; "
        f"100 deliveries later {time.monotonic() - started_at:.1f} s after its return"
    )
    assert process.running()
    sent = [message for load in loads for message in load.finish(120)]
    assert scenario.verify(sent, {"olga": observer.wait(len(sent))}) == len(sent)
    process.stop()


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["spark", "process"])
@pytest.mark.timeout(600)
def test_rolling_restart_of_three(tmp_path: Path, make_scenario: MakeScenario, engine: str) -> None:
    """Replication 3, min.insync.replicas 2: each node in turn is stopped and started, under load.

    It prints how long nothing was ordered.
    """
    with EmbeddedBroker(tmp_path / "cluster", port=0, nodes=3) as cluster:
        scenario = make_scenario(cluster.bootstrap_servers, copies=3)
        scenario.engine = engine
        loads = [scenario.load("alice"), scenario.load("bob", threads=2)]
        observer = scenario.observer("olga")
        process = scenario.sequencer()
        observer.wait(30)
        for node in range(3):
            first, last = len(observer.taken) - 1, observer.taken[-1].seqno
            roles = roles_of_nodes(scenario)
            cluster.kill(node, signal.SIGTERM)
            eventually(lambda: told_behind(scenario) == {(3, 2, 2)}, 60, "status tells the missing replicas", 0.5)
            cluster.start()
            eventually(lambda: in_sync(scenario), 60, f"all replicas are in sync after node {node} came back", 0.3)
            observer.wait(last + 50, 120)
            silence_ms = longest_silence_ms(observer.taken[first:])
            assert silence_ms < MAX_SILENCE_MS
            was = [role for role, of in roles.items() if of == node]
            print(json.dumps({"engine": engine, "restarted": node, "was": was, "silence_ms": silence_ms}))
        assert process.running()
        sent = [message for load in loads for message in load.finish(120)]
        assert scenario.verify(sent, {"olga": observer.wait(len(sent))}) == len(sent)
        scenario.close()


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["spark", "process"])
@pytest.mark.timeout(400)
def test_any_of_three_is_killed(tmp_path: Path, make_scenario: MakeScenario, engine: str) -> None:
    """Each node once with kill -9 under load, the controller first. It prints how long nothing was ordered."""
    with EmbeddedBroker(tmp_path / "cluster", port=0, nodes=3) as cluster:
        scenario = make_scenario(cluster.bootstrap_servers, copies=3)
        scenario.engine = engine
        loads = [scenario.load("alice"), scenario.load("bob", threads=2)]
        observer = scenario.observer("olga")
        process = scenario.sequencer()
        left = {0, 1, 2}
        while left:
            observer.wait(len(observer.taken) + HEALTHY, 120)
            roles = roles_of_nodes(scenario)
            node = roles["controller"] if roles["controller"] in left else min(left)
            left.remove(node)
            first = len(observer.taken) - 1
            cluster.kill(node)
            observer.wait(observer.taken[-1].seqno + HEALTHY, 120)
            cluster.start()
            eventually(lambda: in_sync(scenario), 60, f"all replicas are in sync after node {node} came back", 0.3)
            silence_ms = longest_silence_ms(observer.taken[first:])
            assert silence_ms < MAX_SILENCE_MS
            was = [role for role, of in roles.items() if of == node]
            print(json.dumps({"engine": engine, "killed": node, "was": was, "silence_ms": silence_ms}))
        assert process.running()
        sent = [message for load in loads for message in load.finish(120)]
        assert scenario.verify(sent, {"olga": observer.wait(len(sent))}) == len(sent)
        scenario.close()


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_leader_that_goes_on_as_a_follower(tmp_path: Path, make_scenario: MakeScenario) -> None:
    """A client that asks the former leader, which stays connected, soon finds the new one."""
    with EmbeddedBroker(tmp_path / "cluster", port=0, nodes=3) as cluster:
        scenario = make_scenario(cluster.bootstrap_servers, copies=3)
        place = TopicPartition(str(Topic(scenario.group, "data", scenario.site)), 0)
        eventually(lambda: in_sync(scenario), 60, "all replicas are in sync")
        for transport in ("kafka-python", "confluent"):
            with closing(replace(scenario.connection, transport=transport).consumer()) as consumer:
                assert consumer.end_offsets([place]) == {place: 0}
                former = roles_of_nodes(scenario)["leader of DATA"]
                with scenario.connection.admin() as admin:
                    admin.alter_partition_reassignments({place: [(former + more) % 3 for more in (1, 2, 3)]})
                    admin.elect_leaders(PREFERRED, {place.topic: [place.partition]})
                eventually(lambda: roles_of_nodes(scenario)["leader of DATA"] != former, 30, "another node leads")  # noqa: B023
                assert consumer.end_offsets([place], timeout_ms=20_000) == {place: 0}


def told_behind(scenario: Scenario) -> set[tuple[int, int, int]]:
    """Return the numbers of replicas, of those in sync and of those needed, as `abcast status` tells them."""
    [row] = read_statuses(scenario.connection, scenario.site, group=scenario.group).rows
    return {(each.replicas, each.in_sync, each.least) for each in row.under_replicated}


def roles_of_nodes(scenario: Scenario) -> dict[str, int]:
    """Return the nodes that lead the controllers and DATA."""
    topic = str(Topic(scenario.group, "data", scenario.site))
    with scenario.connection.admin() as admin:
        [data] = admin.describe_topics([topic])
        [quorum] = admin.describe_metadata_quorum()["topics"]
    return {"controller": quorum["partitions"][0]["leader_id"], "leader of DATA": data["partitions"][0]["leader_id"]}


def longest_silence_ms(taken: Sequence[Delivery]) -> int:
    """Return the longest time between two records of DATA, by the broker's time."""
    return max(later.sequenced_at_ms - earlier.sequenced_at_ms for earlier, later in itertools.pairwise(taken))


def in_sync(scenario: Scenario) -> bool:
    """Whether every partition of our topics has three in-sync replicas: a careful operator waits for it."""
    with scenario.connection.admin() as admin:
        topics = admin.describe_topics([name for name in admin.list_topics() if name.startswith("abcast.")])
    return all(len(partition["isr_nodes"]) == 3 for topic in topics for partition in topic["partitions"])
