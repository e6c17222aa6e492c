"""Encode and decode records of FORWARD and DATA one by one (docs/records.md).

Value = the payload, untouched. Key = the sender's address. Everything else of abcast's is in one header, `abcast`
(`connectors.kafka.codec.headers`). `connectors.spark.codec` decodes nearly all records as Spark columns; a test runs
one corpus of good and bad records through both.

A FORWARD that breaks a rule decodes to `Malformed` with one of the reasons below, never to an exception: bad input is
data. Only sequencers write DATA; a record there that does not match `DATA_PATTERN` decodes to a *stray*, which the
reading rule passes over. All readers use that one pattern, so all of them see the same log.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Sequence

from connectors.kafka.codec.headers import (
    HEADER,
    NOTHING,
    VERSION,
    are_too_large,
    first_fields,
    has_wrong_name,
    highest_incarnation,
    parse_number,
    split_headers,
)
from connectors.kafka.codec.plain_record import UNREAD_HEADER
from ordering.base.errors import ProtocolViolation
from ordering.base.formats import FIRST, Format
from ordering.base.kinds import (
    ALWAYS_LINKED,
    FORWARD_KINDS,
    LINKED_KINDS,
    ONLY_OF_RELAYS,
    RELAY_KINDS,
    RESERVED,
    SENDERS_KINDS,
)
from ordering.base.names import (
    ADDRESS_PATTERN,
    RELAY_NAME,
    RESERVED_PREFIX,
    Topic,
    is_relay,
    is_reserved,
    relay_of,
)
from ordering.base.packs import MAX_PACK_HEADERS_BYTES, PACK_HEADERS_TOO_LARGE, fault
from ordering.base.records import (
    ENTRY,
    EPOCH,
    MAX_HEADERS_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_RECORD_BYTES,
    MESSAGE,
    MESSAGES,
    STRAY,
    STRAY_EPOCH,
    Data,
    Forward,
    Headers,
    Link,
    Malformed,
    Source,
    headers_bytes,
)

FORWARD_FIELDS = (VERSION, "KIND", "INCARNATION", "LOCAL_SEQNO")
RELAYED_FIELDS = (*FORWARD_FIELDS, "RELAYED_FROM", "LINK")
"""The fields in a topic that a relay fills. In a hub, RELAYED_FROM is the record at the neighbouring site
(`SITE/topic-partition:offset`) that this one was copied from; in a mesh, LINK is the link's data
(`ordering.sequencer.links`).
"""
COPIED_FIELDS = (*RELAYED_FIELDS, "AT_MS")
"""The fields of a copied FORWARD record, in a hub and between sites that agree. AT_MS is the timestamp from the
neighbouring broker.
"""
LETTER_FIELDS = (*FORWARD_FIELDS, "SENDER", "RELAYED_FROM")
"""The fields of a letter, whose key is its receiver."""
# Reasons for a dead letter, in the order of the checks.
UNREAD = f"the record is over {MAX_RECORD_BYTES} bytes, or can't be read as it is compressed"
REPEATED_HEADER = "the header abcast is given twice"
RESERVED_HEADER = "a header has a name that begins with abcast, which is reserved"
WRONG_HEADER_NAME = "a header has a name that is not UTF-8"
HEADERS_TOO_LARGE = f"the application's headers are over {MAX_HEADERS_BYTES} bytes"
LINE_TOO_LARGE = f"the header abcast is over {MAX_PAYLOAD_BYTES} bytes"
WRONG_VERSION = "the header abcast is missing, or does not begin with the version, 2"
WRONG_KIND = "KIND in the header abcast is missing or unknown"
NO_SENDER = "the key, which is the sender, is missing or not ASCII"
WRONG_INCARNATION = "INCARNATION in the header abcast is missing or not a number from 1"
WRONG_LOCAL_SEQNO = "LOCAL_SEQNO in the header abcast is missing or not a number from 1"
WRONG_LOCAL_SEQNOS = "LOCAL_SEQNO of a pack is missing or not FIRST-LAST, two numbers from 1, the second one higher"
FUTURE_INCARNATION = "INCARNATION is a time more than a day ahead: the clock of the sender is wrong"
WRONG_LINK = "LINK is not four numbers, is missing on a skip, or stands on a record that no link brings"
WRONG_SITE = "the sender belongs to another site than the one the record comes from"
NOT_THE_RELAY = f"only the neighbouring relay may write records of this kind, or under the name {RELAY_NAME}"
RESERVED_NAME = f"names that begin with {RESERVED_PREFIX} are reserved, and no part of abcast writes such a record"
NO_PAYLOAD = "the payload is null"
PAYLOAD_TOO_LARGE = f"the payload is over {MAX_PAYLOAD_BYTES} bytes"


LINK_PATTERN = r"(?:0|[1-9][0-9]{0,17})(?:\.(?:0|[1-9][0-9]{0,17})){3}"
NUMBER_PATTERN, FROM_1_PATTERN = "(?:0|[1-9][0-9]{0,17})", "[1-9][0-9]{0,17}"
SOURCE_TOPIC_PATTERN = "[A-Za-z0-9._-]+"
_KIND_PATTERN = "[a-z][a-z-]*"
_ANYTHING_PATTERN = r"(?: [\s\S]*)?"
DATA_PATTERNS = {
    VERSION: VERSION,
    "KIND": _KIND_PATTERN,
    "INCARNATION": FROM_1_PATTERN,
    "LOCAL_SEQNO": FROM_1_PATTERN,
    "SEQNO": FROM_1_PATTERN,
    "EPOCH": NUMBER_PATTERN,
    "VIEW": NUMBER_PATTERN,
    "SOURCE": rf"{SOURCE_TOPIC_PATTERN}-{NUMBER_PATTERN}:{NUMBER_PATTERN}",
    "FORWARDED_AT_MS": NUMBER_PATTERN,
}
"""The fields of DATA that each record has, and their patterns in a sender's record."""
DATA_FIELDS = (*DATA_PATTERNS, "LINK", "COUNT", "FORMAT", "FORMAT_VERSION")
"""The fields of DATA. LINK has a value only where a link brought the record. COUNT is how many seqnos the record takes,
by default one. A seal has the group's format and the first version that knows it, unless the format is the first.
"""
DATA_NUMBERS = tuple(name for name, text in DATA_PATTERNS.items() if text in (FROM_1_PATTERN, NUMBER_PATTERN))
"""The numbers among them, in the order of the header."""
_numbers_of = operator.itemgetter(*map(DATA_FIELDS.index, DATA_NUMBERS))


