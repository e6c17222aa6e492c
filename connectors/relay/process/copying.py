"""The rules of `connectors.relay.rules` in Python: a record in, the records for the neighbour's topics out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from connectors.kafka.codec.cast_codec import CAST_FIELDS
from connectors.kafka.codec.codec import (
    DATA_FIELDS,
    DATA_NUMBERS,
    data_fields,
    decode_data,
    forward_headers,
    message_texts,
)
from connectors.kafka.codec.headers import HEADER, NOTHING, first_fields, is_own
from connectors.kafka.transport import Record
from connectors.relay.rules import MOST_LINE_BYTES, Copying, CopyWay, Linking, Rule, relayed
from ordering.base.formats import follow
from ordering.base.names import MAX_ADDRESS_LENGTH
from ordering.base.records import ENTRY, EPOCH, MAX_PAYLOAD_BYTES, MESSAGE, STRAY, Data, Link, headers_bytes
from ordering.sequencer import links

Headers = list[tuple[str, bytes]]

_KIND, _VIEW = DATA_FIELDS.index("KIND"), CAST_FIELDS.index("VIEW")
_BLANKS = {name.encode("ascii"): 10**17 + place for place, name in enumerate((*DATA_NUMBERS, "ORIGIN_SEQNO"))}
"""The numbers of the sample message of a link, by their names, in the order of `message_texts`."""
_TOO_LARGE = ("cut", bytes(MAX_PAYLOAD_BYTES + 1))


class MadeRecord(NamedTuple):
    """A record to write, to the partition of the same number."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers


Copier = Callable[[Record], Sequence[MadeRecord]]


def copier(rule: Rule) -> Copier:
    """Return the function that makes the copies of a record: at most one, but for a mesh's DATA."""
    return _Linker(rule) if isinstance(rule, Linking) else _copier(rule)


class _Linker:
    """The copier of a mesh's link.

    Nearly all records are messages, and the rule treats those from one sender alike but for their numbers. So it makes
    the copies of a sample, with blanks in place of its numbers, and each message fills in its own.
    """

    def __init__(self, rule: Linking) -> None:
        self._rule, self._source = rule, rule.direction.source
        self._blank_copies = functools.lru_cache(maxsize=10_000)(self._copies_with_blanks)

    def __call__(self, record: Record) -> list[MadeRecord]:
        texts = message_texts(record.key, record.headers)
        if not texts:
            return self._copies_of_any(record)
        numbers, made = dict(zip(_BLANKS, texts, strict=True)), []
        for topic, key, value, headers in self._blank_copies(record.topic, record.key, texts[-1] is not None):
            own = HEADER, headers[0][1] % numbers
            if value:
                made.append(MadeRecord(topic, key, record.value or b"", [own, *record.headers[1:]]))
            else:
                made.append(MadeRecord(topic, key, b"", [own]))
        return made

    def _copies_of_any(self, record: Record) -> list[MadeRecord]:
        data = decode_data(record.key, record.value, record.headers)
        if data.kind == STRAY:
            return []
        if data.kind == EPOCH:
            follow(record.topic, data.format)  # of a later format this could carry only skips
        return self._made(record.topic, data)

    def _copies_with_blanks(self, topic: str, key: bytes, is_linked: bool) -> list[MadeRecord]:
        """Return the copies of a message from this sender. One has a value if it has the value of the message."""
        incarnation, local_seqno, seqno, epoch, view, at_ms, origin_seqno = _BLANKS.values()
        link = Link(0, 0, 0, origin_seqno) if is_linked else None
        sender = key.decode("ascii")
        data = Data(MESSAGE, epoch, seqno, view, sender, incarnation, local_seqno, b"x", None, (), at_ms, link)
        made = self._made(topic, data)
        for copy in made:
            text = copy.headers[0][1]
            for name, number in _BLANKS.items():
                text = text.replace(b"%d" % number, b"%%(%b)b" % name)
            copy.headers[0] = HEADER, text
        return made

    def _made(self, data_topic: str, data: Data) -> list[MadeRecord]:
        """Return the copies by the rule."""
        topic = data_topic.removesuffix(f".data.{self._source}") + relayed(self._rule.direction)
        return [
            MadeRecord(
                topic,
                said.sender.encode("ascii"),
                said.payload,
                forward_headers(
                    said.incarnation,
                    said.local_seqno,
                    data.headers if said.kind == MESSAGE else (),
                    said.kind,
                    said.link,
                ),
            )
            for said in links.carry_each(data, self._source, self._rule.sessions[data_topic], self._is_carried)
        ]

    def _is_carried(self, origin: str) -> bool:
        return origin not in self._rule.not_carried


