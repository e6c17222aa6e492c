"""A sequencer is killed or suspended beside a standby: the time until messages are ordered again."""

from __future__ import annotations

import signal
import time

import pytest

from tests.crash.processes import Process
from tests.crash.scenario import Observer, Scenario
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.crash, pytest.mark.broker, pytest.mark.timeout(300)]

AT_ONCE_S = 10.0
"""Most seconds from a kill to the next delivery; 1 or 2 on a quiet machine."""
SILENT_S = 20.0
"""Most seconds from a suspension to the next delivery; 6 or 7 on a quiet machine."""


def standby(scenario: Scenario) -> Process:
    return scenario.job("sequence", None, "--engine", "process", "--standby")


def again(observer: Observer, within_s: float, what: str) -> None:
    """Wait for a message that is ordered from now on. A few that were ordered before may still come."""
    began, last = time.monotonic(), observer.taken[-1].seqno
    eventually(lambda: not observer.problem and observer.taken[-1].seqno > last + 20, 60.0, f"deliveries after {what}")
    took = time.monotonic() - began
    print(f"deliveries {took:.1f} s after {what}")
    assert took < within_s * PATIENCE


@pytest.mark.parametrize("engine", ["process", pytest.param("spark", marks=pytest.mark.soak)])
def test_killed_suspended_and_killed_again(scenario: Scenario, engine: str) -> None:
    """Two standbys: each end of a sequencer is noticed, and the one that comes back stands by."""
    scenario.engine = engine
    loads = [scenario.load("alice"), scenario.load("bob", threads=2)]
    observer = scenario.observer("olga")
    first = scenario.sequencer()
    observer.wait(30)
    second = standby(scenario)
    second.wait_for("This process waits.")
    first.kill()
    again(observer, AT_ONCE_S, "the first is killed")

    third = standby(scenario)
    third.wait_for("This process waits.")
    second.signal_all(signal.SIGSTOP)
    again(observer, SILENT_S, "the second is suspended")
    second.signal_all(signal.SIGCONT)
    second.wait_for("It stands by.")
    second.wait_for("This process waits.", times=2)
    third.kill()
    again(observer, AT_ONCE_S, "the third is killed")

    sent = [message for load in loads for message in load.finish()]
    assert scenario.verify(sent, {"olga": observer.wait(len(sent))}) == len(sent)
    assert len(set(scenario.epochs())) == 4, "each one took over once"
    second.stop()
