"""Spans of OpenTelemetry, where the application has set it up (`pip install 'abcast[otel]'`).

Nothing of OpenTelemetry is imported here. An application that sets a tracer provider has imported `opentelemetry.trace`
before. Without that, each function looks for a name in a dictionary, and returns.

Invariant. A span changes no order, no delivery and no message, but for its headers `traceparent` and `tracestate`. An
error of OpenTelemetry, or of an exporter, is logged once, and costs the span alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from ordering.base.names import Address
from ordering.base.records import Headers

if TYPE_CHECKING:
    from connectors.tracing.spans import BatchSpan, SendSpan

T = TypeVar("T")

_API = "opentelemetry.trace"


def sending(
    group: str, address: Address, payloads: Sequence[bytes], headers: Headers, max_bytes: int
) -> SendSpan | None:
    """Return the span of a broadcast, entered by `with`; None without OpenTelemetry.

    `headers`: the application's. `max_bytes`: the most that all payloads and headers together may have.
    """
    if _API not in sys.modules:
        return None
    from connectors.tracing.spans import begin_sending

    return begin_sending(group, address, payloads, headers, max_bytes)


def delivering(group: str, address: Address) -> Callable[[Iterator[T]], Iterator[T]] | None:
    """Return a function that gives each delivery, or list of them, a span; None without OpenTelemetry.

    The span begins when the iterator returns the item, and ends when the next one is asked for, or at `close`.
    """
    if _API not in sys.modules:
        return None
    from connectors.tracing.spans import with_spans

    return lambda items: with_spans(items, group, address)


def passing(
    operation: str, group: str, headers: Iterable[Sequence[tuple[str, bytes]]], link: str = ""
) -> BatchSpan | None:
    """Return the span of a batch on its way to Kafka, from the headers of its records. None if none has a trace.

    `operation`: "order" or "relay". `link`: the relay's.
    """
    if _API not in sys.modules:
        return None
    from connectors.tracing.spans import begin_passing

    return begin_passing(operation, group, headers, link)