def _copier(rule: Copying) -> Copier:
    been = [f" {site}/".encode("ascii") for site in sorted(rule.at_target)]

    @functools.cache
    def way_of(topic: str) -> tuple[CopyWay, str] | None:
        """Return the topic's way and the topic to fill."""
        way = next((way for way in rule.ways if topic.endswith(way.source)), None)
        return None if way is None else (way, topic.removesuffix(way.source) + way.target)

    def copies(record: Record) -> list[MadeRecord]:
        if (found := way_of(record.topic)) is None:
            return []
        way, topic = found
        key, value, headers = record.key, record.value, list(record.headers)
        if way.takes != "all":
            fields = data_fields(key, headers)
            if not fields or (way.takes == "log" and not _is_of_log(fields, value)):
                return []
            return [MadeRecord(topic, key, value, headers if way.takes == "data" else mark(way, record, headers))]
        if been and _has_been_at(way.begin, been, headers):
            return []
        if not rule.of_views and first_fields(headers, _VIEW + 1)[_VIEW:] not in ([], [b"-"], [b""]):
            return []
        key, value = key and key[: MAX_ADDRESS_LENGTH + 1], value and value[: MAX_PAYLOAD_BYTES + 1]
        return [MadeRecord(topic, key, value, mark(way, record, _cut(headers)))]

    def mark(way: CopyWay, record: Record, headers: Headers) -> Headers:
        """Return the headers with the record's place in the place of the way's fields."""
        text = f"{rule.direction.source}/{record.topic}-{record.partition}:{record.offset}{way.behind}"
        said = f"{text}{record.timestamp}" if way.says_when else text
        own = next((at for at, each in enumerate(headers) if each[0] == HEADER), None)
        line = b"" if own is None else headers.pop(own)[1] or b""
        fields = line.split(b" ", way.end)
        before = [*fields, *[NOTHING.encode("ascii")] * (way.begin - len(fields))][: way.begin]
        return [(HEADER, b" ".join([*before, said.encode("ascii"), *fields[way.end :]])), *headers]

    return copies


def _is_of_log(fields: Sequence[bytes], value: bytes | None) -> bool:
    """Whether a record of DATA is an entry or a seal."""
    return fields[_KIND] == ENTRY.encode("ascii") or (fields[_KIND] == EPOCH.encode("ascii") and not value)


def _has_been_at(at: int, sites: Sequence[bytes], headers: Headers) -> bool:
    """Whether a mark names one of the sites. Relays write their header as the first one."""
    if not headers or headers[0][0] != HEADER:
        return False
    marks = b" " + b"".join((headers[0][1] or b"").split(b" ", at)[at:])
    return any(site in marks for site in sites)


def _cut(headers: Headers) -> Headers:
    """Return the headers, or so much of headers that are too large that they are still."""
    if headers_bytes(headers) <= MAX_PAYLOAD_BYTES:
        return headers
    own = [each for each in headers if is_own(each[0])]
    others = [each for each in headers if not is_own(each[0])]
    line = [(name, value and value[: MOST_LINE_BYTES + 1]) for name, value in own if name == HEADER][:1]
    is_bad = len(own) > 1 or headers_bytes(others) > MAX_PAYLOAD_BYTES
    return [*line, *([_TOO_LARGE] if is_bad else others)]
