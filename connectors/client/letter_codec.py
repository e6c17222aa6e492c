"""Letters as they look on Kafka: the records of an inbox topic.

Value = the payload, untouched. Key = the *receiver's* address, so that one receiver's letters stay in one partition.
The headers are those of a FORWARD, with the kind `letter`, and `abcast-receiver`. Bad input is data here too: what is
no letter decodes to the reason, never to an exception.

Letters of the kind `state` are numbered together with the others, but are abcast's own
(`connectors.client.state_transfer`).
"""

from __future__ import annotations

from collections.abc import Sequence

from connectors.client.letter import Letter
from connectors.kafka.codec import (
    FORWARD_HEADERS,
    H_INCARNATION,
    H_KIND,
    H_LOCAL_SEQNO,
    H_SENDER,
    H_VERSION,
    HEADERS_TOO_LARGE,
    NO_PAYLOAD,
    PAYLOAD_TOO_LARGE,
    REPEATED_HEADER,
    RESERVED_HEADER,
    VERSION,
    WRONG_INCARNATION,
    WRONG_KIND,
    WRONG_LOCAL_SEQNO,
    WRONG_VERSION,
    forward_headers,
    parse_number,
    size_of,
    split_headers,
)
from ordering.names import is_address
from ordering.records import LETTER, MAX_HEADERS_BYTES, MAX_PAYLOAD_BYTES, STATE, Headers

H_RECEIVER = "abcast-receiver"
LETTER_HEADERS = (*FORWARD_HEADERS, H_RECEIVER)
RELAY_PREFIXES = ("abcast-relayed-", "abcast-visited")
"""What a relay may add to a letter begins so; the receiver looks past it."""

BAD_SENDER = "abcast-sender is missing or not SITE/NAME"
WRONG_RECEIVER = "abcast-receiver or the key is not this member"


def letter_headers(
    sender: str,
    incarnation: int,
    local_seqno: int,
    receiver: str,
    application: Headers = (),
    kind: str = LETTER,
) -> list[tuple[str, bytes]]:
    """The headers of a letter. Its key is the receiver's address."""
    headers = forward_headers(sender, incarnation, local_seqno, kind=kind)
    return [*headers, (H_RECEIVER, receiver.encode("ascii")), *application]


def is_state_letter(headers: Sequence[tuple[str, bytes]]) -> bool:
    """Whether a record that is a letter is none of the application's."""
    return (H_KIND, STATE.encode("ascii")) in headers


def decode_letter(
    receiver: bytes, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]]
) -> Letter | str:
    """One record of an inbox topic that names `receiver`, or the reason why it is not a letter to that member."""
    kept = [header for header in headers if not header[0].startswith(RELAY_PREFIXES)]
    own, application = split_headers(kept)
    incarnation = parse_number(own.get(H_INCARNATION))
    local_seqno = parse_number(own.get(H_LOCAL_SEQNO))
    sender = own.get(H_SENDER, b"").decode("latin-1")
    checks = (
        (len(own) + len(application) != len(kept), REPEATED_HEADER),
        (any(name not in LETTER_HEADERS for name in own), RESERVED_HEADER),
        (size_of(application) > MAX_HEADERS_BYTES, HEADERS_TOO_LARGE),
        (own.get(H_VERSION) != VERSION.encode(), WRONG_VERSION),
        (own.get(H_KIND) not in (LETTER.encode(), STATE.encode()), WRONG_KIND),
        (not is_address(sender), BAD_SENDER),
        (own.get(H_RECEIVER) != receiver or key != receiver, WRONG_RECEIVER),
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
    return Letter(sender, incarnation, local_seqno, value, application)