def data_pattern(kind: str, *, without: Sequence[str] = (), number: str = "{}") -> str:
    """Return the pattern of DATA_PATTERNS in a record: those `without` a value, and each number within `number`."""
    texts = {**DATA_PATTERNS, **{name: number.format(DATA_PATTERNS[name]) for name in DATA_NUMBERS}}
    return " ".join({**texts, "KIND": kind, **dict.fromkeys(without, NOTHING)}.values())


DATA_PATTERN = "|".join(
    (
        rf"{data_pattern(f'(?!{EPOCH} |{ENTRY} ){_KIND_PATTERN}')}(?: (?:-|{LINK_PATTERN}){_ANYTHING_PATTERN})?",
        *(
            data_pattern(kind, without=[*without, "INCARNATION", "SOURCE", "FORWARDED_AT_MS"]) + _ANYTHING_PATTERN
            for kind, without in (
                (f"(?!(?:{'|'.join(sorted(SENDERS_KINDS))}) ){_KIND_PATTERN}", ["LOCAL_SEQNO"]),
                (EPOCH, ["LOCAL_SEQNO", "SEQNO", "VIEW"]),
                (ENTRY, ["SEQNO", "VIEW"]),
            )
        ),
    )
)
"""Matches the whole header of DATA. The alternatives: a sender's record (nearly all), the sequencer's own, an epoch
record, an entry. The pattern means the same in Python and in Java. Only a sender's record has a key, the address.

An unknown kind makes no stray: a later version writes it. Fields behind the ones that readers of format 1 know don't
matter, so these readers see the same strays; a COUNT that is not a number of up to six digits is such a field.
"""
_DATA = re.compile(DATA_PATTERN.encode("ascii"))
_MESSAGE = re.compile(f"{data_pattern(MESSAGE, number='({})')}(?: (?:-|{LINK_PATTERN}))?".encode("ascii"))
"""Matches a message without fields of later versions, by far the most frequent record. The groups are its numbers."""
_MESSAGE_AND_ORIGIN = re.compile(
    rf"{data_pattern(MESSAGE, number='({})')}(?: (?:-|(?:{NUMBER_PATTERN}\.){{3}}({NUMBER_PATTERN})))?".encode("ascii")
)
"""Matches what `_MESSAGE` does. One more group is the last number of LINK."""
COUNT_PATTERN = "[1-9][0-9]{0,5}"
_COUNT = re.compile(COUNT_PATTERN.encode("ascii"))
_MESSAGES = re.compile(
    f"{data_pattern(MESSAGES, number='({})')} (?:-|{LINK_PATTERN}) ({COUNT_PATTERN})".encode("ascii")
)
"""Matches a pack without fields of later versions. The groups are its numbers and COUNT."""
_VERSION_TEXT = re.compile(rb"[0-9a-z.+-]{1,40}")
_ADDRESS = re.compile(ADDRESS_PATTERN.encode("ascii"))
_LINK = re.compile(LINK_PATTERN.encode("ascii"))
_LINKED = re.compile(
    rf"({VERSION} {_KIND_PATTERN} {FROM_1_PATTERN}) ({FROM_1_PATTERN}) {NOTHING} "
    rf"({NUMBER_PATTERN})\.({NUMBER_PATTERN})\.({NUMBER_PATTERN})\.({NUMBER_PATTERN})".encode("ascii")
)
"""Matches the header of a record that a link of a mesh has brought, without fields of later versions."""
_VERSION = VERSION.encode("ascii")
_NOTHING = NOTHING.encode("ascii")
_PACK = MESSAGES.encode("ascii")
_FORWARD_KINDS, _RELAY_KINDS, _LINKED_KINDS, _ALWAYS_LINKED, _ONLY_OF_RELAYS = (
    {kind.encode("ascii"): kind for kind in kinds}
    for kinds in (FORWARD_KINDS, RELAY_KINDS, LINKED_KINDS, ALWAYS_LINKED, ONLY_OF_RELAYS)
)
_topic = functools.lru_cache(maxsize=1000)(Topic.parse)


