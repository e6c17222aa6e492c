"""Records as they look on Kafka (docs/records.md): the row form.

Value = the payload, untouched. Key = the sender's address. All else in headers, ASCII. `connectors.spark.codec` has
what nearly all records need of it as Spark columns; a test runs one corpus of good and bad records through both.

A FORWARD that breaks a rule decodes to `Malformed` with one of the reasons below, never to an exception: bad input
is data. DATA is written by sequencers only, so a broken DATA record raises `ProtocolViolation`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from ordering.errors import ProtocolViolation, UsageError
from ordering.forward_table import KIND_HEADER
from ordering.names import RELAY_NAME, Topic, is_relay, relay_of
from ordering.records import (
    CONTROL_KINDS,
    EPOCH,
    FLUSH_COMPLETED,
    HEARTBEAT,
    LEAVE,
    LINK_START,
    MAX_HEADERS_BYTES,
    MAX_NUMBER,
    MAX_PAYLOAD_BYTES,
    MESSAGE,
    REMOTE_VIEW,
    SKIP,
    START_FLUSH,
    STOP_FLUSH,
    VIEW,
    Data,
    DeadLetter,
    Forward,
    Headers,
    Link,
    Malformed,
    Source,
)

VERSION = "1"
PREFIX = "abcast-"
H_VERSION = "abcast-version"
H_KIND = KIND_HEADER
H_SENDER = "abcast-sender"
H_INCARNATION = "abcast-incarnation"
H_LOCAL_SEQNO = "abcast-local-seqno"
H_SEQNO = "abcast-seqno"
H_EPOCH = "abcast-epoch"
H_VIEW = "abcast-view"
H_SOURCE = "abcast-source"
H_FORWARDED_AT = "abcast-forwarded-at"
H_REASON = "abcast-reason"
H_RELAYED_FROM = "abcast-relayed-from"
H_LINK = "abcast-link"
"""What a link of a mesh says of a record: `SESSION EPOCH SEQNO ORIGIN_SEQNO` (`ordering.links`)."""

FORWARD_HEADERS = (H_VERSION, H_KIND, H_SENDER, H_INCARNATION, H_LOCAL_SEQNO)
"""In the order in which our own client writes them (any order is accepted)."""
RELAYED_HEADERS = (H_RELAYED_FROM, H_LINK)
"""What a relay adds to a FORWARD record: in a hub, the record (`topic-partition:offset`) at the neighbouring site that
it was made from; in a mesh, what the link says of it."""
DATA_HEADERS = (*FORWARD_HEADERS, H_SEQNO, H_EPOCH, H_VIEW, H_SOURCE, H_FORWARDED_AT)
FORWARD_KINDS = (MESSAGE, HEARTBEAT, SKIP, *CONTROL_KINDS, LINK_START)
RELAY_KINDS = (HEARTBEAT, REMOTE_VIEW, LEAVE, SKIP, LINK_START)
"""FORWARD kinds of a relay's own."""
LINKED_KINDS = (MESSAGE, REMOTE_VIEW, SKIP)
"""FORWARD kinds of which a link may say something."""
DECIDED_KINDS = (VIEW, START_FLUSH, FLUSH_COMPLETED, STOP_FLUSH, REMOTE_VIEW)
"""DATA that may come from the sequencer itself, without a sender and a source."""

# Reasons for a dead letter, in the order in which they are looked for.
REPEATED_HEADER = "a header of abcast is given twice"
RESERVED_HEADER = "a header has a name that begins with abcast-, which is reserved"
NOT_RELAYED = "a header that only relays write stands on a record that no relay has brought"
HEADERS_TOO_LARGE = f"the application's headers are over {MAX_HEADERS_BYTES} bytes"
WRONG_VERSION = "abcast-version is missing or not 1"
WRONG_KIND = "abcast-kind is missing or unknown"
NO_SENDER = "abcast-sender is missing or not ASCII"
KEY_IS_NOT_SENDER = "the key differs from abcast-sender"
WRONG_INCARNATION = "abcast-incarnation is missing or not a number from 1"
FUTURE_INCARNATION = "abcast-incarnation is a time more than a day ahead: the clock of the sender is wrong"
WRONG_LOCAL_SEQNO = "abcast-local-seqno is missing or not a number from 1"
WRONG_LINK = "abcast-link is not four numbers, is missing on a skip, or stands on a record that no link brings"
WRONG_SITE = "the sender belongs to another site than the one the record comes from"
NOT_THE_RELAY = f"only the neighbouring relay may write records of this kind, or under the name {RELAY_NAME}"
NO_PAYLOAD = "the payload is null"
PAYLOAD_TOO_LARGE = f"the payload is over {MAX_PAYLOAD_BYTES} bytes"


INCARNATIONS_A_MS = 100_000
"""An incarnation is a time since 1970 in the unit of 10 ns, or less."""
CLOCK_AHEAD_MS = 24 * 3600 * 1000
"""By so much a sender's clock may be ahead of the broker's: one that is wrong by more would end its name for good."""

