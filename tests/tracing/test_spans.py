"""Spans of members and of the process engine: what they say, how they hang together; and that they change nothing."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from kafka.structs import TopicPartition
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from connectors import AsyncMember, Member
from connectors.engine.writing import WriteFailed
from connectors.kafka.codec.codec import decode_data
from connectors.kafka.connection.connection import Connection
from connectors.testing import MemoryConnection, SequencerThread
from connectors.tracing import spans as of_abcast
from ordering.base.errors import UsageError
from ordering.base.packs import MAX_PACK_MESSAGES
from ordering.base.records import MAX_HEADERS_BYTES, MESSAGE, MESSAGES, Data, Headers
from tests.client.members import with_casts
from tests.tracing.conftest import Spans, set_up
from tests.waiting import WAIT

GIVEN = ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


@pytest.fixture
def alice(connection: Connection, group: str) -> Iterator[Member]:
    with Member(group, "nyc/alice", connection=connection) as member:
        yield member


def data(connection: MemoryConnection, group: str) -> list[Data]:
    place = TopicPartition(f"abcast.{group}.data.nyc", 0)
    found = [decode_data(each.key, each.value, each.headers) for each in connection.topics.partitions[place]]
    return [each for each in found if each.kind in (MESSAGE, MESSAGES)]


def attributes(span: ReadableSpan) -> dict[str, object]:
    return {name.removeprefix("messaging."): value for name, value in (span.attributes or {}).items()}


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def context_headers(span: ReadableSpan | trace.Span) -> Headers:
    context = span.get_span_context()
    assert context is not None
    return of_abcast.headers_of(context)


def own(span: ReadableSpan | trace.Span) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def test_a_message(connection: Connection, group: str, alice: Member, provider: TracerProvider, spans: Spans) -> None:
    """The span of `broadcast` is the parent of the delivery, and linked from it and from the batch of the sequencer."""
    with SequencerThread(connection, group):
        receipt = alice.broadcast(b"buy", {"n": b"v"})
        seqno = receipt.result(WAIT)
        (got,) = islice(alice.deliveries(timeout=WAIT), 1)
    (sent,), (ordered,), (delivered,) = map(spans, ("broadcast", "order", "deliver"))
    assert (sent.name, sent.kind, sent.parent) == (f"broadcast {group}", SpanKind.PRODUCER, None)
    common = {"system": "abcast", "destination.name": group}
    assert attributes(sent) == {
        **common,
        "operation.name": "broadcast",
        "operation.type": "send",
        "client.id": "nyc/alice",
        "message.body.size": 3,
        "message.id": str(receipt.message_id),
    }
    assert got.headers[0] == ("n", b"v")
    assert got.headers[1:] == context_headers(sent)
    assert (ordered.name, ordered.kind, links(ordered)) == (f"order {group}", SpanKind.CONSUMER, [own(sent)])
    assert attributes(ordered) == {
        **common,
        "operation.name": "order",
        "operation.type": "process",
        "batch.message_count": 1,
    }
    assert (delivered.name, delivered.kind, links(delivered)) == (f"deliver {group}", SpanKind.CONSUMER, [own(sent)])
    assert delivered.parent is not None
    assert (delivered.parent.trace_id, delivered.parent.span_id) == own(sent)
    assert attributes(delivered) == {
        **common,
        "operation.name": "deliver",
        "operation.type": "process",
        "client.id": "nyc/alice",
        "message.body.size": 3,
        "message.id": str(receipt.message_id),
        "abcast.sender": "nyc/alice",
        "abcast.order": "total",
        "abcast.seqno": seqno,
    }


def test_messages_of_one_span_are_packed(
    connection: MemoryConnection, group: str, alice: Member, provider: TracerProvider, spans: Spans
) -> None:
    """Each has a span of its own, a child of the active one, and the active one's context."""
    tracer = provider.get_tracer("application")
    with tracer.start_as_current_span("order placed") as parent:
        receipts = [alice.broadcast(b"%d" % number) for number in range(100)]
        receipts.append(alice.broadcast_many([b"x", b"y"]))
    with SequencerThread(connection, group):
        receipts[-1].result(WAIT)
    (pack,) = data(connection, group)
    assert (pack.kind, pack.count, pack.headers) == (MESSAGES, 102, context_headers(parent))
    sent = spans("broadcast")
    assert {attributes(span)["message.id"] for span in sent} == {str(receipt.message_id) for receipt in receipts}
    for span in sent:
        assert (span.parent, links(span)) == (parent.get_span_context(), [own(parent)])
    assert attributes(sent[-1])["batch.message_count"] == 2
    assert [links(span) for span in spans("order")] == [[own(parent)]]
    with tracer.start_as_current_span("read") as reading:
        stream = alice.deliveries(timeout=WAIT)
        (first,) = islice(stream, 1)
        rest = next(stream.batches(most=1000))
        stream.close()
    assert [first.payload, *(each.payload for each in rest)] == [*(b"%d" % n for n in range(100)), b"x", b"y"]
    of_first, of_rest = spans("deliver")
    for span in (of_first, of_rest):
        assert (span.parent, links(span)) == (reading.get_span_context(), [own(parent)])
    assert attributes(of_rest)["batch.message_count"] == 101


