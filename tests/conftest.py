"""Fixtures that several test modules share. One broker and one Spark session serve a whole test session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import hypothesis
import pytest

from connectors.local.broker import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

hypothesis.settings.register_profile("fast", max_examples=20)

GROUPS = {"make_scenario": "crash", "pipeline": "pipeline", "second_broker": "sites", "spark": "spark"}
"""A fixture, and the group of the tests that have it: they share what takes long to start, or, in the crash tests, need
the machine's attention when they kill at an instant. A broker (5 s) is started in each process.
"""


@pytest.hookimpl(tryfirst=True)  # xdist looks at the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several processes run the tests (`pytest -n 2 --dist loadgroup`), one of them runs all tests of a group."""
    for item in items:
        names = getattr(item, "fixturenames", ())
        for fixture, group in GROUPS.items():
            if fixture in names:
                item.add_marker(pytest.mark.xdist_group(group))
                break


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