LINK_PATTERN = "(0|[1-9][0-9]{0,17})( (0|[1-9][0-9]{0,17})){3}"
_LINK = re.compile(LINK_PATTERN.encode("ascii"))


def forward_headers(
    sender: str, incarnation: int, local_seqno: int, application: Headers = (), kind: str = MESSAGE
) -> list[tuple[str, bytes]]:
    """The headers of a FORWARD record."""
    return [
        (H_VERSION, b"1"),
        (H_KIND, kind.encode("ascii")),
        (H_SENDER, sender.encode("ascii")),
        (H_INCARNATION, b"%d" % incarnation),
        (H_LOCAL_SEQNO, b"%d" % local_seqno),
        *application,
    ]


def check_application_headers(headers: Iterable[tuple[str, bytes]]) -> Headers:
    """The application's headers, checked. Raises UsageError."""
    checked = tuple(headers)
    for key, value in checked:
        if not isinstance(key, str) or not isinstance(value, bytes):  # type: ignore[redundant-expr]  # users err
            raise UsageError(f"header {key!r}: a header is a (str, bytes) pair.")
        if key.startswith(PREFIX):
            raise UsageError(f"header {key!r}: names that start with {PREFIX!r} are abcast's own; take another.")
    size = size_of(checked)
    if size > MAX_HEADERS_BYTES:
        raise UsageError(
            f"the headers have {size} bytes, over the limit of {MAX_HEADERS_BYTES}: put it in the payload."
        )
    return checked


def decode_forward(
    source: Source,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes]],
    timestamp_ms: int = 0,
) -> Forward | Malformed:
    """One record of a forward topic, or of one that a relay fills."""
    own, application = split_headers(headers)
    topic = Topic.parse(source.topic)
    if topic is None:
        raise ProtocolViolation(f"{source.topic} is not one of abcast's topics.")
    by_relay = topic.role == "relayed"
    link = decode_link(own[H_LINK]) if H_LINK in own else None
    incarnation = parse_number(own.get(H_INCARNATION))
    local_seqno = parse_number(own.get(H_LOCAL_SEQNO))
    sender = own.get(H_SENDER) or b""
    checks = (
        (len(own) + len(application) != len(headers), REPEATED_HEADER),
        (any(name not in (*FORWARD_HEADERS, *RELAYED_HEADERS) for name in own), RESERVED_HEADER),
        (not by_relay and any(name in own for name in RELAYED_HEADERS), NOT_RELAYED),
        (size_of(application) > MAX_HEADERS_BYTES, HEADERS_TOO_LARGE),
        (own.get(H_VERSION) != VERSION.encode(), WRONG_VERSION),
        (own.get(H_KIND) not in [kind.encode() for kind in FORWARD_KINDS], WRONG_KIND),
        (not sender or not sender.isascii(), NO_SENDER),
        (key != sender, KEY_IS_NOT_SENDER),
        (incarnation is None, WRONG_INCARNATION),
        (local_seqno is None, WRONG_LOCAL_SEQNO),
        (link is None and (incarnation or 0) > highest_incarnation(timestamp_ms), FUTURE_INCARNATION),
        (not _is_linked_right(own, link), WRONG_LINK),
        (not _is_from(sender, topic, link), WRONG_SITE),
        (_claims_relay(sender, own.get(H_KIND)) and not _is_its_relay(topic, sender, own.get(H_KIND)), NOT_THE_RELAY),
        (value is None, NO_PAYLOAD),
        (value is not None and len(value) > MAX_PAYLOAD_BYTES, PAYLOAD_TOO_LARGE),
    )
    for broken, reason in checks:
        if broken:
            return Malformed(source, reason)
    assert incarnation is not None
    assert local_seqno is not None
    assert value is not None
    kind = own[H_KIND].decode("ascii")
    address = sender.decode("ascii")
    return Forward(address, incarnation, local_seqno, value, source, application, kind, timestamp_ms, link)


def encode_data(data: Data) -> tuple[bytes | None, bytes, list[tuple[str, bytes]]]:
    """(key, value, headers) of a DATA record."""
    headers = [(H_VERSION, b"1"), (H_KIND, data.kind.encode("ascii")), (H_EPOCH, b"%d" % data.epoch)]
    if data.kind == EPOCH:
        return None, data.payload, headers
    if data.source is None:  # the sequencer's own: a view, a step of a flush
        headers = [*headers, (H_SEQNO, b"%d" % data.seqno), (H_VIEW, b"%d" % data.view)]
        return None, data.payload, headers
    headers = [
        *forward_headers(data.sender, data.incarnation, data.local_seqno, kind=data.kind),
        (H_SEQNO, b"%d" % data.seqno),
        (H_EPOCH, b"%d" % data.epoch),
        (H_VIEW, b"%d" % data.view),
        (H_SOURCE, str(data.source).encode("ascii")),
        (H_FORWARDED_AT, b"%d" % data.forwarded_at_ms),
        *link_header(data.link),
        *data.headers,
    ]
    return data.sender.encode("ascii"), data.payload, headers


