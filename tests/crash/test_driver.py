"""kill -9 of the sequencer, at each place where a batch can be cut; of its Python workers; of half of its driver.

A batch of Spark goes: offset log, compute, write to Kafka, commit log. The test watches the checkpoint and DATA, and
kills; only then do the files tell where the batch was cut.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import decode_forward
from connectors.kafka.topics.upgrade import upgrade
from ordering.base.records import MESSAGES, Forward, MessageId, Source
from tests.crash.checkpoint import Checkpoint
from tests.crash.processes import ROOT, Process
from tests.crash.scenario import Scenario
from tests.crash.sniper import AMID_WRITE, BEFORE_COMMIT, BEFORE_OFFSETS, BEFORE_WRITE, PATIENCE_S
from tests.waiting import WAIT, eventually

pytestmark = [pytest.mark.crash, pytest.mark.broker]

CHANCES = 20
BURST = 6000


@pytest.mark.soak
@pytest.mark.parametrize("packs", [False, True], ids=["single", "packs"])
@pytest.mark.timeout(300)
def test_killed_at_each_window(scenario: Scenario, *, packs: bool) -> None:
    """Members notice nothing but delay; nothing is lost, doubled or renumbered, wherever the batch was cut."""
    if packs:
        upgrade(scenario.connection, scenario.group, scenario.site)
    loads = [scenario.load("alice"), scenario.load("bob", threads=3)]
    heavy = scenario.load("harry", threads=0)
    observer = scenario.observer("olga")
    process = scenario.sequencer()
    for window in (BEFORE_OFFSETS, BEFORE_WRITE, AMID_WRITE, BEFORE_COMMIT):
        observer.wait(len(observer.taken) + 1)
        assert kill_at(window, scenario, process, heavy.burst_of_packs if packs else heavy.burst) == window
        killed_at = time.monotonic()
        last = observer.taken[-1].seqno
        process = scenario.sequencer()
        observer.wait(last + 1)
        print(f"killed {window}: next delivery after {time.monotonic() - killed_at:.1f} s")
    sent = [message for load in (*loads, heavy) for message in load.finish(90)]
    highest = scenario.verify(sent, {"olga": observer.wait(len(sent))})
    assert highest == len(sent)
    assert packs == any(stored.data.kind == MESSAGES for stored in scenario.records())


def kill_at(window: str, scenario: Scenario, process: Process, burst: Callable[[int], None]) -> str:
    """Suspend it when it seems to be there, kill it if it is; return where it was. It gets several chances."""
    checkpoint = Checkpoint(scenario.data)
    eventually(lambda: checkpoint.committed() >= 1, 60, "two batches are committed")
    java, hit = process.java(), ""
    command = (
        *(sys.executable, "-m", "tests.crash.sniper", window, scenario.connection.bootstrap_servers),
        *(scenario.group, scenario.site, str(scenario.data), str(java)),
    )
    for _ in range(CHANCES):
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as sniper:
            assert sniper.stdout is not None
            assert sniper.stdout.readline() == "watching\n"
            if window == AMID_WRITE:
                # So that the write takes its time.
                threading.Thread(target=burst, args=(BURST,), daemon=True).start()
            assert sniper.wait(PATIENCE_S + 10) == 0
        hit = classify(scenario, checkpoint)
        if hit == window:
            break
        os.kill(java, signal.SIGCONT)
    process.kill()
    return hit


def classify(scenario: Scenario, checkpoint: Checkpoint) -> str:
    """Return the place of the cut, by the files and by DATA."""
    batch = checkpoint.begun()
    if checkpoint.committed() == batch:
        waiting = scenario.forward_ends() != checkpoint.end(batch)
        return BEFORE_OFFSETS if waiting else "between batches, nothing to do"
    begins, ends = checkpoint.end(batch - 1), checkpoint.end(batch)
    decided = {stored.data.id: stored.data.source for stored in scenario.records() if stored.data.source}

    def in_batch(source: Source) -> bool:
        place = (source.topic, source.partition)
        return begins.get(place, 0) <= source.offset < ends[place]

    earlier = {message for message, source in decided.items() if not in_batch(source)}
    expected = set(_forward_ids(scenario, begins, ends)) - earlier
    written = expected & decided.keys()
    print(f"batch {batch}: {len(written)} of {len(expected)} new messages are in DATA")
    if not written:
        return BEFORE_WRITE
    return AMID_WRITE if len(written) < len(expected) else BEFORE_COMMIT


def _forward_ids(
    scenario: Scenario, begins: dict[tuple[str, int], int], ends: dict[tuple[str, int], int]
) -> set[MessageId]:
    """Return the messages of a range of FORWARD."""
    found: set[MessageId] = set()
    consumer = scenario.connection.consumer()
    try:
        for (topic, number), end in ends.items():
            partition = TopicPartition(topic, number)
            consumer.assign([partition])
            position = begins.get((topic, number), 0)
            consumer.seek(partition, position)
            while position < end:
                for record in consumer.poll(timeout_ms=1000).get(partition, ()):
                    position = record.offset + 1
                    forward = decode_forward(
                        Source(topic, number, record.offset), record.key, record.value, record.headers
                    )
                    if position <= end and isinstance(forward, Forward):
                        found.add(forward.id)
    finally:
        consumer.close()
    return found


@pytest.mark.long
@pytest.mark.usefixtures("on_either_engine")
@pytest.mark.timeout(300)
def test_unacknowledged_messages_come_first(scenario: Scenario) -> None:
    """JGroups' SequencerFailover: message 1, unacknowledged at the crash, comes before 2–5 sent during recovery.

    One sender (alice); several threads of one member (bob); several members (carol, dave, erin).
    """
    streams = (
        [("alice", "a")] + [("bob", thread) for thread in "xyz"] + [(name, "m") for name in ("carol", "dave", "erin")]
    )
    members = {name: scenario.member(name) for name in dict(streams)}
    process = scenario.sequencer()
    receipts = [members[name].broadcast(f"{name} {stream} 0".encode()) for name, stream in streams]
    for receipt in receipts:
        receipt.result(WAIT)

    process.signal_all(signal.SIGSTOP)
    before = sum(scenario.forward_ends().values())
    receipts = [members[name].broadcast(f"{name} {stream} 1".encode()) for name, stream in streams]
    eventually(lambda: sum(scenario.forward_ends().values()) >= before + len(streams), 10, "every 1 is in FORWARD")
    process.kill()
    assert not any(receipt.done() for receipt in receipts)

    successor = scenario.sequencer(ready=False)
    lock = threading.Lock()

    def send_the_rest(name: str, stream: str) -> None:
        for number in range(2, 6):
            receipt = members[name].broadcast(f"{name} {stream} {number}".encode())
            with lock:
                receipts.append(receipt)
            time.sleep(0.5)

    threads = [threading.Thread(target=send_the_rest, args=stream) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    successor.wait_ready()
    for receipt in receipts:
        receipt.result(WAIT)

    total = 6 * len(streams)
    deliveries = scenario.deliveries("olga", total)
    payloads = [delivery.payload.decode() for delivery in deliveries]
    for name, stream in streams:
        assert [text for text in payloads if text.startswith(f"{name} {stream} ")] == [
            f"{name} {stream} {number}" for number in range(6)
        ]
    numbers = [int(text.split()[2]) for text in payloads]
    assert sorted(numbers[: 2 * len(streams)]) == [0] * len(streams) + [1] * len(streams)
    sent = [MessageId(d.sender, d.incarnation, d.local_seqno) for d in deliveries]
    assert scenario.verify(sent, {"olga": deliveries}) == total


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_killed_workers(scenario: Scenario) -> None:
    """The Python workers, then their daemon too: the same process recovers by itself."""
    loads = [scenario.load("alice"), scenario.load("bob", threads=2)]
    observer = scenario.observer("olga")
    process = scenario.sequencer()
    observer.wait(30)
    for how_many in ("workers", "workers and daemon"):
        eventually(lambda: len(process.workers()) >= 2, 60, "there are a daemon and a worker")
        daemon_and_workers = process.workers()
        for pid in daemon_and_workers[:-1] if how_many == "workers" else daemon_and_workers:
            os.kill(pid, signal.SIGKILL)
        print(f"{how_many} killed: ordering again after {scenario.probe():.1f} s")
        assert process.running()
    sent = [*scenario.probes, *(message for load in loads for message in load.finish())]
    assert scenario.verify(sent, {"olga": observer.wait(len(sent))}) == len(sent)
    assert scenario.epochs()[-1] >= 2, "a failed query is followed by a takeover"
    process.stop()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_half_a_driver(scenario: Scenario, temporary_files: Path) -> None:
    """The driver is two processes. If either is killed, the other ends by itself, and the next start goes on.

    A start removes what a killed one left, but nothing that a JVM may still use.
    """
    load = scenario.load("alice")
    observer = scenario.observer("olga")
    first = scenario.sequencer()
    observer.wait(60)
    os.kill(first.java(), signal.SIGSTOP)
    os.kill(first.pid, signal.SIGKILL)
    second = scenario.sequencer()
    assert len([*temporary_files.iterdir()]) == 2
    os.kill(first.java(), signal.SIGCONT)
    assert first.wait_exit(30) == -signal.SIGKILL
    observer.wait(observer.taken[-1].seqno + 20)
    os.kill(second.java(), signal.SIGKILL)
    assert second.wait_exit(60) == 1
    assert re.search(r"^abcast: ", second.stderr(), re.MULTILINE)
    second.assert_no_stack_trace()
    scenario.sequencer()
    assert len([*temporary_files.iterdir()]) == 1
    assert len([*(scenario.data / "checkpoints" / "sequence").iterdir()]) == 1
    sent = load.finish()
    assert scenario.verify(sent, {"olga": observer.wait(len(sent))}) == len(sent)
