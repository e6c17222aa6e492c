"""With OpenTelemetry's own instrumentors of both Kafka libraries on, on a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest
from kafka.structs import TopicPartition
from opentelemetry.instrumentation.confluent_kafka import ConfluentKafkaInstrumentor
from opentelemetry.instrumentation.kafka import KafkaInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from connectors import Member
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import read_range
from connectors.kafka.transport import Record
from connectors.testing import SequencerThread
from tests.tracing.conftest import Spans
from tests.waiting import WAIT

BOTH = pytest.mark.parametrize("connection", ["confluent", "kafka-python"], indirect=True)
MESSAGES = 1_000


@pytest.fixture(autouse=True)
def instrumented(provider: TracerProvider) -> Iterator[None]:
    """Instrument both libraries, as `opentelemetry-instrument` does."""
    instrumentors = KafkaInstrumentor(), ConfluentKafkaInstrumentor()
    for each in instrumentors:
        each.instrument(tracer_provider=provider, skip_dep_check=True)
    yield
    for each in instrumentors:
        each.uninstrument()


def records(connection: Connection, topic: str) -> list[Record]:
    place = TopicPartition(topic, 0)
    consumer = connection.consumer()
    try:
        (end,) = consumer.end_offsets([place]).values()
        return list(read_range(connection, consumer, place, 0, end))
    finally:
        consumer.close()


def traces(spans: list[ReadableSpan]) -> list[int]:
    return [span.context.trace_id for span in spans if span.context is not None]


@pytest.mark.broker
@BOTH
def test_nothing_breaks_and_nothing_is_counted_twice(
    connection: Connection, group: str, provider: TracerProvider, exporter: InMemorySpanExporter, spans: Spans
) -> None:
    """Each broadcast and each delivery has one span, of abcast's; each record one context; and they go in packs."""
    with SequencerThread(connection, group), Member(group, "nyc/alice", connection=connection) as alice:
        with provider.get_tracer("application").start_as_current_span("orders"):
            receipts = [alice.broadcast(b"%d" % number) for number in range(MESSAGES)]
        assert [receipt.result(WAIT) for receipt in receipts] == list(range(1, MESSAGES + 1))
        got = list(islice(alice.deliveries(timeout=WAIT), MESSAGES))
    assert [each.payload for each in got] == [b"%d" % number for number in range(MESSAGES)]
    assert {len(each.headers) for each in got} == {1}
    scopes = {span.instrumentation_scope.name for span in exporter.get_finished_spans() if span.instrumentation_scope}
    assert scopes == {"abcast", "application"}
    assert (len(spans("broadcast")), len(spans("deliver"))) == (MESSAGES, MESSAGES)
    assert len({*traces(spans("broadcast")), *traces(spans("deliver"))}) == 1
    sent = [each for each in records(connection, f"abcast.{group}.forward.nyc") if b" message" in each.headers[0][1]]
    assert {len(each.headers) for each in sent} == {2}
    packs = [each for each in records(connection, f"abcast.{group}.data.nyc") if b" messages " in each.headers[0][1]]
    assert sum(int(each.headers[0][1].rpartition(b" ")[2]) for each in packs) > MESSAGES // 2


@pytest.mark.broker
@BOTH
def test_each_message_of_a_trace_of_its_own(connection: Connection, group: str, spans: Spans) -> None:
    """Without an active span, each broadcast begins a trace, and its delivery is in it."""
    with SequencerThread(connection, group), Member(group, "nyc/alice", connection=connection) as alice:
        for number in range(100):
            alice.broadcast(b"%d" % number)
        assert len(list(islice(alice.deliveries(timeout=WAIT), 100))) == 100
    assert len(set(traces(spans("broadcast")))) == 100
    assert traces(spans("broadcast")) == traces(spans("deliver"))
