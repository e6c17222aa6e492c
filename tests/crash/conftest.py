"""Fixtures of the crash tests, and the ends of all logs in the report of a failure."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.local.broker import EmbeddedBroker
from connectors.local.owned_directory import remove_abandoned
from connectors.local.scratch import SCRATCH
from tests.crash.scenario import Scenario
from tests.waiting import eventually

MakeScenario = Callable[..., Scenario]
_open: list[Scenario] = []


@pytest.fixture
def temporary_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a directory for temporary files of processes. At the end it has none that the next start would not
    remove.
    """
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setenv("TMPDIR", name)
        directory = Path(name)
        yield directory
        # A killed process with many threads lets go of its files when the last of them is gone.
        eventually(lambda: _nothing_is_left(directory), 20, "nothing is left behind by the processes of the test")


def _nothing_is_left(directory: Path) -> bool:
    remove_abandoned(directory, SCRATCH)
    return not any(directory.iterdir())


@pytest.fixture
def make_scenario(tmp_path: Path, temporary_files: Path) -> Iterator[MakeScenario]:
    """Return a maker of scenarios; end their processes."""

    def make(bootstrap_servers: str, **options: Any) -> Scenario:
        scenario = Scenario(bootstrap_servers, tmp_path / f"scenario-{len(_open)}", **options)
        _open.append(scenario)
        return scenario

    yield make
    scenarios = list(_open)
    _open.clear()
    for scenario in scenarios:
        scenario.close()
    left = {process.name: process.members() for scenario in scenarios for process in scenario.processes}
    assert not any(left.values()), f"processes left behind: {left}"


@pytest.fixture
def scenario(broker: EmbeddedBroker, make_scenario: MakeScenario) -> Scenario:
    """A group at a site of its own on the shared broker."""
    return make_scenario(broker.bootstrap_servers)


@pytest.fixture(params=[pytest.param("spark", marks=pytest.mark.soak), "process"])
def on_either_engine(scenario: Scenario, request: pytest.FixtureRequest) -> None:
    """Run the test on each engine. On Spark, which takes longer, it belongs to the soak."""
    scenario.engine = request.param


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show the processes' output when a test has failed."""
    outcome: Any = yield
    report = outcome.get_result()
    if call.when == "call" and report.failed:
        for scenario in _open:
            for process in scenario.processes:
                report.sections.append((f"process {process.name}", process.tail()))
