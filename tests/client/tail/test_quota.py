"""A producer quota, which docs/security.md recommends, puts no live member out. On a real broker."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator

import pytest

from connectors import Member
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.topics.settings import change_settings
from connectors.kafka.topics.topics import create_topics
from connectors.local.broker import EmbeddedBroker
from connectors.local.jars import jars_of
from connectors.local.java import require_java
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import AbcastError
from ordering.base.records import VIEW

GROUP = "quota"
SUSPECT_AFTER_S = 5
BYTES_PER_S = 100_000
MESSAGE = bytes(20_000)
COUNT = 150
"""At that rate these messages take 30 s: their backlog is several times `suspect_after_ms`."""


@pytest.fixture
def limited(broker: EmbeddedBroker) -> Iterator[str]:
    """Yield a client id from which the broker takes `BYTES_PER_S`."""
    command = [
        *(str(require_java()), "-cp", ":".join(map(str, jars_of("broker"))), "kafka.admin.ConfigCommand"),
        *("--bootstrap-server", broker.bootstrap_servers, "--entity-type", "clients", "--entity-name", "limited"),
        "--alter",
    ]
    quota = "producer_byte_rate"
    subprocess.run([*command, "--add-config", f"{quota}={BYTES_PER_S}"], check=True, timeout=60, capture_output=True)
    yield "limited"
    subprocess.run([*command, "--delete-config", quota], check=True, timeout=60, capture_output=True)


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize("transport", ["confluent", "kafka-python"])
def test_who_sends_too_much_for_its_quota_is_suspected_no_more_than_its_neighbours(
    broker: EmbeddedBroker, limited: str, transport: str
) -> None:
    group = f"{GROUP}-{transport}"
    connection = Connection(broker.bootstrap_servers, transport=transport)
    create_topics(connection, group, ["nyc"], partitions=1)
    change = Connection(broker.bootstrap_servers, 11.0, transport=transport, client_id=limited)
    with contextlib.ExitStack() as to_close:
        to_close.enter_context(SequencerThread(connection, group))
        change_settings(connection, group, "nyc", suspect_after_ms=SUSPECT_AFTER_S * 1000)
        a, b = (Member(group, f"nyc/{name}", connection=change) for name in "ab")
        for member in (b, a):
            member.connect()
            to_close.callback(_close, member)
        receipts = [a.broadcast(MESSAGE) for _ in range(COUNT)]
        time.sleep(3 * SUSPECT_AFTER_S)
        assert not all(receipt.done() for receipt in receipts), "the quota holds nothing back"
        with DataLog(connection, group, "nyc") as log:
            views = [stored.data for stored in log.records(0, log.end()) if stored.data.kind == VIEW]
        assert [json.loads(view.payload)["suspected"] for view in views] == [[], []]


def _close(member: Member) -> None:
    with contextlib.suppress(AbcastError):
        member.close(timeout=0.1)
