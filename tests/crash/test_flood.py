"""A member floods its group. The messages of others wait for a bounded time.

`python -m pytest -s tests/crash/test_flood.py` prints the figures of docs/performance.md.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from connectors import Member, Receipt
from connectors.kafka.topics.topics import create_topics
from connectors.kafka.transport import VARIABLE
from tests.crash.processes import ABCAST
from tests.crash.scenario import Scenario
from tests.waiting import WAIT

pytestmark = [pytest.mark.crash, pytest.mark.broker]

FLOOD = 60_000
PAUSE_S = 0.05
QUIET = 100
"""Messages of each of the others before the flood."""


def measured(others: dict[str, Member], goes_on: Callable[[int], bool]) -> dict[str, list[float]]:
    """Broadcast from each of the others by turns; return the ms from `broadcast` to the receipt's result."""
    waited: dict[str, list[float]] = {name: [] for name in others}
    receipts: list[Receipt] = []

    def note(began: float, ms: list[float], _: object) -> None:
        ms.append((time.monotonic() - began) * 1000)

    while goes_on(len(receipts) // len(others)):
        for name, member in others.items():
            began = time.monotonic()
            receipts.append(member.broadcast(b"x"))
            receipts[-1].add_done_callback(functools.partial(note, began, waited[name]))
        time.sleep(PAUSE_S)
    for receipt in receipts:
        receipt.result(WAIT)
    return waited


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_flood_delays_others_by_a_bound(scenario: Scenario) -> None:
    """The flood's forward table holds 10,000 of its 60,000 messages. Others wait for no longer than these take."""
    create_topics(scenario.connection, other_group := f"{scenario.group}-other", [scenario.site])
    scenario.engine = "process"
    scenario.sequencer()
    lines = scenario.directory / "lines"
    lines.write_text("".join(f"{number:0100}\n" for number in range(FLOOD)), encoding="ascii")
    with ExitStack() as members:
        others = {
            "same group": scenario.member("bob"),
            "another group": members.enter_context(
                Member(other_group, scenario.address("carol"), connection=scenario.connection)
            ),
        }
        measured(others, lambda count: count < 10)
        quiet = measured(others, lambda count: count < QUIET)
        began = time.monotonic()
        flood = scenario.start(
            "publish", ABCAST, "publish", "--group", scenario.group, "--member", scenario.address("mallory"),
            "--bootstrap-servers", scenario.connection.bootstrap_servers, lines,
        )  # fmt: skip
        flooded = measured(others, lambda _: flood.running())
        flood_s = time.monotonic() - began
    assert "60000 messages ordered" in flood.stdout()
    for name, of in {"quiet": quiet, "flood": flooded}.items():
        for who, waited in of.items():
            cuts = statistics.quantiles(waited, n=100)
            figures = {"messages": len(waited), "p50": cuts[49], "p99": cuts[98], "max": max(waited)}
            print(json.dumps({"others": who, "during": name, **{key: round(ms, 1) for key, ms in figures.items()}}))
    print(json.dumps({"flood": FLOOD, "seconds": round(flood_s, 1), "transport": os.environ.get(VARIABLE, "")}))
    table_ms = flood_s * 1000 * 10_000 / FLOOD
    for who, waited in flooded.items():
        assert max(waited) < table_ms + 3 * max(quiet[who]), f"{who} waits for more than a forward table"