def test_broadcast_many_without_a_span(
    connection: MemoryConnection, group: str, alice: Member, provider: TracerProvider, spans: Spans
) -> None:
    """Packed: all have one span and one context."""
    receipt = alice.broadcast_many([b"m"] * (MAX_PACK_MESSAGES + 1))
    with SequencerThread(connection, group):
        receipt.result(WAIT)
    (sent,) = spans("broadcast")
    assert len(data(connection, group)) < 10
    assert sum(each.count for each in data(connection, group)) == MAX_PACK_MESSAGES + 1
    assert {each.headers for each in data(connection, group)} == {context_headers(sent)}


def test_the_context_of_the_application(
    connection: MemoryConnection, group: str, alice: Member, provider: TracerProvider, spans: Spans
) -> None:
    """Headers of the application stay, also nonsense; a span links to their context."""
    with SequencerThread(connection, group):
        for value in (GIVEN[1], b"nonsense"):
            with provider.get_tracer("application").start_as_current_span("active"):
                alice.broadcast(b"m", [("traceparent", value)]).result(WAIT)
        assert [got.headers for got in islice(alice.deliveries(timeout=WAIT), 2)] == [
            (GIVEN,),
            (("traceparent", b"nonsense"),),
        ]
    context = of_abcast.context_in([GIVEN])
    assert context is not None
    assert [links(span) for span in spans("broadcast")] == [[(context.trace_id, context.span_id)], []]
    assert len(spans("deliver")) == 1


def test_headers_and_contexts() -> None:
    """The state of a vendor travels, too; the first of two contexts counts."""
    headers = (GIVEN, ("tracestate", b"vendor=1,other=2"))
    context = of_abcast.context_in([("n", b"v"), *headers, ("traceparent", GIVEN[1].replace(b"b7", b"c8"))])
    assert context is not None
    assert of_abcast.headers_of(context) == headers
    assert of_abcast.context_in([("traceparent", GIVEN[1].replace(b"00-0", b"ff-0"))]) is None


def test_casts(connection: Connection, group: str, provider: TracerProvider, spans: Spans) -> None:
    with SequencerThread(connection, group), with_casts(connection, group, "a") as a:
        a.connect(timeout=WAIT)
        a.broadcast(b"m", order="fifo").result(WAIT)
        (got,) = islice(a.deliveries(timeout=WAIT), 1)
    (sent,), (delivered,) = spans("broadcast"), spans("deliver")
    assert got.headers == context_headers(sent)
    assert links(delivered) == [own(sent)]
    assert (attributes(delivered)["abcast.order"], "abcast.seqno" in attributes(delivered)) == ("fifo", False)


