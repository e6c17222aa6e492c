"""Fixtures that several test modules share; which tests run, where, and in which order.

One broker and one Spark session serve a whole test process.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from connectors.kafka.transport import VARIABLE
from connectors.local.broker import EmbeddedBroker
from connectors.testing.memory_kafka import MemoryConnection
from tests.jvm import SHORT_LIVED
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How long an example takes says more of the machine than of the code.
hypothesis.settings.register_profile("timeless", deadline=None)
hypothesis.settings.register_profile("fast", max_examples=10, deadline=None)
hypothesis.settings.load_profile("timeless")

os.environ.update(SHORT_LIVED)

# On a loaded machine kafka-python warns that a turn of its loop took long, in the midst of what a test expects.
logging.getLogger("kafka.net.selector").setLevel(logging.ERROR)

os.environ.setdefault(VARIABLE, "kafka-python")
"""Tests that name no library run on this one, also in the processes that they start; `ABCAST_TRANSPORT=confluent make
test` runs them on the other. What depends on the library names both."""

PIPELINE = "tests/cli/test_pipeline.py"
TOGETHER = {
    "tests/secure/": "tests/secure/",
    "tests/sites/": "tests/sites/",
    "tests/spark/": "tests/spark/",
    "tests/sequencer/test_agreeing_job.py": "tests/spark/",
    "tests/examples/test_ledger_examples.py": "tests/spark/",
    "tests/formats/test_earlier.py": "tests/spark/",
    "tests/cli/test_bad_input.py": PIPELINE,
    "tests/cli/test_members.py": PIPELINE,
    "tests/cli/test_membership.py": PIPELINE,
    "tests/storage/": "tests/storage/",
    "tests/test_wheel.py": "tests/test_wheel.py",
}
"""Tests that share something slow to start: with several processes (`pytest -n 2`), one of them runs all of these."""

FIRST = (
    "tests/sites/",
    "tests/secure/",
    "tests/spark/",
    PIPELINE,
    "tests/crash/",
    "tests/test_wheel.py",
    "tests/test_readme.py",
)
"""The longest tests, which begin first: at the end no process works on alone for long."""

COMPUTES = ("tests/ordering/", "tests/simulator/", "tests/world/", "tests/test_house.py")
"""Tests that compute without waiting come last; they need no broker."""


@pytest.fixture
def kafka() -> MemoryConnection:
    """Return a Kafka in memory with the group g at nyc."""
    connection = MemoryConnection()
    connection.create("g", "nyc")
    return connection


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage among the tests and their imports, neither now nor later: a sixth of the time it takes."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--rows N`: at most so many rows of each test with parameters, the first and the last among them."""
    parser.addoption("--rows", type=int, default=0, help="the most rows of each test with parameters (0: all)")


def _beyond(rows: int, items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the rows of each test beyond that number."""
    of_tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        of_tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = []
    for each in of_tests.values():
        kept = {round(at * (len(each) - 1) / max(1, rows - 1)) for at in range(rows)}
        left_out += [item for at, item in enumerate(each) if at not in kept]
    return left_out


@pytest.hookimpl(trylast=True)  # after `-m`
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the soak, unless ABCAST_SOAK is set, and the long tests, unless ABCAST_LONG is; the longest first."""
    left_out = {item for item in items if _asked_for(item) not in os.environ}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
    if rows := config.getoption("rows"):
        beyond = set(_beyond(rows, items))
        config.hook.pytest_deselected(items=list(beyond))
        items[:] = [item for item in items if item not in beyond]
    for item in items:
        given = item.get_closest_marker("timeout")
        limit_s = float(given.args[0] if given is not None else config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(limit_s * PATIENCE), append=False)
    items.sort(key=lambda item: _rank(item))


def _asked_for(item: pytest.Item) -> str:
    """Return the variable of the environment that asks for that test: PATH, which is always set, for most."""
    if item.get_closest_marker("soak"):
        return "ABCAST_SOAK"
    return "ABCAST_LONG" if item.get_closest_marker("long") else "PATH"


def _rank(item: pytest.Item) -> int:
    share = _share(item.nodeid)
    if share.startswith(COMPUTES):
        return len(FIRST) + 4
    first = [rank for rank, path in enumerate(FIRST) if share.startswith(path)]
    slow = [rank for rank, name in enumerate(("crash", "broker", "slow")) if item.get_closest_marker(name)]
    return [*first, *(len(FIRST) + rank for rank in slow), len(FIRST) + 3][0]


def _share(nodeid: str) -> str:
    """Return the key of tests that run in one process, one after the other: they share a resource, a module or a
    test.
    """
    module = nodeid.split("::")[0]
    for path, share in TOGETHER.items():
        if module.startswith(path):
            return share
    # One test after the other kills processes at an instant.
    return module if module.startswith(("tests/crash/", PIPELINE)) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Assign the tests to processes. (pytest-xdist 3.8 has `--dist loadgroup`, which has no effect in pytest 9.2.)"""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _share(nodeid)

        def _assign_work_unit(self, node: Any) -> None:
            """Give the last tests to one process of three: it computes while the others wait."""
            if self.nodes.index(node) < self.numnodes // 3:
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

        def remove_node(self, node: Any) -> str | None:
            """Report the crash of a process. pytest-xdist 3.8 would repeat the same test, and wait for ever for
            done ones.
            """
            units = self.assigned_work.pop(node)
            left = [(unit, nodeid) for unit in units.values() for nodeid, done in unit.items() if not done]
            if not left:
                return None
            unit, crashed = left[0]
            unit[crashed] = True
            self.workqueue.update((scope, unit) for scope, unit in units.items() if not all(unit.values()))
            for other in self.assigned_work:
                self._reschedule(other)
            return str(crashed)

    config.option.loadscopereorder = False  # by the number of tests, which says nothing
    return Scheduler(config, log)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A running one-node broker on a free port. Tests share it, so each uses topics (or a group) of its own."""
    with started(tmp_path_factory.mktemp("broker")) as running:
        yield running


@contextmanager
def started(directory: Path, secure: bool | None = None) -> Iterator[EmbeddedBroker]:
    """Yield a broker that runs for all tests."""
    broker = EmbeddedBroker(directory, port=0, secure=secure)
    try:
        broker.start(timeout=200)  # several processes of tests start at a time
        yield broker
    finally:
        broker.stop()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Yield a session of the application's own kind, so that tests see the jobs' settings."""
    from connectors.spark.session import build_session

    session = build_session("abcast tests", cores=2)
    yield session
    session.stop()