def decode_data(value: bytes | None, headers: Sequence[tuple[str, bytes]]) -> Data:
    """One record of a data topic. Raises ProtocolViolation if no sequencer wrote it."""
    own, application = split_headers(headers)
    try:
        if own[H_VERSION] != b"1":
            raise ValueError(f"version {own[H_VERSION]!r}")
        kind = own[H_KIND].decode("ascii")
        if kind == EPOCH:
            return Data(kind=EPOCH, epoch=int(own[H_EPOCH]), payload=value or b"")
        if H_SENDER not in own and kind in DECIDED_KINDS:
            return Data(kind, int(own[H_EPOCH]), int(own[H_SEQNO]), int(own[H_VIEW]), payload=value or b"")
        return Data(
            kind=kind,
            epoch=int(own[H_EPOCH]),
            seqno=int(own[H_SEQNO]),
            view=int(own[H_VIEW]),
            sender=own[H_SENDER].decode("ascii"),
            incarnation=int(own[H_INCARNATION]),
            local_seqno=int(own[H_LOCAL_SEQNO]),
            payload=value or b"",
            source=Source.parse(own[H_SOURCE].decode("ascii")),
            headers=application,
            forwarded_at_ms=int(own.get(H_FORWARDED_AT, b"0")),
            link=_link_of(own),
        )
    except (KeyError, ValueError) as error:
        raise ProtocolViolation(f"a record in a data topic is not DATA ({error!r}): who else writes there?") from error


def dead_letter_headers(letter: DeadLetter, original: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """The original headers, followed by the reason and where the record came from."""
    return [*original, (H_REASON, letter.reason.encode("ascii")), (H_SOURCE, str(letter.source).encode("ascii"))]


def size_of(headers: Headers) -> int:
    """Bytes of the names and values; Kafka allows a null value."""
    return sum(len(name) + len(value or b"") for name, value in headers)


def split_headers(headers: Sequence[tuple[str, bytes]]) -> tuple[dict[str, bytes], Headers]:
    """The headers of abcast by name, the first of each, and those of the application."""
    own: dict[str, bytes] = {}
    application: list[tuple[str, bytes]] = []
    for name, value in headers:
        if name.startswith(PREFIX):
            own.setdefault(name, value or b"")  # Kafka allows a null
        else:
            application.append((name, value))
    return own, tuple(application)


def link_header(link: Link | None) -> list[tuple[str, bytes]]:
    """The header that says what a link says of a record, if one has brought it."""
    return [] if link is None else [(H_LINK, str(link).encode("ascii"))]


def decode_link(raw: bytes) -> Link | None:
    """Inverse of `link_header`'s value; None for anything else."""
    if not _LINK.fullmatch(raw):
        return None
    return Link(*map(int, raw.split(b" ")))


def _link_of(own: Mapping[str, bytes]) -> Link | None:
    """The link of a DATA record. Raises ValueError."""
    if H_LINK not in own:
        return None
    link = decode_link(own[H_LINK])
    if link is None:
        raise ValueError(f"link {own[H_LINK]!r}")
    return link


def highest_incarnation(timestamp_ms: int) -> int:
    """The highest incarnation that a record of that time may have; any if the time is not known."""
    return (timestamp_ms + CLOCK_AHEAD_MS) * INCARNATIONS_A_MS if timestamp_ms > 0 else MAX_NUMBER


def _is_from(sender: bytes, topic: Topic, link: Link | None) -> bool:
    """Whether records of that sender can stand in the topic: by a link, those of any other site."""
    if link is None:
        return sender.startswith(f"{topic.neighbour or topic.site}/".encode("ascii"))
    return b"/" in sender and not sender.startswith(f"{topic.site}/".encode("ascii"))


def _is_linked_right(own: Mapping[str, bytes], link: Link | None) -> bool:
    """Whether a link says something of the record where it has to, and only where it may."""
    if link is None:
        return H_LINK not in own and own.get(H_KIND) != SKIP.encode()
    return own.get(H_KIND) in [kind.encode() for kind in LINKED_KINDS]


def _claims_relay(sender: bytes, kind: bytes | None) -> bool:
    """Whether only a relay may say so."""
    return is_relay(sender.decode("latin-1")) or kind in [own.encode() for own in (REMOTE_VIEW, SKIP, LINK_START)]


def _is_its_relay(topic: Topic, sender: bytes, kind: bytes | None) -> bool:
    """Whether it is the relay that fills the topic, and speaks for itself."""
    is_own = kind in [own.encode() for own in RELAY_KINDS]
    return topic.role == "relayed" and sender == relay_of(topic.neighbour).encode() and is_own


def parse_number(raw: bytes | None) -> int | None:
    """A canonical decimal from 1 to MAX_NUMBER, or None."""
    if raw is None or not raw.isdigit() or raw.startswith(b"0") or len(raw) > len(str(MAX_NUMBER)):
        return None
    return int(raw)
