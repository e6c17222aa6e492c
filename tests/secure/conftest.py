"""Another secure Kafka for the relays' tests: each of the two requires passwords of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.local.broker import EmbeddedBroker
from tests.conftest import started


@pytest.fixture(scope="module")
def second_secure_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """Share it in the tests of one module."""
    with started(tmp_path_factory.mktemp("second-secure-broker"), secure=True) as running:
        yield running