def forward_headers(
    incarnation: int, local_seqno: int, application: Headers = (), kind: str = MESSAGE, link: Link | None = None
) -> list[tuple[str, bytes]]:
    """Return the headers of a FORWARD record, whose key is the sender's address. `link`: set if a link brings it."""
    by_link = f" {NOTHING} {link}" if link is not None else ""
    return [(HEADER, f"{VERSION} {kind} {incarnation} {local_seqno}{by_link}".encode("ascii")), *application]


def pack_headers(incarnation: int, local_seqno: int, count: int, application: Headers = ()) -> list[tuple[str, bytes]]:
    """Return the headers of a pack in FORWARD with so many messages, from `local_seqno` on."""
    own = f"{VERSION} {MESSAGES} {incarnation} {local_seqno}-{local_seqno + count - 1}"
    return [(HEADER, own.encode("ascii")), *application]


def decode_forward(
    source: Source,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes]],
    timestamp_ms: int = 0,
) -> Forward | Malformed:
    """Decode a record of a forward topic, or of a topic that a relay fills.

    A record that breaks a rule is `Malformed`. Raises ProtocolViolation if the topic is none of abcast's.
    """
    topic = _topic(source.topic)
    if topic is None:
        raise ProtocolViolation(f"{source.topic} is not one of abcast's topics.")
    own, application = split_headers(headers)
    # In the site's own topic the fields behind the first four have no meaning.
    known = len(RELAYED_FIELDS) if topic.role == "relayed" else len(FORWARD_FIELDS)
    fields = first_fields(own, known)
    version, kind, raw_incarnation, raw_local_seqno, *by_relay = [*fields, *[b""] * (len(FORWARD_FIELDS) - len(fields))]
    relayed_from, link_text, *_ = [*by_relay, _NOTHING, _NOTHING]
    link = decode_link(link_text)
    incarnation, is_pack = parse_number(raw_incarnation), kind == _PACK
    local_seqno, count = decode_local_seqnos(kind, raw_local_seqno)
    sender, names = key or b"", [name for name, _ in own]
    checks = (
        (UNREAD_HEADER in names, UNREAD),
        (names.count(HEADER) > 1, REPEATED_HEADER),
        (names.count(HEADER) < len(names), RESERVED_HEADER),
        (link is None and has_wrong_name(headers), WRONG_HEADER_NAME),
        (are_too_large(application), HEADERS_TOO_LARGE),
        (version != _VERSION, WRONG_VERSION),
        (kind not in _FORWARD_KINDS, WRONG_KIND),
        (not sender or not sender.isascii(), NO_SENDER),
        (incarnation is None, WRONG_INCARNATION),
        (local_seqno is None, WRONG_LOCAL_SEQNOS if is_pack else WRONG_LOCAL_SEQNO),
        (link is None and (incarnation or 0) > highest_incarnation(timestamp_ms), FUTURE_INCARNATION),
        (not _is_linked_right(kind, link_text, link), WRONG_LINK),
        (not _is_from(sender, topic, link), WRONG_SITE),
        (_claims_relay(sender, kind) and not _is_its_relay(topic, sender, kind, relayed_from), NOT_THE_RELAY),
        (_has_reserved_name(sender, kind), RESERVED_NAME),
        (value is None, NO_PAYLOAD),
        (value is not None and len(value) > MAX_PAYLOAD_BYTES, PAYLOAD_TOO_LARGE),
        *(((reason := fault(value or b"", count), reason),) if is_pack else ()),
        (is_pack and headers_bytes(application) * count > MAX_PACK_HEADERS_BYTES, PACK_HEADERS_TOO_LARGE),
    )
    for broken, reason in checks:
        if broken:
            return Malformed(source, reason)
    assert incarnation is not None
    assert local_seqno is not None
    assert value is not None
    address = sender.decode("ascii")
    return Forward(
        address, incarnation, local_seqno, value, source, application, _FORWARD_KINDS[kind], timestamp_ms, link, count
    )


