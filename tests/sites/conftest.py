"""Two clusters, and worlds on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sites import Mode, Sites, Trigger
from connectors.local.broker import EmbeddedBroker
from tests.conftest import started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.crash.processes import Process
from tests.sites.world import World

MakeWorld = Callable[..., "World"]
_numbers = itertools.count(1)


@pytest.fixture(scope="package")
def second_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """The other site's Kafka. It costs CPU time while nothing uses it, too: it stops after the last test here."""
    with started(tmp_path_factory.mktemp("second-broker")) as running:
        yield running


@pytest.fixture
def make_world(
    request: pytest.FixtureRequest, broker: EmbeddedBroker, second_broker: EmbeddedBroker, tmp_path: Path
) -> MakeWorld:
    """Make a world of sites, in turn on the two clusters; the first is the home of a hub. Jobs on Spark start it."""
    from tests.sites.world import World

    def spark() -> SparkSession:
        session: SparkSession = request.getfixturevalue("spark")
        return session

    def make(
        mode: Mode,
        *names: str,
        links: list[tuple[str, str]] | None = None,
        trigger: Trigger = "micro-batch",
        relays_on: str = "spark",
    ) -> World:
        number = next(_numbers)
        sites = [f"{name}{number}" for name in names]
        brokers = itertools.cycle((broker, second_broker))
        connections = {site: Connection(next(brokers).bootstrap_servers) for site in sites}
        if mode == "hub":
            pairs = [(sites[0], other) for other in sites[1:]]
        else:
            pairs = [(f"{a}{number}", f"{b}{number}") for a, b in links or itertools.combinations(names, 2)]
        home = sites[0] if mode == "hub" else None
        sites_of_world = Sites(mode, home, trigger, connections, frozenset(map(frozenset, pairs)))
        return World(spark, sites_of_world, tmp_path, relays_on)

    return make


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    """Processes of the test, killed at its end."""
    started: list[Process] = []
    yield started
    for process in started:
        process.kill()
