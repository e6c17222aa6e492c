"""Encode and decode letters: the records of an inbox topic.

Value = the payload, untouched. Key = the *receiver's* address, so that one receiver's letters stay in one partition.
The header is a FORWARD's, with the kind `letter`, the sender, and a relay's mark. Bad input is data here, too: an
invalid record decodes to the reason, never to an exception.

Letters of the kind `state` are numbered together with the others, but are abcast's own
(`connectors.client.state.state_transfer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from connectors.kafka.codec.codec import (
    FUTURE_INCARNATION,
    HEADERS_TOO_LARGE,
    LETTER_FIELDS,
    LINE_TOO_LARGE,
    NO_PAYLOAD,
    PAYLOAD_TOO_LARGE,
    REPEATED_HEADER,
    RESERVED_HEADER,
    UNREAD,
    WRONG_HEADER_NAME,
    WRONG_INCARNATION,
    WRONG_KIND,
    WRONG_LOCAL_SEQNO,
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
    without_nulls,
)
from connectors.kafka.codec.plain_record import UNREAD_HEADER
from ordering.base.kinds import LETTER_KINDS
from ordering.base.names import is_address, is_reserved
from ordering.base.records import LETTER, MAX_PAYLOAD_BYTES, STATE, Headers


class WrittenLetter(NamedTuple):
    """A decoded letter, without its receiver. `headers` are the application's."""

    sender: str
    incarnation: int
    local_seqno: int
    payload: bytes
    headers: Headers


BAD_SENDER = "SENDER in the header abcast is missing, or not the SITE/NAME of a member"
WRONG_RECEIVER = "the key, which is the receiver, is not this member"


def letter_headers(
    sender: str, incarnation: int, local_seqno: int, application: Headers = (), kind: str = LETTER
) -> list[tuple[str, bytes]]:
    """Return the headers of a letter. Its key is the receiver's address."""
    text = f"{VERSION} {kind} {incarnation} {local_seqno} {sender} {NOTHING}"
    return [(HEADER, text.encode("ascii")), *application]


def is_state_letter(headers: Sequence[tuple[str, bytes]]) -> bool:
    """Whether a letter is abcast's own, not the application's."""
    return first_fields(headers, 2)[1:] == [STATE.encode("ascii")]


def decode_letter(
    receiver: bytes,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes]],
    timestamp_ms: int = 0,
) -> WrittenLetter | str:
    """Decode a record of an inbox topic; return the reason if it is not a letter to `receiver`."""
    own, application = split_headers(headers)
    fields = first_fields(own, len(LETTER_FIELDS))
    version, kind, raw_incarnation, raw_local_seqno, raw_sender, *_ = [*fields, *[b""] * len(LETTER_FIELDS)]
    incarnation, local_seqno = parse_number(raw_incarnation), parse_number(raw_local_seqno)
    sender, names = raw_sender.decode("latin-1"), [name for name, _ in own]
    checks = (
        (UNREAD_HEADER in names, UNREAD),
        (names.count(HEADER) > 1, REPEATED_HEADER),
        (names.count(HEADER) < len(names), RESERVED_HEADER),
        (has_wrong_name(headers), WRONG_HEADER_NAME),
        (are_too_large(application), HEADERS_TOO_LARGE),
        (is_too_long(own), LINE_TOO_LARGE),
        (version != VERSION.encode(), WRONG_VERSION),
        (kind.decode("latin-1") not in LETTER_KINDS, WRONG_KIND),
        (not is_address(sender) or is_reserved(sender), BAD_SENDER),
        (key != receiver, WRONG_RECEIVER),
        ((incarnation or 0) > highest_incarnation(timestamp_ms), FUTURE_INCARNATION),
        (value is not None and len(value) > MAX_PAYLOAD_BYTES, PAYLOAD_TOO_LARGE),
    )
    for broken, reason in checks:
        if broken:
            return reason
    if incarnation is None:
        return WRONG_INCARNATION
    if local_seqno is None:
        return WRONG_LOCAL_SEQNO
    if value is None:
        return NO_PAYLOAD
    return WrittenLetter(sender, incarnation, local_seqno, value, without_nulls(application))