def linked_fields(headers: Sequence[tuple[str, bytes]]) -> tuple[bytes, ...]:
    """Return the header up to INCARNATION, LOCAL_SEQNO, and the four numbers of LINK; () for any other record.

    `decode_forward` gives two records of one topic the same, except these five numbers and the payload, if they have
    equal keys, first fields here and headers of the application. Its checks look at the numbers' form only, which
    is right here. (The incarnation of a record without a link is limited by the time.)
    """
    if not headers or headers[0][0] != HEADER or not headers[0][1]:
        return ()
    found = _LINKED.fullmatch(headers[0][1])
    return found.groups() if found is not None else ()


def decode_local_seqnos(kind: bytes, text: bytes) -> tuple[int | None, int]:
    """Return the first local seqno of a FORWARD record, None if LOCAL_SEQNO is wrong, and the number of messages."""
    if kind != _PACK:
        return parse_number(text), 1
    first, last = map(parse_number, (*text.split(b"-", 1), b"")[:2])
    return (first, last - first + 1) if first is not None and last is not None and first < last else (None, 1)


def encode_data(data: Data) -> tuple[bytes | None, bytes, list[tuple[str, bytes]]]:
    """Return (key, value, headers) of a DATA record."""
    if data.kind == EPOCH:
        said = "" if data.format == FIRST else f" - - {data.format.number} {data.format.version}"
        return None, data.payload, [_data_header(f"{EPOCH} - - - {data.epoch} - - -{said}")]
    if data.kind == ENTRY:
        return None, data.payload, [_data_header(f"{ENTRY} - {data.local_seqno} - {data.epoch} - - -")]
    counted = "" if data.count == 1 else f" {data.count}"
    by_link = f" {data.link or NOTHING}" if data.link or counted else ""
    if data.source is None:  # the sequencer's own: a view, a step of a flush
        own = _data_header(f"{data.kind} - - {data.seqno} {data.epoch} {data.view} - -{by_link}{counted}")
        return None, data.payload, [own]
    header = _data_header(
        f"{data.kind} {data.incarnation} {data.local_seqno} {data.seqno} {data.epoch} {data.view} {data.source} "
        f"{data.forwarded_at_ms}{by_link}{counted}"
    )
    return data.sender.encode("ascii"), data.payload, [header, *data.headers]


