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