def test_asyncio(connection: Connection, group: str, provider: TracerProvider, spans: Spans) -> None:
    """The task's span is the active one, though a thread does the work."""

    async def talk() -> tuple[int, int]:
        async with AsyncMember(group, "nyc/a", connection=connection) as a:
            with provider.get_tracer("application").start_as_current_span("task") as task:
                await (await a.broadcast(b"m"))
                stream = a.deliveries(timeout=WAIT)
                await anext(stream)
                await stream.aclose()
                return own(task)

    with SequencerThread(connection, group):
        task = asyncio.run(talk())
    for span in (*spans("broadcast"), *spans("deliver")):
        assert span.parent is not None
        assert ((span.parent.trace_id, span.parent.span_id), links(span)) == (task, [task])
    assert (len(spans("broadcast")), len(spans("deliver"))) == (1, 1)


def test_a_delivery_ends_with_the_loop(
    connection: Connection, group: str, alice: Member, provider: TracerProvider, spans: Spans
) -> None:
    """The next item, `close`, and the loss of the stream end its span; an untaken message is delivered again."""
    with SequencerThread(connection, group):
        alice.broadcast_many([b"1", b"2", b"3"]).result(WAIT)
        stream = alice.deliveries(timeout=WAIT)
        next(stream)
        assert not spans("deliver")
        assert next(stream).payload == b"2"
        assert len(spans("deliver")) == 1
        stream.close()
        assert len(spans("deliver")) == 2
        again = alice.deliveries(timeout=WAIT)
        assert next(again).payload == b"2"
        del again
        assert len(spans("deliver")) == 3
        assert not [span for span in spans("deliver") if span.status.status_code is StatusCode.ERROR]


def test_a_refused_broadcast(alice: Member, provider: TracerProvider, spans: Spans) -> None:
    alice.close()
    with pytest.raises(UsageError, match="is closed"):
        alice.broadcast(b"m")
    (span,) = spans("broadcast")
    assert (span.status.status_code, attributes(span)["error.type"]) == (StatusCode.ERROR, "UsageError")


def test_a_lost_write(
    connection: MemoryConnection, group: str, alice: Member, provider: TracerProvider, spans: Spans
) -> None:
    """The span of a batch that Kafka does not take ends with the error. The member sends the message again."""
    running = SequencerThread(connection, group).__enter__()
    connection.topics.refuse(f"abcast.{group}.data.nyc", 1)
    receipt = alice.broadcast(b"m")
    running._thread.join(WAIT)
    with pytest.raises(WriteFailed):
        running.__exit__(None, None, None)
    (span,) = spans("order")
    assert (span.status.status_code, attributes(span)["error.type"]) == (StatusCode.ERROR, "WriteFailed")
    with SequencerThread(connection, group):
        assert receipt.result(WAIT) == 1


@pytest.mark.parametrize("name", ["traceparent", "tracestate"])
def test_a_null_header(
    connection: MemoryConnection, group: str, alice: Member, provider: TracerProvider, spans: Spans, name: str
) -> None:
    """A record of another client takes nothing from the others of its batch."""
    forward = TopicPartition(f"abcast.{group}.forward.nyc", 0)
    headers: list[Any] = [("traceparent", None)] if name == "traceparent" else [GIVEN, ("tracestate", None)]
    connection.topics.append(forward, b"nyc/x", b"", headers)
    receipt = alice.broadcast(b"m")
    with SequencerThread(connection, group):
        receipt.result(WAIT)
    (ordered,) = spans("order")
    assert own(spans("broadcast")[0]) in links(ordered)


# --- where there is no room, or no trace ---