def _data_header(fields: str) -> tuple[str, bytes]:
    return HEADER, f"{VERSION} {fields}".encode("ascii")


def data_fields(key: bytes | None, headers: Sequence[tuple[str, bytes]]) -> list[bytes]:
    """Return the fields of a DATA record, at least all of `DATA_FIELDS` up to LINK; none if it is a stray.

    The header `abcast` is the first one: sequencers write it there.
    """
    if not headers or headers[0][0] != HEADER or not headers[0][1] or not _DATA.fullmatch(headers[0][1]):
        return []
    fields = headers[0][1].split(b" ")
    has_sender = fields[7] != _NOTHING
    return fields if (is_senders(key) if has_sender else key is None) else []


def message_numbers(key: bytes | None, headers: Sequence[tuple[str, bytes]]) -> tuple[int, ...]:
    """Return the DATA_NUMBERS of a message; () for any other record, and for fields behind LINK.

    A fast form of `data_numbers` of `data_fields`.
    """
    return tuple(map(int, _groups(_MESSAGE, key, headers)))


def message_texts(key: bytes | None, headers: Sequence[tuple[str, bytes]]) -> tuple[bytes | None, ...]:
    """Return the text of each of the `message_numbers`, and of the last number of LINK, None without a LINK."""
    return _groups(_MESSAGE_AND_ORIGIN, key, headers)


def pack_numbers(key: bytes | None, headers: Sequence[tuple[str, bytes]]) -> tuple[int, ...]:
    """Return the DATA_NUMBERS of a pack, and its COUNT; () for any other record, and for fields behind COUNT.

    A fast form of `data_numbers` and `data_count` of `data_fields`.
    """
    return tuple(map(int, _groups(_MESSAGES, key, headers)))


def _groups(pattern: re.Pattern[bytes], key: bytes | None, headers: Sequence[tuple[str, bytes]]) -> tuple[bytes, ...]:
    """Return the groups of the pattern if it matches the header of a sender's DATA; () otherwise."""
    if not headers or headers[0][0] != HEADER or not headers[0][1]:
        return ()
    found = pattern.fullmatch(headers[0][1])
    return found.groups() if found is not None and is_senders(key) else ()


@functools.lru_cache(maxsize=10_000)
def is_senders(key: bytes | None) -> bool:
    """Whether the key of DATA is the address of a sender."""
    return key is not None and _ADDRESS.fullmatch(key) is not None


def data_numbers(fields: Sequence[bytes]) -> tuple[int, ...]:
    """Return the DATA_NUMBERS of a record with these `data_fields`; 0 where a field has no value."""
    return tuple(0 if field == _NOTHING else int(field) for field in _numbers_of(fields))


