"""A tracer provider with an exporter in memory, for one test."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import create_topics
from connectors.kafka.topics.upgrade import upgrade
from connectors.local.broker import EmbeddedBroker
from connectors.testing import MemoryConnection

_numbers = itertools.count(1)

Spans = Callable[[str], list[ReadableSpan]]
"""Returns the ended spans of that operation, in the order of their ends."""


def set_up(monkeypatch: pytest.MonkeyPatch, provider: trace.TracerProvider) -> None:
    """Set the tracer provider. (Its own function works once in a process.)"""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch, exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    set_up(monkeypatch, provider)
    return provider


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Spans:
    def ended(operation: str) -> list[ReadableSpan]:
        found = exporter.get_finished_spans()
        return [span for span in found if (span.attributes or {}).get("messaging.operation.name") == operation]

    return ended


@pytest.fixture(params=["memory"])
def connection(request: pytest.FixtureRequest) -> Connection:
    """Kafka in memory; a real one where the test asks for it."""
    if request.param == "memory":
        return MemoryConnection()
    broker: EmbeddedBroker = request.getfixturevalue("broker")
    return Connection(broker.bootstrap_servers, transport=request.param)


@pytest.fixture
def group(connection: Connection) -> str:
    """A new group at the site nyc, of the newest format."""
    name = f"traced-{next(_numbers)}"
    if isinstance(connection, MemoryConnection):
        connection.create(name, "nyc")
    else:
        create_topics(connection, name, ["nyc"])
    upgrade(connection, name, "nyc")
    return name
