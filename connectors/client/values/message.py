"""An application's message before it is sent: a payload, and headers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from connectors.kafka.codec.headers import check_application_headers
from ordering.base.errors import UsageError
from ordering.base.records import MAX_PAYLOAD_BYTES, Headers

GivenPayload = bytes | bytearray | memoryview
GivenHeaders = Iterable[tuple[str, bytes]] | Mapping[str, bytes]


Serializer = Callable[[Any], GivenPayload]


def check_payload(payload: object, serializer: Serializer | None = None) -> bytes:
    """Return the bytes of the payload, serialized first if there is a `serializer`; a mutable payload is copied.

    Raises UsageError if it can't be sent: the serializer fails, it is not bytes, or it is over MAX_PAYLOAD_BYTES.
    """
    if serializer is not None:
        try:
            payload = serializer(payload)
        except Exception as error:
            raise UsageError(f"the serializer can't make a payload of a {type(payload).__name__}: {error}") from error
    if not isinstance(payload, bytes):
        if not isinstance(payload, bytearray | memoryview):
            raise UsageError(f"a payload is a bytes object, not {type(payload).__name__}: encode it first.")
        try:
            payload = bytes(payload)
        except ValueError as error:
            raise UsageError(f"the payload can't be read: {error}.") from error
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise UsageError(f"the payload has {len(payload)} bytes, over the limit of {MAX_PAYLOAD_BYTES}: split it.")
    return payload


def check_payloads(payloads: Iterable[object], serializer: Serializer | None = None) -> list[bytes]:
    """Return the bytes of one or more payloads, each as `check_payload` does. Raises UsageError at a bad one."""
    if isinstance(payloads, GivenPayload | str) or not isinstance(payloads, Iterable):
        raise UsageError(f"payloads are a list or an iterator of payloads, not {type(payloads).__name__}.")
    kept: list[bytes] = []
    try:
        kept.extend(check_payload(payload, serializer) for payload in payloads)
    except UsageError as error:
        raise UsageError(f"payload {len(kept) + 1}: {error}") from error
    if not kept:
        raise UsageError("there is no payload: give at least one.")
    return kept


def check_headers(headers: GivenHeaders) -> Headers:
    """Return the application's headers as pairs. Raises UsageError if they can't be sent."""
    if headers == ():
        return ()
    try:
        pairs = [(name, value) for name, value in (headers.items() if isinstance(headers, Mapping) else headers)]
    except (TypeError, ValueError) as error:
        raise UsageError("headers are (str, bytes) pairs, or a dict of them.") from error
    return check_application_headers(pairs)
