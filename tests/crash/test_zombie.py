"""A sequencer that was suspended while another took over."""

from __future__ import annotations

import signal
import time

import pytest

from connectors.kafka.log.data_log import DataLog
from ordering.base.records import EPOCH
from tests.crash.checkpoint import Checkpoint
from tests.crash.scenario import Scenario
from tests.crash.test_two_sequencers import assert_fenced
from tests.waiting import eventually

pytestmark = [pytest.mark.crash, pytest.mark.broker, pytest.mark.timeout(300)]

SUSPENDED_S = {"spark": 30.0, "process": 5.0}
"""Seconds by engine. A JVM has more connections that could time out in that time."""


@pytest.mark.long
@pytest.mark.usefixtures("on_either_engine")
def test_suspended_while_another_took_over(scenario: Scenario) -> None:
    """Records that it still writes are stale for every reader, and it stops with a clear error."""
    loads = [scenario.load("alice"), scenario.load("bob", threads=2)]
    observer = scenario.observer("olga")
    zombie = scenario.sequencer()
    observer.wait(30)
    with DataLog(scenario.connection, scenario.group, scenario.site) as log:
        if scenario.engine == "spark":
            checkpoint = Checkpoint(scenario.data)
            # In the middle of a batch, so that it has something left to write.
            eventually(lambda: checkpoint.begun() > checkpoint.committed(), 20, "a batch is in hand", 0.0005)
        zombie.signal_all(signal.SIGSTOP)
        suspended_at = time.monotonic()
        end = log.end()
    successor = scenario.sequencer()
    observer.wait(observer.taken[-1].seqno + 50)
    assert zombie.running()
    time.sleep(max(0.0, suspended_at + SUSPENDED_S[scenario.engine] - time.monotonic()))
    zombie.signal_all(signal.SIGCONT)
    assert_fenced(zombie, 1, 3)

    sent = [message for load in loads for message in load.finish()]
    assert scenario.verify(sent, {"olga": observer.wait(len(sent))}) == len(sent)
    since = [stored.data for stored in scenario.records(end)]
    sealed = next(index for index, data in enumerate(since) if data.kind == EPOCH and data.epoch == 3)
    leftovers = [data for data in since[sealed:] if data.epoch == 1]
    print(f"the zombie wrote {len(leftovers)} records after the seal")
    assert max(data.epoch for data in since) == 3, "the zombie took nothing back"
    assert successor.running()
