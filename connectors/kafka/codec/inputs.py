"""Inputs of an agreeing site's job: FORWARD of all sites, and the logs of the others.

Another site's topics are in the same Kafka (they are *shared*), or relays bring copies of them (docs/records.md). A
copy of a FORWARD record is read as the original record, with its partition, offset and time there. So all sites decide
alike.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from connectors.kafka.codec.codec import COPIED_FIELDS, DATA_FIELDS, FORWARD_FIELDS, NUMBER_PATTERN, decode_data
from connectors.kafka.codec.headers import HEADER, NOTHING
from connectors.kafka.codec.plain_record import PlainRecord, Record
from ordering.base.names import Topic
from ordering.base.records import Data, Partition

LATEST_MS = 9_000_000_000_000_000
"""The latest time that Spark can read from Kafka."""
_NUMBER = re.compile(NUMBER_PATTERN.encode("ascii"))
_SOURCE = DATA_FIELDS.index("SOURCE")
_RELAYED_FROM, _AT_MS = COPIED_FIELDS.index("RELAYED_FROM"), COPIED_FIELDS.index("AT_MS")


class Input(NamedTuple):
    """A partition to read, and its site. `place`: the FORWARD partition that this one is, or copies; "" for a log."""

    site: str
    place: str
    is_copy: bool = False


class Neighbours(NamedTuple):
    """The sites of the agreement. `names` has all of them, `shared` the others whose topics are in `site`'s Kafka."""

    site: str
    names: tuple[str, ...]
    shared: frozenset[str] = frozenset()

    def input(self, topic: Topic, number: int) -> Input | None:
        """Return the role that a partition in this site's Kafka has for the job; None if the job does not read it."""
        is_shared = topic.site in self.shared
        if topic.role == "forward" and (is_shared or topic.site == self.site):
            return Input(topic.site, str(Partition(str(topic), number)))
        if topic.role == "data" and is_shared:
            return Input(topic.site, "")
        if topic.site != self.site or topic.neighbour not in self.names or topic.neighbour in self.shared:
            return None
        if topic.role == "relayed":
            home = Topic(topic.group, "forward", topic.neighbour)
            return Input(topic.neighbour, str(Partition(str(home), number)), is_copy=True)
        return Input(topic.neighbour, "", is_copy=True) if topic.role == "entries" else None


def original(copy: Record, site: str, place: str) -> PlainRecord | None:
    """Return the record that a relay copied from that partition of the site; None if `copy` is no such copy."""
    headers = list(copy.headers)
    if not headers or headers[0][0] != HEADER:
        return None
    fields = (headers[0][1] or b"").split(b" ")
    begin = f"{site}/{place}:".encode("ascii")
    if len(fields) <= _AT_MS or not fields[_RELAYED_FROM].startswith(begin):
        return None
    offset, at_ms = fields[_RELAYED_FROM][len(begin) :], fields[_AT_MS]
    if not _NUMBER.fullmatch(offset) or not (at_ms == b"-1" or _NUMBER.fullmatch(at_ms)) or int(at_ms) > LATEST_MS:
        return None
    headers[0] = (HEADER, b" ".join(fields[: len(FORWARD_FIELDS)]))
    return PlainRecord(*Partition.parse(place), int(offset), int(at_ms), copy.key, copy.value, headers)


def of_log(raw: Record, *, is_copy: bool) -> Data:
    """Decode a record of a site's log. In a copy, SOURCE names the original; the decoded record has none."""
    headers = list(raw.headers)
    if is_copy and headers and headers[0][0] == HEADER:
        fields = (headers[0][1] or b"").split(b" ")
        fields[_SOURCE : _SOURCE + 1] = [NOTHING.encode("ascii")]
        headers[0] = (HEADER, b" ".join(fields))
    return decode_data(raw.key, raw.value, headers)
