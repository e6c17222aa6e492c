"""The example of docs/monitoring.md runs, and gives one trace."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import create_topics
from connectors.local.broker import EmbeddedBroker
from connectors.testing import SequencerThread
from tests.papers import doc, fences, section


@pytest.mark.broker
def test_the_example(
    broker: EmbeddedBroker, provider: TracerProvider, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = Connection(broker.bootstrap_servers)
    monkeypatch.setenv("ABCAST_BOOTSTRAP_SERVERS", broker.bootstrap_servers)
    create_topics(connection, "orders", ["local"])
    [code] = fences(section(doc("monitoring"), "## Traces"), "python")
    with SequencerThread(connection, "orders", "local"):
        exec(compile(code, "monitoring.md", "exec"), {})
    spans = exporter.get_finished_spans()
    of_traces = {span.name: span.context.trace_id for span in spans if span.context is not None}
    assert of_traces.keys() == {"broadcast orders", "order orders", "order placed", "book", "deliver orders"}
    del of_traces["order orders"]
    assert len(set(of_traces.values())) == 1
