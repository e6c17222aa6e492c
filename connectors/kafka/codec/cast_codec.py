"""Encode and decode casts: the records of a cast topic (docs/records.md, "Casts").

Value = the payload, untouched. Key = the sender's address. Bad input is data here, too: an invalid record decodes to
the reason, never to an exception, and all readers pass it over.
"""

from __future__ import annotations

from collections.abc import Sequence

from connectors.kafka.codec.codec import (
    FUTURE_INCARNATION,
    HEADERS_TOO_LARGE,
    LINE_TOO_LARGE,
    NO_PAYLOAD,
    NO_SENDER,
    PAYLOAD_TOO_LARGE,
    REPEATED_HEADER,
    RESERVED_HEADER,
    UNREAD,
    WRONG_HEADER_NAME,
    WRONG_INCARNATION,
    WRONG_LOCAL_SEQNO,
    WRONG_SITE,
    WRONG_VERSION,
)
from connectors.kafka.codec.headers import (
    HEADER,
    NOTHING,
    VERSION,
    are_too_large,
    first_fields,
    has_wrong_name,
    highest_incarnation,
    is_too_long,
    parse_number,
    split_headers,
    without_depends,
    without_nulls,
)
from connectors.kafka.codec.plain_record import UNREAD_HEADER
from ordering.base.names import is_address
from ordering.base.records import MAX_PAYLOAD_BYTES
from ordering.casts.casts import CAUSAL, FIFO, NO_VIEW, Cast

CAST_FIELDS = (VERSION, "ORDER", "INCARNATION", "LOCAL_SEQNO", "VIEW", "AFTER", "CLOCK", "RELAYED_FROM")
"""The fields in a cast topic. ORDER is `fifo` or `causal`. A fifo cast has neither AFTER nor CLOCK; outside a view, no
VIEW. RELAYED_FROM is present only where a relay brought the record; receivers ignore it.
"""
WRONG_ORDER = "ORDER in the header abcast is neither fifo nor causal"
WRONG_VIEW = "VIEW in the header abcast is not a number from 1, which a causal cast has to say"
WRONG_CLOCK = "AFTER or CLOCK of a causal cast is missing in the header abcast"


def cast_headers(cast: Cast) -> list[tuple[str, bytes]]:
    """Return the headers of a cast, whose key is the sender's address."""
    view = cast.view or NOTHING
    after, clock = (cast.after, cast.clock) if cast.order == CAUSAL else (NOTHING, NOTHING)
    text = f"{VERSION} {cast.order} {cast.incarnation} {cast.local_seqno} {view} {after} {clock}"
    return [(HEADER, text.encode("ascii")), *cast.headers]


def decode_cast(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]], timestamp_ms: int = 0, site: str = ""
) -> Cast | str:
    """Decode a record of a cast topic; return the reason if it is invalid. All readers pass such a record over.

    `site`: the topic's site, if known. Only the site's own members may send there.
    """
    own, application = split_headers(headers)
    fields = first_fields(own, len(CAST_FIELDS))
    # A relay writes `-` for a missing field. Both mean the same, so all sites decide alike.
    version, order, raw_incarnation, raw_local_seqno, raw_view, raw_after, clock, *_ = [
        *fields,
        *[NOTHING.encode()] * len(CAST_FIELDS),
    ]
    incarnation, local_seqno, view = map(parse_number, (raw_incarnation, raw_local_seqno, raw_view))
    after = 0 if raw_after == b"0" else parse_number(raw_after)
    is_causal, sender = order == CAUSAL.encode(), (key or b"").decode("latin-1")
    names = [name for name, _ in own]
    checks = (
        (UNREAD_HEADER in names, UNREAD),
        (names.count(HEADER) > 1, REPEATED_HEADER),
        (names.count(HEADER) < len(names), RESERVED_HEADER),
        (has_wrong_name(headers), WRONG_HEADER_NAME),
        (are_too_large(application), HEADERS_TOO_LARGE),
        (is_too_long(own), LINE_TOO_LARGE),
        (version != VERSION.encode(), WRONG_VERSION),
        (order not in (FIFO.encode(), CAUSAL.encode()), WRONG_ORDER),
        (not is_address(sender), NO_SENDER),
        (bool(site) and not sender.startswith(f"{site}/"), WRONG_SITE),
        (incarnation is None, WRONG_INCARNATION),
        (local_seqno is None, WRONG_LOCAL_SEQNO),
        ((incarnation or 0) > highest_incarnation(timestamp_ms), FUTURE_INCARNATION),
        (view is None and (is_causal or raw_view not in (NOTHING.encode(), b"")), WRONG_VIEW),
        (is_causal and (after is None or not clock.isascii()), WRONG_CLOCK),
        (value is None, NO_PAYLOAD),
        (value is not None and len(value) > MAX_PAYLOAD_BYTES, PAYLOAD_TOO_LARGE),
    )
    for broken, reason in checks:
        if broken:
            return reason
    if not is_causal:
        after, clock = 0, b""
    return Cast(
        sender,
        incarnation or 0,
        local_seqno or 0,
        value or b"",
        CAUSAL if is_causal else FIFO,
        view or NO_VIEW,
        after or 0,
        clock.decode("ascii"),
        without_nulls(without_depends(tuple(application))),
        timestamp_ms,
    )


def is_late_copy(headers: Sequence[tuple[str, bytes]]) -> bool:
    """Whether a relay copied the record from one that was not the first of its partition."""
    relayed_from = first_fields(headers, len(CAST_FIELDS))[CAST_FIELDS.index("RELAYED_FROM") :]
    return any(not mark.endswith(b":0") for mark in relayed_from)
