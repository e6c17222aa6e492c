"""The ledger job, killed between its two commits, without its checkpoint, or running twice, writes each seqno once."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from kafka.structs import TopicPartition

from connectors.ledger.row import GROUP, OLD_GROUP
from connectors.testing.sequencer_thread import SequencerThread
from ordering.sequencer.sequencer import snapshot
from tests.crash.checkpoint import Checkpoint
from tests.crash.processes import Process
from tests.crash.scenario import Load, Scenario, ledger_seqno
from tests.waiting import PATIENCE, WAIT, eventually

pytestmark = [pytest.mark.long, pytest.mark.crash, pytest.mark.broker]

ATTEMPTS = 4
LOOK_S = 0.2
"""The pause between two looks at a table: each reads its log."""


def kill_between_the_commits(scenario: Scenario, process: Process) -> bool:
    """Kill it as soon as Delta has a new version; return whether the commit log lacks the batch."""
    ledger = scenario.data / "ledger"
    eventually(lambda: ledger_seqno(ledger, scenario.group) > 0, 60, "the ledger has rows", LOOK_S)
    checkpoint = Checkpoint(scenario.data, "ledger")
    log = ledger / "_delta_log"
    eventually(lambda: checkpoint.committed() == checkpoint.begun() >= 0, 30, "no batch is in hand", 0.001)
    before, held = versions(log), ledger_seqno(ledger, scenario.group)
    deadline = time.monotonic() + 30
    while versions(log) == before and time.monotonic() < deadline:
        time.sleep(0.0005)
    process.kill()
    grew = ledger_seqno(ledger, scenario.group) > held
    print(f"seqno {held} grew: {grew}; begun {checkpoint.begun()}, committed {checkpoint.committed()}")
    return grew and checkpoint.committed() < checkpoint.begun()


def versions(log: Path) -> int:
    return len(list(log.glob("[0-9]*.json")))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("writers", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_each_seqno_once(scenario: Scenario, writers: int) -> None:
    """Killed between the Delta commit and the checkpoint's; then its checkpoint deleted; then two at once."""
    with SequencerThread(scenario.connection, scenario.group, scenario.site):
        load = scenario.load("alice")
        for _ in range(ATTEMPTS):
            process = scenario.job("ledger")
            if kill_between_the_commits(scenario, process):
                break
        else:
            pytest.fail(f"not once between the commits in {ATTEMPTS} attempts")
        Checkpoint(scenario.data, "ledger").delete()
        goes_on(scenario, load, ["spark"] * writers)


def goes_on(scenario: Scenario, load: Load, engines: Sequence[str]) -> None:
    """Run ledgers at once, kill all but the last, and find each seqno once."""
    ledger = scenario.data / "ledger"
    rivals = [scenario.job("ledger", None, "--engine", engine, ready=False) for engine in engines]
    for rival in rivals:
        rival.wait_ready()
    before = ledger_seqno(ledger, scenario.group)
    eventually(lambda: ledger_seqno(ledger, scenario.group) > before + 100, 60, "they work", LOOK_S)
    time.sleep(5)
    assert all(rival.running() for rival in rivals)
    for rival in rivals[:-1]:
        rival.kill()
    sent = load.finish()
    assert scenario.verify(sent, ledger=ledger) == len(sent)
    seqnos = DeltaTable(ledger).to_pyarrow_table(columns=["seqno"])["seqno"].to_pylist()
    assert sorted(seqnos) == list(range(1, len(sent) + 1))
    rivals[-1].stop()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_killed_while_it_renames_a_column(scenario: Scenario) -> None:
    """The tables have the column of 0.1.0. The start is killed at new files of Delta's log, before the commit that
    renames the column and behind it. In the end the ledger has every row once, in the right column.
    """
    tables = [scenario.data / name for name in ("ledger", "views")]
    with SequencerThread(scenario.connection, scenario.group, scenario.site):
        load = scenario.load("alice")
        process = scenario.job("ledger")
        eventually(lambda: ledger_seqno(tables[0], scenario.group) > 50, 60, "the ledger has rows", LOOK_S)
        process.stop()
        for table in tables:
            set_back(table)
        killed_at: list[tuple[int, int]] = []
        for files in (1, 2, 3):  # more than the last kill has left
            process = scenario.job("ledger", ready=False)
            more = in_log(tables[0]) + files
            eventually(lambda more=more: in_log(tables[0]) >= more, 60, "Delta writes", 0.0005)  # type: ignore[misc]
            process.kill()
            killed_at.append((versions(tables[0] / "_delta_log"), in_log(tables[0])))
        print(f"killed with so many versions, and files of the log: {killed_at}")
        process = scenario.job("ledger")
        sent = load.finish()
        assert scenario.verify(sent, ledger=tables[0]) == len(sent)
        process.stop()
    rows = DeltaTable(tables[0]).to_pyarrow_table(columns=[GROUP, "seqno"]).to_pylist()
    assert sorted(row["seqno"] for row in rows) == list(range(1, len(sent) + 1))
    assert {row[GROUP] for row in rows} == {scenario.group}
    for table in tables:
        names = DeltaTable(table).to_pyarrow_table().column_names
        assert OLD_GROUP not in names
        assert GROUP in names


def set_back(path: Path) -> None:
    """Make a table anew as 0.1.0 has it: with the group in the column `group`."""
    table = DeltaTable(path)
    names = {GROUP: OLD_GROUP}
    rows = table.to_pyarrow_table()
    rows = rows.rename_columns([names.get(name, name) for name in rows.column_names])
    partitions = [names.get(name, name) for name in table.metadata().partition_columns]
    shutil.rmtree(path)
    write_deltalake(path, rows, partition_by=partitions or None)


