"""Brokers: killed and restarted under load, and a cluster restarted node by node."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from connectors.local.broker import EmbeddedBroker
from tests.crash.conftest import MakeScenario
from tests.crash.scenario import Scenario
from tests.waiting import eventually

pytestmark = [pytest.mark.crash, pytest.mark.broker]


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
    broker.start_node()
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
@pytest.mark.timeout(300)
def test_rolling_restart_of_three(tmp_path: Path, make_scenario: MakeScenario) -> None:
    """Replication 3, min.insync.replicas 2: each node in turn is stopped and started, under load."""
    with EmbeddedBroker(tmp_path / "cluster", port=0, nodes=3) as cluster:
        scenario = make_scenario(cluster.bootstrap_servers, copies=3)
        loads = [scenario.load("alice"), scenario.load("bob", threads=2)]
        observer = scenario.observer("olga")
        process = scenario.sequencer()
        observer.wait(30)
        for node in range(3):
            last = observer.taken[-1].seqno
            cluster.stop_node(node)
            down_at = time.monotonic()
            cluster.start_node(node)
            eventually(lambda: in_sync(scenario), 60, f"all replicas are in sync after node {node} came back", 0.3)
            observer.wait(last + 50, 120)
            print(f"node {node}: restarted and in sync, deliveries went on, {time.monotonic() - down_at:.1f} s")
        assert process.running()
        sent = [message for load in loads for message in load.finish(120)]
        assert scenario.verify(sent, {"olga": observer.wait(len(sent))}) == len(sent)
        scenario.close()


def in_sync(scenario: Scenario) -> bool:
    """Whether every partition of our topics has three in-sync replicas: what a careful operator waits for."""
    with scenario.connection.admin() as admin:
        topics = admin.describe_topics([name for name in admin.list_topics() if name.startswith("abcast.")])
    return all(len(partition["isr_nodes"]) == 3 for topic in topics for partition in topic["partitions"])
