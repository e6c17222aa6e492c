"""The rules of `connectors.relay.rules` in Python: a record in, the records for the neighbour's topics out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from connectors.kafka.codec.cast_codec import CAST_FIELDS
from connectors.kafka.codec.codec import DATA_FIELDS, data_fields, decode_data, forward_headers
from connectors.kafka.codec.headers import HEADER, NOTHING, first_fields, is_own
from connectors.kafka.transport import Record
from connectors.relay.rules import MOST_LINE_BYTES, Copying, CopyWay, Linking, Rule, relayed
from ordering.base.formats import follow
from ordering.base.names import MAX_ADDRESS_LENGTH
from ordering.base.records import ENTRY, EPOCH, MAX_PAYLOAD_BYTES, MESSAGE, STRAY, headers_bytes
from ordering.sequencer import links

Headers = list[tuple[str, bytes]]

_KIND, _VIEW = DATA_FIELDS.index("KIND"), CAST_FIELDS.index("VIEW")
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
    return _linker(rule) if isinstance(rule, Linking) else _copier(rule)


def _linker(rule: Linking) -> Copier:
    direction, suffix = rule.direction, f".data.{rule.direction.source}"

    def copies(record: Record) -> list[MadeRecord]:
        data = decode_data(record.key, record.value, record.headers)
        if data.kind == STRAY:
            return []
        if data.kind == EPOCH:
            follow(record.topic, data.format)  # of a later format this could carry only skips
        topic = record.topic.removesuffix(suffix) + relayed(direction)
        made = links.carry_each(data, direction.source, rule.sessions[record.topic], is_carried)
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
            for said in made
        ]

    def is_carried(origin: str) -> bool:
        return origin not in rule.not_carried

    return copies


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
