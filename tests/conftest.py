"""Fixtures that several test modules share. One broker and one Spark session serve a whole test session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from connectors.local.broker import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

hypothesis.settings.register_profile("fast", max_examples=20)

TOGETHER = {"cli", "crash", "sites", "spark"}
"""Packages whose tests share what takes long to start, or, in the crash tests, kill at an instant: with several
processes (`pytest -n 2`), one of them runs all of a package. All other tests go wherever there is time.
"""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which test runs where. (pytest-xdist 3.8 has `--dist loadgroup` for this, which has no effect in pytest 9.2.)"""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            package = nodeid.split("/")[1]
            return package if package in TOGETHER else nodeid

    return Scheduler(config, log)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A running one-node broker on a free port. Tests share it, so each uses topics (or a group) of its own."""
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), port=0) as running:
        yield running


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The application's own kind of session, so that tests see the settings that the jobs run with."""
    from connectors.spark.session import build_session

    session = build_session("abcast tests", cores=2)
    yield session
    session.stop()
