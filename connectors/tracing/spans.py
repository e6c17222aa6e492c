"""The spans of abcast, by OpenTelemetry's conventions for messaging (docs/monitoring.md, "Traces").

A message's *creation context* is in its headers `traceparent` and `tracestate` (W3C Trace Context). Three rules choose
it:

1. Headers that the application has given stay as they are.
2. Under an active span of the application it is that span's. So all messages of a span have equal headers, and a
   sequencer packs them (`ordering.sequencer.packing`). A context of its own for each would keep them apart.
3. Otherwise it is the context of the span that `broadcast` makes, or `broadcast_many` for all of its messages. A span
   that is not sampled gives none: nobody could look it up.

The Kafka instrumentors of OpenTelemetry do not see abcast's clients (`connectors.kafka.transport`), so no message is
counted twice.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from connectors.kafka.codec.headers import size_of
from ordering.base.names import Address
from ordering.base.records import MAX_HEADERS_BYTES, Headers, MessageId
from ordering.casts.casts import TOTAL

SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
"""The version of the conventions."""
MAX_LINKS = 128
"""The most links of a span: OpenTelemetry's default limit. Further traces of a batch have none."""
TRACEPARENT, TRACESTATE = "traceparent", "tracestate"

T = TypeVar("T")
_logger = logging.getLogger(__name__)
_propagator = TraceContextTextMapPropagator()


class _Harmless:
    """Goes on after any error of a tracer, a sampler, a processor or an exporter; the first one is logged."""

    def __init__(self) -> None:
        self._has_told = False

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if isinstance(error, Exception) and not self._has_told:
            self._has_told = True
            _logger.warning("OpenTelemetry fails (%r): spans of abcast are missing", error)
        return error is None or isinstance(error, Exception)


_harmless = _Harmless()


# --- sending ---


class SendSpan:
    """The span of a broadcast, entered by `with`. `headers`: those to send, with the creation context."""

    def __init__(self, headers: Headers, span: Span) -> None:
        self.headers = headers
        self._span = span

    def __enter__(self) -> SendSpan:
        return self

    def accepted(self, message_id: MessageId) -> None:
        """Note the id of the message, or of the last one."""
        with _harmless:
            if self._span.is_recording():
                self._span.set_attribute("messaging.message.id", str(message_id))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the span; with the error, if there is one."""
        with _harmless:
            _end(self._span, error)


def begin_sending(
    group: str, address: Address, payloads: Sequence[bytes], headers: Headers, max_bytes: int
) -> SendSpan | None:
    """Begin the span of a broadcast of these payloads: see `connectors.tracing.sending`."""
    sent = None
    with _harmless:
        if not _is_set_up():
            return None
        active = trace.get_current_span().get_span_context()
        is_given = any(name == TRACEPARENT for name, _ in headers)
        creation = context_in(headers)
        if not is_given and active.is_valid:
            creation = active
        size, count = sum(map(len, payloads)), len(payloads)
        about = {"messaging.message.body.size": size} if count == 1 else {"messaging.batch.message_count": count}
        links = [Link(creation)] if creation is not None else []
        span = _begin("broadcast", "send", SpanKind.PRODUCER, group, about, links, address)
        sent = SendSpan(headers, span)
        if not is_given:
            own = creation or span.get_span_context()
            if own.is_valid and (active.is_valid or own.trace_flags.sampled):
                added = headers_of(own)
                bytes_each = size_of((*headers, *added))
                if bytes_each <= MAX_HEADERS_BYTES and (count == 1 or size + count * bytes_each <= max_bytes):
                    sent.headers = (*headers, *added)
    return sent


# --- delivering ---


def with_spans(items: Iterator[T], group: str, address: Address) -> Iterator[T]:
    """Yield the items, each within its span if it has a creation context; then close `items`."""
    try:
        for item in items:
            span = _begin_delivery(item, group, address)
            try:
                yield item
            finally:
                del item
                if span is not None:
                    with _harmless:
                        span.end()
    finally:
        items.close()  # type: ignore[attr-defined]


def _begin_delivery(item: Any, group: str, address: Address) -> Span | None:
    with _harmless:
        is_list = isinstance(item, list)
        contexts = _contexts_in(getattr(one, "headers", ()) for one in (item if is_list else (item,)))
        if not contexts or not _is_set_up():
            return None
        if is_list:
            parent = None
            about: dict[str, Any] = {"messaging.batch.message_count": len(item)}
        else:
            about = {
                "messaging.message.body.size": len(item.payload),
                "abcast.sender": item.sender,
                "abcast.order": item.order,
            }
            if item.order == TOTAL:
                message_id = MessageId(item.sender, item.incarnation, item.local_seqno)
                about |= {"messaging.message.id": str(message_id), "abcast.seqno": item.seqno}
            # An active span is the parent. Without one, the sender's trace goes on: so it is sampled as one.
            parent = None if trace.get_current_span().get_span_context().is_valid else _with(contexts[0])
        links = [Link(each) for each in contexts]
        return _begin("deliver", "process", SpanKind.CONSUMER, group, about, links, address, parent)
    return None


# --- ordering, and relays ---


class BatchSpan:
    """The span of a batch of a sequencer or a relay, until Kafka has it."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def end(self, error: BaseException | None = None) -> None:
        """End the span; with the error, if Kafka did not take the batch."""
        with _harmless:
            _end(self._span, error)


