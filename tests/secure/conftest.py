"""Secure Kafkas: two for the relays' tests, since each requires passwords of its own. A broker costs CPU time while
nothing uses it, too: these stop after the last test here.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.local.broker import EmbeddedBroker
from tests.conftest import started


@pytest.fixture(scope="package")
def secure_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """Yield a broker with TLS, users and rights."""
    with started(tmp_path_factory.mktemp("secure-broker"), secure=True) as running:
        yield running


@pytest.fixture(scope="module")
def second_secure_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """Share it in the tests of one module."""
    with started(tmp_path_factory.mktemp("second-secure-broker"), secure=True) as running:
        yield running