def data_count(fields: Sequence[bytes]) -> int:
    """Return how many seqnos the record with these `data_fields` takes, as COUNT says; 1 without a valid COUNT."""
    return int(fields[10]) if len(fields) > 10 and _COUNT.fullmatch(fields[10]) else 1


def data_format(fields: Sequence[bytes]) -> Format:
    """Return the group's format from the `data_fields` of a seal; the first one where they have none."""
    number, version, *_ = [*fields[11:], b"", b""]
    if not _COUNT.fullmatch(number):
        return FIRST
    return Format(int(number), version.decode("ascii") if _VERSION_TEXT.fullmatch(version) else "")


def decode_data(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]]) -> Data:
    """Decode a record of a data topic; its kind is `STRAY` if no sequencer can have written it."""
    fields = data_fields(key, headers)
    if not fields:
        return Data(STRAY, STRAY_EPOCH)
    _, raw_kind, incarnation, local_seqno, seqno, epoch, view, source, at_ms, *more = fields
    kind = raw_kind.decode("ascii")
    if kind == EPOCH:
        return Data(kind=EPOCH, epoch=int(epoch), payload=value or b"", format=data_format(fields))
    if kind == ENTRY:
        return Data(kind=ENTRY, epoch=int(epoch), local_seqno=int(local_seqno), payload=value or b"")
    if key is None:
        return Data(kind, int(epoch), int(seqno), int(view), payload=value or b"", count=data_count(fields))
    return Data(
        kind=kind,
        epoch=int(epoch),
        seqno=int(seqno),
        view=int(view),
        sender=key.decode("ascii"),
        incarnation=int(incarnation),
        local_seqno=int(local_seqno),
        payload=value or b"",
        source=Source.parse(source.decode("ascii")),
        headers=tuple(headers[1:]),
        forwarded_at_ms=int(at_ms),
        link=decode_link(more[0]) if more else None,
        count=data_count(fields),
    )


def decode_link(raw: bytes) -> Link | None:
    """Inverse of `str` of a `Link`; None for anything else."""
    if not _LINK.fullmatch(raw):
        return None
    return Link(*map(int, raw.split(b".")))


def _is_from(sender: bytes, topic: Topic, link: Link | None) -> bool:
    """Whether the topic can have records of that sender: by a link, senders of any other site."""
    if link is None:
        return sender.startswith(f"{topic.neighbour or topic.site}/".encode("ascii"))
    return b"/" in sender and not sender.startswith(f"{topic.site}/".encode("ascii"))


def _is_linked_right(kind: bytes, text: bytes, link: Link | None) -> bool:
    """Whether LINK is present where the record needs it, and nowhere else."""
    if link is None:
        return text == _NOTHING and kind not in _ALWAYS_LINKED
    return kind in _LINKED_KINDS


def _claims_relay(sender: bytes, kind: bytes) -> bool:
    """Whether only a relay may write this."""
    return is_relay(sender.decode("latin-1")) or kind in _ONLY_OF_RELAYS


def _has_reserved_name(sender: bytes, kind: bytes) -> bool:
    """Whether no part of abcast writes that kind under that reserved name. Relays' names are checked elsewhere."""
    if RESERVED_PREFIX.encode() not in sender:  # nearly always
        return False
    address = sender.decode("latin-1")
    name = address.partition("/")[2]
    return is_reserved(address) and not is_relay(address) and (name, kind.decode("latin-1")) not in RESERVED


def _is_its_relay(topic: Topic, sender: bytes, kind: bytes, relayed_from: bytes) -> bool:
    """Whether the topic's own relay wrote the record about itself. A copied record is another sender's word."""
    is_its = topic.role == "relayed" and sender == relay_of(topic.neighbour).encode() and relayed_from == _NOTHING
    return is_its and kind in _RELAY_KINDS
