"""What an application may send: a payload, and headers of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from connectors.kafka.codec import check_application_headers
from ordering.errors import UsageError
from ordering.records import MAX_PAYLOAD_BYTES, Headers

GivenHeaders = Iterable[tuple[str, bytes]] | Mapping[str, bytes]


def check_message(payload: bytes, headers: GivenHeaders) -> Headers:
    """The application's headers. Raises UsageError if it can't send that."""
    if not isinstance(payload, bytes):
        raise UsageError(f"a payload is a bytes object, not {type(payload).__name__}: encode it first.")
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise UsageError(f"the payload has {len(payload)} bytes, over the limit of {MAX_PAYLOAD_BYTES}: split it.")
    if not headers:
        return ()
    try:
        pairs = [(name, value) for name, value in (headers.items() if isinstance(headers, Mapping) else headers)]
    except (TypeError, ValueError) as error:
        raise UsageError("headers are (str, bytes) pairs, or a dict of them.") from error
    return check_application_headers(pairs)
