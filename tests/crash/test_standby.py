"""A sequencer is killed or suspended beside a standby: the time until messages are ordered again."""

from __future__ import annotations

import signal
import time

import pytest

from connectors.kafka.log.data_log import DataLog
from connectors.takeover.handover import AGAIN_S
from tests.crash.processes import ABCAST, Process
from tests.crash.scenario import Load, Observer, Scenario, ledger_seqno
from tests.waiting import PATIENCE, WAIT, eventually

pytestmark = [pytest.mark.crash, pytest.mark.broker, pytest.mark.timeout(300)]

AT_ONCE_S = 10.0
"""Most seconds from a kill to the next delivery; 1 or 2 on a quiet machine."""
TAKEOVER = (ABCAST, "takeover", "--why", "a new version", "--bootstrap-servers")
SILENT_S = 20.0
"""Most seconds from a suspension to the next delivery; 6 or 7 on a quiet machine."""


def standby(scenario: Scenario) -> Process:
    return scenario.job("sequence", None, "--engine", "process", "--standby")


def under_load(scenario: Scenario, engine: str) -> tuple[list[Load], Observer, Process, Process]:
    """Return the loads, an observer of their messages, a sequencer, and the standby that waits beside it."""
    scenario.engine = engine
    loads = [scenario.load("alice"), scenario.load("bob", threads=2)]
    observer = scenario.observer("olga")
    first = scenario.sequencer()
    observer.wait(30)
    second = standby(scenario)
    second.wait_for("This process waits.")
    return loads, observer, first, second


def again(observer: Observer, within_s: float, what: str) -> None:
    """Wait for a message that is ordered from now on. A few that were ordered before may still come."""
    began, last = time.monotonic(), observer.taken[-1].seqno
    eventually(lambda: not observer.problem and observer.taken[-1].seqno > last + 20, 60.0, f"deliveries after {what}")
    took = time.monotonic() - began
    print(f"deliveries {took:.1f} s after {what}")
    assert took < within_s * PATIENCE


@pytest.mark.long
@pytest.mark.parametrize("engine", ["process", pytest.param("spark", marks=pytest.mark.soak)])
def test_killed_suspended_and_killed_again(scenario: Scenario, engine: str) -> None:
    """Two standbys: each end of a sequencer is noticed, and the one that comes back stands by."""
    loads, observer, first, second = under_load(scenario, engine)
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


@pytest.mark.long
def test_all_of_run_goes_on(scenario: Scenario) -> None:
    """A standby of `run` has tables of its own before it is needed, and goes on with them."""
    scenario.job("run", None, "--engine", "process")
    load = scenario.load("alice")
    observer = scenario.observer("olga")
    observer.wait(30)
    own = scenario.directory / "own"
    second = scenario.job("run", own, "--engine", "process", "--standby")
    second.wait_for("This process waits.")
    eventually(lambda: ledger_seqno(own / "ledger", scenario.group) > 0, WAIT, "a table of its own")
    scenario.processes[0].kill()
    again(observer, AT_ONCE_S, "all of the first is killed")
    sent = load.finish()
    assert scenario.verify(sent, {"olga": observer.wait(len(sent))}, ledger=own / "ledger") == len(sent)
    second.stop()


HANDOVER_S = 1.0
"""The longest silence of the order in a handover; 0.2 to 0.4 on a quiet machine."""


@pytest.mark.long
@pytest.mark.parametrize("engine", ["process", pytest.param("spark", marks=pytest.mark.soak)])
def test_a_rolling_restart(scenario: Scenario, engine: str) -> None:
    """Each handover is silent for a moment only. The one that stands by no more ends, and says why."""
    loads, observer, first, second = under_load(scenario, engine)

    def hand_over() -> None:
        began = time.monotonic()
        asked = scenario.start("takeover", *TAKEOVER, scenario.connection.bootstrap_servers, "--site", scenario.site)
        assert asked.wait_exit(30.0) == 0, asked.stderr()
        assert "handed over to process" in asked.stdout()
        observer.wait(observer.taken[-1].seqno + 20)
        silent_s = observer.longest_gap(began)
        print(f"the order was silent for {silent_s:.2f} s in a handover")
        assert silent_s < HANDOVER_S * PATIENCE

    hand_over()
    first.wait_for("handed over to process")
    third = standby(scenario)
    third.wait_for("This process waits.")
    time.sleep(AGAIN_S)
    hand_over()
    second.wait_for("It stands by.")
    second.wait_for("This process waits.", times=2)
    time.sleep(AGAIN_S)
    hand_over()

    sent = [message for load in loads for message in load.finish()]
    assert scenario.verify(sent, {"olga": observer.wait(len(sent))}) == len(sent)
    with DataLog(scenario.connection, scenario.group, scenario.site) as log:
        assert [claim.is_planned for claim in log.epochs.read().claims] == [False, True, True, True]
    second.stop()
