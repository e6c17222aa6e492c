"""Deliverers that are killed and restarted, and one so far behind that DATA has lost its next message."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from connectors.kafka.topics.data_purge import purge_data
from tests.crash.processes import Process
from tests.crash.scenario import Scenario
from tests.waiting import eventually

pytestmark = [pytest.mark.crash, pytest.mark.broker]

PAUSE_S = 0.02
FORGOTTEN_S = 2.0
"""A message taken so long before kill -9 never comes again. Documented: 0.5 s, and the time of the commit."""


def seqnos(process: Process) -> list[int]:
    """Return the seqnos that `abcast deliver --json` printed, without a line cut off by a kill."""
    return [json.loads(line)["seqno"] for line in process.stdout().splitlines(keepends=True) if line.endswith("\n")]


def whole_lines(process: Process) -> Path:
    """Return the path of its delivery log, without a line cut off by a kill."""
    text = process.stdout()
    process.out.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")
    return process.out


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_killed_and_far_behind(scenario: Scenario) -> None:
    """The runs together have every message; two runs share only the last moments' messages; a purge leaves no seam.

    A purge of DATA leaves a snapshot: the next sequencer, after a kill -9, goes on from it with the next number.
    """
    ledger = scenario.data / "ledger"
    first_run = scenario.job("run")
    load = scenario.load("alice", pause=PAUSE_S)
    slow = scenario.abcast("deliver", "--member", scenario.address("slow"), "--json", "--count", 10)
    assert slow.wait_exit(60) == 0
    runs: list[Process] = []
    remembered: list[int] = []
    for _ in range(2):
        run = scenario.abcast("deliver", "--member", scenario.address("dora"), "--json")
        runs.append(run)
        eventually(lambda run=run: len(seqnos(run)) >= 150, 60, "150 deliveries")  # type: ignore[misc]
        remembered.append(seqnos(run)[-1])
        time.sleep(FORGOTTEN_S)
        run.kill()
    for earlier, later, known in zip(runs, runs[1:], remembered, strict=False):
        print(f"dora saw {seqnos(earlier)[-1] - seqnos(later)[0] + 1} messages again")
        assert known < seqnos(later)[0] <= seqnos(earlier)[-1] + 1
    sent = load.finish()
    highest = scenario.verify(sent, logs=[whole_lines(run) for run in runs], ledger=ledger)
    assert highest == len(sent)
    assert {seqno for run in runs for seqno in seqnos(run)} == set(range(1, seqnos(runs[-1])[-1] + 1))
    payloads = [data.payload.decode() for data in scenario.effective()]
    first_run.stop()

    second_run = scenario.job("run", None, "--engine", "process")
    more = scenario.load("bob").finish_after(200)
    (purged,) = purge_data(
        scenario.connection, scenario.group, scenario.site, kept_s=0, in_ledger=highest, lacking=lambda *_: ""
    )
    assert purged.records > highest
    assert min(data.seqno for data in scenario.effective(highest)) == highest + 1
    second_run.kill()
    scenario.job("run", None, "--engine", "process")
    more += scenario.load("carol").finish_after(50)
    assert [data.seqno for data in scenario.effective(highest)] == list(range(highest + 1, highest + len(more) + 1))

    without = scenario.abcast("deliver", "--member", scenario.address("slow"), "--json", "--timeout", 2)
    assert without.wait_exit(60) == 1
    assert "retention has dropped it" in without.stderr()
    assert "ledger" in without.stderr()
    without.assert_no_stack_trace()
    rest = len(sent) + len(more) - 10
    options = ("--json", "--count", rest, "--ledger", ledger)
    behind = scenario.abcast("deliver", "--member", scenario.address("slow"), *options)
    assert behind.wait_exit(60) == 0
    assert seqnos(behind) == list(range(11, 11 + rest))
    lines = behind.stdout().splitlines()
    assert [json.loads(line)["payload"] for line in lines][: highest - 10] == payloads[10:]
    scenario.verify([*sent, *more], logs=[slow.out, behind.out], ledger=ledger, fresh_reader=False)
    checked = scenario.abcast(
        "check", "--site", scenario.site, "--data", scenario.data, "--deliveries", slow.out, "--deliveries", behind.out
    )
    assert checked.wait_exit(60) == 0
    assert "every promise holds" in checked.stdout()