def begin_passing(
    operation: str, group: str, headers: Iterable[Sequence[tuple[str, bytes]]], link: str
) -> BatchSpan | None:
    """Begin the span of a batch: see `connectors.tracing.passing`."""
    with _harmless:
        if not _is_set_up():
            return None
        every = list(headers)
        contexts = _contexts_in(each for each in every if len(each) > 1)
        if contexts:
            about: dict[str, Any] = {"messaging.batch.message_count": len(every)}
            if link:
                about["abcast.link"] = link
            links = [Link(each) for each in contexts]
            return BatchSpan(_begin(operation, "process", SpanKind.CONSUMER, group, about, links))
    return None


# --- contexts ---


def context_in(headers: Iterable[tuple[str, bytes]]) -> SpanContext | None:
    """Return the creation context in the headers: the first one, if it is valid."""
    carrier: dict[str, bytes] = {}
    for name, value in headers:
        if name in (TRACEPARENT, TRACESTATE):
            carrier.setdefault(name, value or b"")  # null in another client's record
    return _parsed(carrier[TRACEPARENT], carrier.get(TRACESTATE, b"")) if TRACEPARENT in carrier else None


@functools.lru_cache(maxsize=MAX_LINKS)  # the messages of a trace come together
def _parsed(parent: bytes, state: bytes) -> SpanContext | None:
    carrier = {TRACEPARENT: parent.decode("latin-1"), TRACESTATE: state.decode("latin-1")}
    found = trace.get_current_span(_propagator.extract(carrier, Context())).get_span_context()
    return found if found.is_valid else None


def headers_of(context: SpanContext) -> Headers:
    """Return the headers with this creation context."""
    return _headers_of(context.trace_id, context.span_id, context.trace_flags, context.trace_state.to_header())


@functools.lru_cache(maxsize=1)  # an active span has many messages
def _headers_of(trace_id: int, span_id: int, flags: int, state: str) -> Headers:
    states = trace.TraceState.from_header([state])
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, _with(SpanContext(trace_id, span_id, False, trace.TraceFlags(flags), states)))
    return tuple((name, value.encode("latin-1")) for name, value in carrier.items())


def _contexts_in(every: Iterable[Sequence[tuple[str, bytes]]]) -> list[SpanContext]:
    """Return the different creation contexts in these headers, MAX_LINKS at most."""
    found: dict[tuple[int, int], SpanContext] = {}
    for headers in every:
        context = context_in(headers) if headers else None
        if context is not None and len(found) < MAX_LINKS:
            found.setdefault((context.trace_id, context.span_id), context)
    return list(found.values())


def _with(context: SpanContext) -> Context:
    return trace.set_span_in_context(trace.NonRecordingSpan(context), Context())


# --- spans ---


def _is_set_up() -> bool:
    """Whether the application has set a tracer provider."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def _begin(
    name: str,
    kind_of_operation: str,
    kind: SpanKind,
    group: str,
    about: dict[str, Any],
    links: Sequence[Link],
    address: Address | None = None,
    parent: Context | None = None,
) -> Span:
    own = {"messaging.client.id": str(address)} if address is not None else {}
    attributes = {
        "messaging.system": "abcast",
        "messaging.operation.name": name,
        "messaging.operation.type": kind_of_operation,
        "messaging.destination.name": group,
        **own,
        **about,
    }
    return _tracer(trace.get_tracer_provider()).start_span(
        f"{name} {group}", parent, kind=kind, attributes=attributes, links=links
    )


@functools.lru_cache(maxsize=1)  # until the application sets another one
def _tracer(provider: trace.TracerProvider) -> Tracer:
    return provider.get_tracer("abcast", importlib.metadata.version("abcast"), SCHEMA)


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None and span.is_recording():
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()
