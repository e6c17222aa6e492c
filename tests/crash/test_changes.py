"""Changes under a running sequencer: partitions, groups, clocks, the space on its disk, a signal to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors import Member
from connectors.kafka.topics.topics import create_topics
from ordering.base.names import Topic
from ordering.base.records import MessageId
from tests.crash.processes import Process
from tests.crash.scenario import Scenario
from tests.waiting import WAIT, eventually

pytestmark = [pytest.mark.crash, pytest.mark.broker]

HOUR_MS = 3_600_000


@pytest.mark.long
@pytest.mark.usefixtures("on_either_engine")
@pytest.mark.timeout(300)
def test_partitions_groups_and_clocks(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward partition is added, a group created, producers' clocks are off by an hour: all is ordered."""
    loads = [scenario.load(name) for name in ("alice", "bob", "carol")]
    observer = scenario.observer("olga")
    process = scenario.sequencer()
    observer.wait(30)

    with scenario.connection.admin() as admin:
        admin.create_partitions({str(Topic(scenario.group, "forward", scenario.site)): 3})
    eventually(lambda: len(scenario.forward_ends()) == 3, 10, "three partitions")
    # A client hears of it within five minutes, or when it has to connect anew, as here: a sender may change its
    # partition in mid-stream, and its messages stay in order all the same.
    for load in loads:
        forwarder = load.member._sending.forwarder
        assert forwarder is not None
        forwarder._send_queue.sending.note_failure(ConnectionError("pretended by the test"))
    loads += [scenario.load(name) for name in ("dave", "erin", "frank")]
    eventually(lambda: sum(end > 0 for end in scenario.forward_ends().values()) >= 2, 30, "two of them are in use")
    scenario.probe()

    late_group = f"{scenario.group}-late"
    create_topics(scenario.connection, late_group, [scenario.site])
    with Member(late_group, scenario.address("zoe"), connection=scenario.connection) as zoe:
        assert zoe.broadcast(b"first").result(WAIT) == 1

    sent: list[MessageId] = []
    now_ms = time.time_ns() // 1_000_000
    for name, shift_ms in (("ahead", HOUR_MS), ("behind", -HOUR_MS)):
        for local_seqno in (1, 2):
            sent.append(MessageId(scenario.address(name), 1, local_seqno))
            scenario.write_forward(sent[-1], f"clock {name}".encode(), now_ms + shift_ms)
    sent += restart_with_the_clock_set_back(scenario, monkeypatch)

    for load in loads:
        sent += load.finish(90)
    sent += scenario.probes
    assert scenario.verify(sent, {"olga": observer.wait(len(sent))}) == len(sent)
    for data in scenario.effective():
        if data.payload.startswith(b"clock "):
            assert abs(data.forwarded_at_ms - now_ms) < HOUR_MS / 6, "the broker's clock, not the producer's"
    sources = [data.source for data in scenario.effective() if data.source is not None]
    assert {source.partition for source in sources} > {0}, "messages came through a new partition"

    # As a terminal's Ctrl-C does it: to the whole process group.
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait_exit(30) == 0
    process.assert_no_stack_trace()


def restart_with_the_clock_set_back(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> list[MessageId]:
    """A member starts with its clock an hour ahead, then, as it really is, an hour earlier: a new incarnation still."""
    real = time.time_ns
    sent = []
    with monkeypatch.context() as clock, scenario.member("chris") as ahead:
        clock.setattr(time, "time_ns", lambda: real() + HOUR_MS * 1_000_000)
        receipts = [ahead.broadcast(b"%d" % number) for number in range(5)]
        receipts[-1].result(WAIT)
        sent += [receipt.message_id for receipt in receipts]
    with scenario.member("chris") as back:
        receipts = [back.broadcast(b"%d" % number) for number in range(5)]
        receipts[-1].result(WAIT)
        sent += [receipt.message_id for receipt in receipts]
    assert sent[0].incarnation > real() // 1_000_000 + HOUR_MS / 2
    assert sent[-1].incarnation > sent[0].incarnation
    return sent


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of 3 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Fill the file system."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as out:
        try:
            while out.write(b"x" * 4096):
                pass
        except OSError:
            pass
    return filler


def assert_disk_full(process: Process) -> None:
    """Assert that the process ends with 1 and a sentence that says what to do."""
    assert process.wait_exit(90) == 1
    last = process.stderr().splitlines()[-1]
    assert last.startswith("abcast: ")
    assert "full: free some space" in last
    assert "Traceback" not in process.stderr()


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_full_disk(small_disk: Path, scenario: Scenario) -> None:
    """The job stops with one clear sentence, refuses to start on a full disk, and goes on when there is space."""
    load = scenario.load("alice")
    observer = scenario.observer("olga")
    data = small_disk / "data"
    running = scenario.sequencer(data)
    observer.wait(30)
    filler = fill(small_disk)
    assert_disk_full(running)
    assert_disk_full(scenario.sequencer(data, ready=False))
    filler.unlink()
    scenario.sequencer(data)
    sent = load.finish()
    assert scenario.verify(sent, {"olga": observer.wait(len(sent))}) == len(sent)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_stop_signals(scenario: Scenario) -> None:
    """SIGTERM to all its processes stops `abcast run` in order under load, and leaves nothing behind while it starts.

    All other tests stop a job by a signal to its first process alone. What the stopped one left in DATA, another
    sequencer goes on from; that a ledger job goes on is for `tests/crash/test_ledger.py`.
    """
    early = scenario.job("run", ready=False)
    early.wait_for("starting Spark")
    eventually(lambda: early.members("java"), 30, "a JVM")
    early.stop(60, all_at_once=True)

    load = scenario.load("alice", threads=2)
    observer = scenario.observer("olga")
    process = scenario.job("run")
    observer.wait(30)
    load.burst(3000)
    asked_at = time.monotonic()
    process.stop(all_at_once=True)
    print(f"stopped {time.monotonic() - asked_at:.1f} s after SIGTERM")
    checkpoints = [path for path in (scenario.data / "checkpoints").rglob("*") if path.is_file()]
    assert checkpoints == [], "a stop in order leaves no checkpoint"
    scenario.engine = "process"
    scenario.sequencer()
    sent = load.finish()
    assert scenario.verify(sent, {"olga": observer.wait(len(sent))}) == len(sent)
