"""Reading a group's dead letters: refused FORWARD records, whole, with the reason and their places in FORWARD.

A dead letter that is sent again is a message of another sender, with the header RESENT_HEADER: `PLACE SENDER`, the
letter's place in its topic, and its own sender. By this header a second resend finds the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from kafka.structs import TopicPartition

from connectors.kafka.codec.dead_letter_codec import decode_dead_letter
from connectors.kafka.codec.headers import (
    DEPENDS_HEADER,
    HEADER,
    NOTHING,
    check_application_headers,
    first_fields,
    split_headers,
    without_nulls,
)
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import read_range
from connectors.kafka.log.data_log import DataLog, topic_missing
from ordering.base.errors import UsageError
from ordering.base.names import Topic
from ordering.base.records import MAX_PAYLOAD_BYTES, MESSAGE, Headers

_CLOCKS_DIFFER_MS = 60_000
"""The topics of a group may have leaders with different clocks."""
RESENT_HEADER, RESENT_BY_HEADER = "dead-letter", "resent-by"


class StoredLetter(NamedTuple):
    """A dead letter at `offset` of its topic. `source` is the record's place in FORWARD, `sender` its key.

    `at_ms`: the time of the refusal, by the broker's clock. Sender, payload and headers are unchecked: any bytes.
    """

    offset: int
    at_ms: int
    source: str
    reason: str
    sender: bytes | None
    payload: bytes | None
    headers: Headers


def read_dead_letters(
    connection: Connection, group: str, site: str, *, last: int | None = None, offset: int | None = None
) -> Iterator[StoredLetter]:
    """Yield the dead letters that are still there, oldest first: all, the `last` ones, or the one at `offset`.

    Raises BrokerUnreachable, KafkaRefused, TopicMissing; HistoryUnavailable if retention drops letters during the read.
    """
    topic = str(Topic(group, "dead-letter", site))
    partition = TopicPartition(topic, 0)
    with closing(connection.consumer()) as consumer:
        with connection.reachable("READ", topic):
            if not consumer.partitions_for_topic(topic):
                raise topic_missing(topic, group, site)
            beginning, end = (
                offsets([partition])[partition] for offsets in (consumer.beginning_offsets, consumer.end_offsets)
            )
        if offset is not None:
            beginning, end = max(beginning, offset), min(end, offset + 1)
        elif last is not None:
            beginning = max(beginning, end - last)
        for record in read_range(connection, consumer, partition, beginning, end):
            source, reason, headers = decode_dead_letter(record.headers)
            yield StoredLetter(record.offset, record.timestamp, source, reason, record.key, record.value, headers)


def message_of(letter: StoredLetter, group: str, site: str, who: str) -> tuple[bytes, Headers]:
    """Return payload and headers of the message that sends a dead letter again. `who`: the operator.

    Raises UsageError if the letter is no message, or one that would be refused again.
    """
    cannot = f"dead letter {letter.offset} can't be sent again:"
    kind = b" ".join(first_fields(letter.headers, 2)[1:]).decode("ascii", "replace")
    if kind not in (MESSAGE, ""):
        raise UsageError(f"{cannot} it is a record {kind!r}, not a message.")
    if letter.payload is None:
        raise UsageError(f"{cannot} it has no payload ({letter.reason}).")
    if len(letter.payload) > MAX_PAYLOAD_BYTES:
        raise UsageError(f"{cannot} its payload has {len(letter.payload):,} bytes, over {MAX_PAYLOAD_BYTES:,}.")
    own, application = split_headers(letter.headers)
    if reserved := next((name for name, _ in own if name != HEADER), None):
        raise UsageError(f"{cannot} names of headers that begin with {HEADER} are reserved, and it has {reserved!r}.")
    sender = (letter.sender or NOTHING.encode("ascii")).decode("ascii", "backslashreplace")
    ours = (
        (RESENT_HEADER, f"{_place(group, site, letter.offset)} {sender}".encode("ascii")),
        (RESENT_BY_HEADER, who.encode()),
    )
    replaced = (DEPENDS_HEADER, RESENT_HEADER, RESENT_BY_HEADER)
    kept = [header for header in without_nulls(application) if header[0] not in replaced]
    try:
        return letter.payload, check_application_headers((*kept, *ours))
    except UsageError as error:
        raise UsageError(f"{cannot} {error}") from error


def find_resent(connection: Connection, group: str, site: str, letter: StoredLetter) -> int | None:
    """Return the seqno of the message by which the dead letter was sent again; 0 if it waits for one; None without one.

    Reads the site's DATA, then FORWARD, from the time of the dead letter on. Raises as `DataLog` does.
    """
    since_ms = letter.at_ms - _CLOCKS_DIFFER_MS
    mark, forward = _place(group, site, letter.offset).encode("ascii"), str(Topic(group, "forward", site))

    def is_it(headers: Headers) -> bool:
        return any(name == RESENT_HEADER and (value or b"").split(b" ")[0] == mark for name, value in headers)

    with DataLog(connection, group, site) as data, closing(connection.consumer()) as consumer:
        records = data.records(data.offset_since(since_ms), data.end())
        seqnos = [stored.data.seqno for stored in records if stored.data.headers and is_it(stored.data.headers)]
        if seqnos:
            return seqnos[-1]
        with connection.reachable("READ", forward):
            places = [TopicPartition(forward, number) for number in consumer.partitions_for_topic(forward)]
            begins, ends = consumer.offsets_for_times(dict.fromkeys(places, since_ms)), consumer.end_offsets(places)
        for place, first in begins.items():
            if first is not None:
                unread = read_range(connection, consumer, place, int(first.offset), int(ends[place]))
                if any(is_it(tuple(record.headers)) for record in unread):
                    return 0
    return None


def _place(group: str, site: str, offset: int) -> str:
    return f"{Topic(group, 'dead-letter', site)}-0:{offset}"
