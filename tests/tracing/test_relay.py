"""Spans of a relay in the process engine, between two Kafkas in memory."""

from __future__ import annotations

from contextlib import closing

import pytest
from kafka.structs import TopicPartition
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind, StatusCode

from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.groups.suspended_groups import SuspendedGroups
from connectors.kafka.groups.troubles import Troubles
from connectors.relay.hub import SiteForward
from connectors.relay.process.job import RelaySupervisor
from connectors.relay.process.loop import CopyLoop
from connectors.testing import MemoryConnection
from tests.relay.carrying import relays_in_memory
from tests.tracing.conftest import Spans
from tests.tracing.test_spans import GIVEN, attributes, links
from tests.waiting import eventually

WAY = Direction("sfo", "nyc")
SOURCE = TopicPartition("abcast.g.forward.sfo", 0)


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_batch(provider: TracerProvider, spans: Spans, is_refused: bool) -> None:
    """Its span has a link for each context, and ends with Kafka's answer."""
    connections = {site: MemoryConnection() for site in WAY}
    for site, connection in connections.items():
        connection.create("g", site)
    sites = Sites("hub", "nyc", "micro-batch", dict(connections), frozenset([frozenset(WAY)]))
    with relays_in_memory():
        relay = SiteForward(sites, WAY, look_every_s=0.0)
        with closing(CopyLoop(relay)) as loop:
            relay.begin(loop.copied)
            RelaySupervisor(relay, loop, SuspendedGroups("relay", (1.0,)), Troubles()).look()
            for number, headers in enumerate(([GIVEN], [], [GIVEN]), start=1):
                own = ("abcast", f"2 message 1 {number}".encode())
                connections["sfo"].topics.append(SOURCE, b"sfo/al", b"x", [own, *headers])
            if is_refused:
                connections["nyc"].topics.refuse("abcast.g.relayed-sfo.nyc", 1)
            loop.start()
            eventually(lambda: loop._failure if is_refused else loop.copied()[SOURCE] == 3)
    (span,) = spans("relay")
    assert (span.name, span.kind, len(links(span))) == ("relay g", SpanKind.CONSUMER, 1)
    assert attributes(span)["batch.message_count"] == 3
    assert attributes(span)["abcast.link"] == relay.name
    assert (span.status.status_code == StatusCode.ERROR) == is_refused