def in_log(path: Path) -> int:
    """Return the number of files in a table's log, unfinished ones included."""
    return sum(1 for _ in (path / "_delta_log").iterdir())


@pytest.mark.soak
@pytest.mark.timeout(200)
def test_overtaken_by_retention(scenario: Scenario) -> None:
    """The job ends with one sentence that names the missing messages. It once went on without writing, for ever.

    In `make test`, `test_retention_overtakes_the_writer` of tests/spark/test_ledger.py shows that it notices.
    """
    ledger = scenario.data / "ledger"
    with SequencerThread(scenario.connection, scenario.group, scenario.site) as sequencer:
        alice = scenario.member("alice")
        alice.broadcast(b"first").result(WAIT)
        process = scenario.job("ledger")
        eventually(lambda: ledger_seqno(ledger, scenario.group) == 1, 60, "the ledger has seqno 1", LOOK_S)
        process.signal_all(signal.SIGSTOP)
        for number in range(20):
            alice.broadcast(b"%d" % number).result(WAIT)
        with scenario.connection.admin() as admin:
            data = TopicPartition(f"abcast.{scenario.group}.data.{scenario.site}", 0)
            admin.delete_records({data: scenario.end()})
        sequencer.write([snapshot(sequencer.state)])
        process.signal_all(signal.SIGCONT)
        alice.broadcast(b"last").result(WAIT)
        assert process.wait_exit(60) == 1
        assert f"the ledger {ledger} ends at seqno 1 of group {scenario.group}" in process.stderr()
        assert "no longer holds seqno 2: retention has dropped it" in process.stderr()
        process.assert_no_stack_trace()
        again = scenario.job("ledger", ready=False)
        assert again.wait_exit(60) == 1
        assert "can't go on without a gap" in again.stderr()


@pytest.mark.soak
@pytest.mark.timeout(200)
def test_its_directory_is_deleted(scenario: Scenario) -> None:
    """The job says so and ends, although no record comes; started again, it rebuilds the ledger from DATA.

    In `make test`, tests/spark shows the parts: `test_a_data_directory_that_goes_stops_the_job` and
    `test_deleted_under_the_writer`.
    """
    ledger = scenario.data / "ledger"
    with SequencerThread(scenario.connection, scenario.group, scenario.site):
        alice = scenario.member("alice")
        alice.broadcast(b"first").result(WAIT)
        process = scenario.job("ledger")
        eventually(lambda: ledger_seqno(ledger, scenario.group) == 1, 60, "the ledger has seqno 1", LOOK_S)
        checkpoint = Checkpoint(scenario.data, "ledger")
        eventually(lambda: checkpoint.committed() == checkpoint.begun() >= 0, 30, "no batch is in hand")
        # In one step: of files deleted one by one the job would see a part, and could write another.
        scenario.data.rename(scenario.data.with_name("deleted"))
        assert process.wait_exit(60) == 1
        # The checkpoint went with it: whichever is looked at first is named.
        assert f"abcast: {scenario.data}" in process.stderr() or f"the Delta table {ledger} is gone" in process.stderr()
        assert " is gone" in process.stderr()
        process.assert_no_stack_trace()
        assert not ledger.exists()
        alice.broadcast(b"second").result(WAIT)
        again = scenario.job("ledger")
        eventually(lambda: ledger_seqno(ledger, scenario.group) == 2, 60, "it is rebuilt", LOOK_S)
        again.stop()


@pytest.mark.timeout(300)
def test_each_seqno_once_whichever_engine_writes(scenario: Scenario) -> None:
    """The process engine's ledger, killed at its commits; then together with Spark's; then alone, in its place."""
    ledger = scenario.data / "ledger"
    with SequencerThread(scenario.connection, scenario.group, scenario.site):
        load = scenario.load("alice")
        for after in range(2 * PATIENCE):
            process = scenario.job("ledger", None, "--engine", "process")
            reached = ledger_seqno(ledger, scenario.group)
            eventually(lambda reached=reached: ledger_seqno(ledger, scenario.group) > reached, 60, "it goes on", LOOK_S)  # type: ignore[misc]
            before = in_log(ledger)
            eventually(lambda before=before: in_log(ledger) > before, 30, "delta-rs writes", 0.0002)  # type: ignore[misc]
            time.sleep(0.002 * after)
            process.kill()
        goes_on(scenario, load, ["spark", "process"])


@pytest.mark.timeout(120)
def test_the_order_goes_on_without_the_ledgers_process(scenario: Scenario) -> None:
    """`run --engine process`: its ledger is a child, which is started again, and ends when its parent is killed."""
    ledger = scenario.data / "ledger"
    process = scenario.job("run", None, "--engine", "process")
    load = scenario.load("alice")
    eventually(lambda: ledger_seqno(ledger, scenario.group) > 0, 60, "the ledger has rows", LOOK_S)
    [child] = process.members("spawn_main")
    os.kill(child, signal.SIGKILL)
    assert scenario.probe() < WAIT
    eventually(lambda: {*process.members("spawn_main")} - {child}, 60, "there is another child")
    reached = ledger_seqno(ledger, scenario.group)
    eventually(lambda: ledger_seqno(ledger, scenario.group) > reached, 60, "the ledger goes on", LOOK_S)
    os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: not process.members("spawn_main"), 60, "the child has ended")
    process = scenario.job("run", None, "--engine", "process")
    sent = load.finish()
    assert scenario.verify(sent, ledger=ledger) == len(sent) + 1
    process.stop()
    seqnos = DeltaTable(ledger).to_pyarrow_table(columns=["seqno"])["seqno"].to_pylist()
    assert sorted(seqnos) == list(range(1, len(seqnos) + 1))
