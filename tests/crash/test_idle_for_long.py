"""An idle group on a real broker for ten minutes: files, threads, log lines and bytes stay flat."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from kafka.structs import TopicPartition

from connectors.kafka.connection.backlog import partition_bytes
from ordering.base.names import Topic
from tests.crash.processes import Process
from tests.crash.scenario import Scenario

pytestmark = [pytest.mark.crash, pytest.mark.broker, pytest.mark.soak]

MINUTES = 10.0
WARM_MINUTES = 0.5
HEARTBEAT_BYTES = 200
"""Bytes of a member's heartbeat, or of a tick, with Kafka's for a batch of one."""


class Sample(NamedTuple):
    """Open files, threads and lines of the job; threads of this process; bytes of Kafka's topics."""

    files: int
    threads: int
    said: int
    own_threads: int
    decided: int
    forward: int


def sample(scenario: Scenario, job: Process) -> Sample:
    proc = Path(f"/proc/{job.pid}")
    places = {role: TopicPartition(str(Topic(scenario.group, role, scenario.site)), 0) for role in ("data", "forward")}
    places["epoch"] = TopicPartition(str(Topic(scenario.group, "epoch", scenario.site)), 0)
    with scenario.connection.admin() as admin:
        sizes = partition_bytes(admin, places.values())
    return Sample(
        len(list((proc / "fd").iterdir())),
        len(list((proc / "task").iterdir())),
        job.err.stat().st_size,
        threading.active_count(),
        sizes[places["data"]] + sizes[places["epoch"]],
        sizes[places["forward"]],
    )


@pytest.mark.timeout(60 * MINUTES + 300)
def test_ten_idle_minutes_on_a_broker(scenario: Scenario) -> None:
    """A member joins and stays silent: FORWARD gets its heartbeats and ticks, and nothing else grows."""
    scenario.engine = "process"
    job = scenario.sequencer()
    alice = scenario.member("alice")
    alice.connect()
    assert alice.broadcast(b"x").result(60)
    time.sleep(60 * WARM_MINUTES)
    before, began = sample(scenario, job), time.monotonic()
    time.sleep(60 * (MINUTES - WARM_MINUTES))
    after, took = sample(scenario, job), time.monotonic() - began
    print(f"in {took:.0f} s: from {before} to {after}")
    assert job.running()
    assert after.decided == before.decided
    assert after.files <= before.files + 2
    assert after.threads <= before.threads + 2
    assert after.own_threads <= before.own_threads + 2
    assert after.said == before.said, job.stderr()
    assert after.forward - before.forward <= 4 * HEARTBEAT_BYTES * took