def test_full_headers(connection: Connection, group: str, alice: Member, provider: TracerProvider) -> None:
    """An application that uses all of its limits loses nothing but the trace."""
    full = (("h", bytes(MAX_HEADERS_BYTES - 1)),)
    with SequencerThread(connection, group), Member(group, "nyc/b", connection=connection, max_pending_bytes=1000) as b:
        for receipt in (alice.broadcast(b"m", full), b.broadcast_many([bytes(100)] * 10), b.broadcast(bytes(2000))):
            receipt.result(WAIT)
        got = list(islice(alice.deliveries(timeout=WAIT), 12))
    assert [len(each.headers) for each in got] == [1] + [0] * 10 + [1]
    assert got[0].headers == full


@pytest.mark.parametrize("unsampled", [False, True])
def test_nothing_is_added(
    connection: Connection, group: str, alice: Member, monkeypatch: pytest.MonkeyPatch, unsampled: bool
) -> None:
    """Without a tracer provider, and with one whose sampler takes no message."""
    if unsampled:
        set_up(monkeypatch, TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False))
    with SequencerThread(connection, group):
        alice.broadcast(b"m").result(WAIT)
        (got,) = islice(alice.deliveries(timeout=WAIT), 1)
    assert got.headers == ()


def test_the_context_of_a_span_that_is_not_sampled(
    connection: Connection, group: str, alice: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The context travels, so that no other process samples the trace."""
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    set_up(monkeypatch, provider)
    with SequencerThread(connection, group), provider.get_tracer("application").start_as_current_span("active"):
        alice.broadcast(b"m").result(WAIT)
        (got,) = islice(alice.deliveries(timeout=WAIT), 1)
    ((name, value),) = got.headers
    assert (name, int(value.rpartition(b"-")[2], 16) & 1) == ("traceparent", 0)


@pytest.mark.slow
def test_nothing_is_imported() -> None:
    """A member and a sequencer work without OpenTelemetry, and do not import it."""
    script = """if True:
        import sys
        from abcast.testing import MemoryGroup
        with MemoryGroup() as group:
            alice = group.member("alice")
            alice.broadcast(b"m").result(30)
            got = next(alice.deliveries(timeout=30))
        assert got.headers == ()
        print([name for name in sys.modules if name.startswith("opentelemetry")])
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")


# --- errors of OpenTelemetry ---


class _Broken(SpanExporter):
    def export(self, spans: object) -> object:  # type: ignore[override]
        raise RuntimeError("the collector is away")


class _BrokenProcessor(SimpleSpanProcessor):
    def __init__(self, at: str) -> None:
        super().__init__(_Broken())
        self._at = at

    def on_start(self, span: object, parent_context: object = None) -> None:
        if self._at == "start":
            raise RuntimeError("the processor is broken")

    def on_end(self, span: ReadableSpan) -> None:
        if self._at == "end":
            raise RuntimeError("the processor is broken")
        super().on_end(span)


@pytest.mark.parametrize("at", ["start", "end", "export"])
def test_failing(
    connection: MemoryConnection,
    group: str,
    alice: Member,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    at: str,
) -> None:
    """A broken processor or exporter fails no broadcast, no order and no delivery; abcast says it once."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(_BrokenProcessor(at))
    set_up(monkeypatch, provider)
    monkeypatch.setattr(of_abcast, "_harmless", of_abcast._Harmless())
    with caplog.at_level(logging.WARNING, "connectors.tracing"), SequencerThread(connection, group):
        receipts = [alice.broadcast(b"%d" % number) for number in range(3)]
        assert [receipt.result(WAIT) for receipt in receipts] == [1, 2, 3]
        assert [got.payload for got in islice(alice.deliveries(timeout=WAIT), 3)] == [b"0", b"1", b"2"]
    told = [record.getMessage() for record in caplog.records if record.name == of_abcast.__name__]
    expected = "OpenTelemetry fails (RuntimeError('the processor is broken')): spans of abcast are missing"
    assert told == ([] if at == "export" else [expected])
