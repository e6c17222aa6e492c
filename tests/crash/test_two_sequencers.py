"""Two sequencers of one group: readers never diverge, and the older one stops with an error that says why."""

from __future__ import annotations

import re

import pytest

from tests.crash.processes import Process
from tests.crash.scenario import Scenario

pytestmark = [pytest.mark.long, pytest.mark.crash, pytest.mark.broker, pytest.mark.timeout(300)]


def assert_fenced(process: Process, own_epoch: int, newer_epoch: int) -> None:
    """Assert that the process ends with 1 and one sentence that names both epochs and the other process."""
    assert process.wait_exit(60) == 1
    last = process.stderr().splitlines()[-1]
    assert f"a newer sequencer took over with epoch {newer_epoch}" in last
    assert re.search(r"\(process \d+ on host \S+\)", last)
    assert f"(epoch {own_epoch}) stops" in last
    process.assert_no_stack_trace()


@pytest.mark.parametrize(
    "engines",
    [
        pytest.param(("spark", "spark", "spark"), marks=pytest.mark.soak),
        pytest.param(("process", "process", "process"), marks=pytest.mark.soak),
        ("process", "spark", "process"),
    ],
    ids="-".join,
)
def test_the_older_of_two_stops(scenario: Scenario, engines: tuple[str, str, str]) -> None:
    """First two with the same --data (so, the same checkpoint directory), then two with different ones.

    With one engine, and handed over from each engine to the other.
    """
    loads = [scenario.load("alice"), scenario.load("bob", threads=3)]
    observer = scenario.observer("olga")
    scenario.engine = engines[0]
    first = scenario.sequencer()
    observer.wait(50)
    scenario.engine = engines[1]
    second = scenario.sequencer(ready=False)
    assert_fenced(first, 1, 3)  # each takeover's note takes a number
    second.wait_ready()
    observer.wait(observer.taken[-1].seqno + 50)
    scenario.engine = engines[2]
    third = scenario.sequencer(scenario.directory / "other-data", ready=False)
    assert_fenced(second, 3, 5)
    third.wait_ready()
    sent = [message for load in loads for message in load.finish()]
    highest = scenario.verify(sent, {"olga": observer.wait(len(sent))})
    assert highest == len(sent)
    assert third.running()
    third.stop()
