"""The process engine, killed at any moment: the time until messages are ordered again."""

from __future__ import annotations

import random
import threading
import time

import pytest

from connectors.kafka.topics.upgrade import upgrade
from ordering.base.records import MESSAGES
from tests.crash.scenario import Scenario

pytestmark = [pytest.mark.crash, pytest.mark.broker]

BURST = 3000
AGAIN_S = 20.0
"""Most seconds from a kill to the next delivery, unless ten times the first start's is more: a busy machine
delays both.
"""


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.soak)])
@pytest.mark.parametrize("packs", [False, pytest.param(True, marks=pytest.mark.long)], ids=["single", "packs"])
@pytest.mark.timeout(300)
def test_killed_again_and_again(scenario: Scenario, kills: int, *, packs: bool) -> None:
    """The kills come at random moments, half of them amid a burst: with batches under way, and parts of them
    written. At last Spark goes on, which makes no packs of single messages.
    """
    if packs:
        upgrade(scenario.connection, scenario.group, scenario.site)
    scenario.engine = "process"
    rng = random.Random(16)
    loads = [scenario.load("alice"), scenario.load("bob", threads=3)]
    heavy = scenario.load("harry", threads=0)
    observer = scenario.observer("olga")
    first_at = time.monotonic()
    process = scenario.sequencer()
    observer.wait(1)
    again_s = max(AGAIN_S, 10 * (time.monotonic() - first_at))
    for number in range(kills):
        observer.wait(len(observer.taken) + 20)
        if number % 2:
            threading.Thread(target=heavy.burst, args=(BURST,), daemon=True).start()
        time.sleep(rng.random() * 0.5)
        process.kill()
        killed_at, last = time.monotonic(), observer.taken[-1].seqno
        process = scenario.sequencer()
        observer.wait(last + 1)
        took = time.monotonic() - killed_at
        print(f"next delivery {took:.1f} s after the kill")
        assert took < again_s
    if packs:
        process.kill()
        last, scenario.engine = observer.taken[-1].seqno, "spark"
        process = scenario.sequencer()
        observer.wait(last + 20)
        assert any(record.data.kind == MESSAGES for record in scenario.records())
    sent = [message for load in (*loads, heavy) for message in load.finish(90)]
    assert scenario.verify(sent, {"olga": observer.wait(len(sent))}) == len(sent)
    assert packs or not process.members("java")
    process.stop()
