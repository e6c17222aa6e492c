"""Reading a group's dead letters: refused FORWARD records, whole, with the reason and their places in FORWARD.

A dead letter that is sent again is a message of another sender, with the header RESENT_HEADER: `PLACE SENDER`, the
letter's place in its topic, and its own sender. By this header a second resend finds the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from typing import NamedTuple

from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import WRONG_LOCAL_SEQNOS, decode_forward, decode_local_seqnos
from connectors.kafka.codec.dead_letter_codec import decode_dead_letter
from connectors.kafka.codec.headers import (
    DEPENDS_HEADER,
    HEADER,
    NOTHING,
    check_application_headers,
    first_fields,
    parse_number,
    split_headers,
    without_nulls,
)
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import read_range
from connectors.kafka.log.data_log import DataLog, topic_missing
from ordering.base.errors import AbcastError, ProtocolViolation, UsageError
from ordering.base.kinds import MESSAGE_KINDS
from ordering.base.names import Topic
from ordering.base.packs import decode_pack, unpacked
from ordering.base.records import MAX_PAYLOAD_BYTES, MESSAGE, MESSAGES, Forward, Headers, Partition, Source
from ordering.sequencer.sequencer import FORGOTTEN
from ordering.sequencer.state import SequencerState

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


def messages_of(letter: StoredLetter, group: str, site: str, who: str) -> tuple[list[bytes], Headers]:
    """Return the payloads and the headers of the messages that send a dead letter again. `who`: the operator.

    A pack has several. Raises UsageError if the letter is no message, or one that would be refused again.
    """
    cannot = f"dead letter {letter.offset} can't be sent again:"
    kind = _field(letter.headers, 1).decode("ascii", "replace")
    if kind not in (MESSAGE, MESSAGES, ""):
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
        return _payloads(letter.payload, letter.headers), check_application_headers((*kept, *ours))
    except (ProtocolViolation, UsageError) as error:
        raise UsageError(f"{cannot} {error}") from error


def unsent(connection: Connection, group: str, site: str, letter: StoredLetter, payloads: list[bytes]) -> list[bytes]:
    """Return the payloads of the dead letter that the order neither has, nor can get from a record in FORWARD.

    Reads the site's DATA, then FORWARD, from the time of the dead letter on. Two kinds of records have its messages:
    earlier resends, also one that was cut off, and repeats by its own sender. A pack's first messages, up to its
    sender's row, may have been ordered at any time before.

    Raises AbcastError if no payload is left; UsageError if the order may have one, which nobody can tell any more; else
    as `DataLog` does.
    """
    since_ms, own = max(0, letter.at_ms - _CLOCKS_DIFFER_MS), _ids(letter.sender, letter.headers)
    mark = _place(group, site, letter.offset).encode("ascii")
    with DataLog(connection, group, site) as data:
        resent, seqno, ordered, state, is_purged = _in_order(data, since_ms, mark, own)
    if own is not None and ordered >= own.local_seqno:
        payloads = payloads[ordered - own.local_seqno + 1 :]
        own = own._replace(local_seqno=ordered + 1, messages=len(payloads))
    as_seqno = f" as seqno {seqno}" if seqno else ""
    if not payloads:
        raise _sent(letter, f"is in the order{as_seqno}, since its sender has repeated it")
    if not _without(payloads, resent):
        raise _sent(letter, f"was sent again before,{as_seqno}")
    if is_purged:
        raise _unknown(letter, "the DATA records of its time are purged, and a resend may have been among them")
    floor = state.membership.incarnation_floor
    if letter.reason == FORGOTTEN or (own is not None and own.incarnation <= floor):
        raise _unknown(letter, "the order may have its message, from before its sender was forgotten")
    refused = cache(lambda: _refused(connection, group, site))
    for waits in _waiting(connection, Topic(group, "forward", site), since_ms, state):
        is_resent = _is_resent(waits.headers, mark)
        is_repeat = _Ids(*waits.id, waits.count).meet(own)
        if not (is_resent or is_repeat) or str(waits.source) in refused():
            continue
        if not is_resent:
            raise _sent(letter, "waits for a sequencer, since its sender has repeated it")
        resent.update(decode_pack(waits.payload, waits.count) if waits.kind == MESSAGES else [waits.payload])
    if not (left := _without(payloads, resent)):
        raise _sent(letter, "was sent again before, and waits for a sequencer")
    return left


class _InOrder(NamedTuple):
    """The findings about a dead letter in DATA.

    `resent`: the payloads of earlier resends. `ordered`: its own last local seqno that the order has, 0 without one.
    `seqno`: that of the last message of either sort, 0 if it is from before. `state`: the sequencer's at the end.
    """

    resent: Counter[bytes]
    seqno: int
    ordered: int
    state: SequencerState
    is_purged: bool


def _in_order(data: DataLog, since_ms: int, mark: bytes, own: _Ids | None) -> _InOrder:
    """Return the findings in DATA from a time on. `own`: the ids of the dead letter."""
    resent, seqno, ordered = Counter[bytes](), 0, 0
    start, end = data.offset_since(since_ms), data.end()
    for _, _, record in data.records(start, end):
        if record.kind not in MESSAGE_KINDS:
            continue
        if _is_resent(record.headers, mark):
            resent.update(message.payload for message in unpacked(record))
            seqno = record.seqno + record.count - 1
        elif own is not None and _Ids(*record.id, record.count).meet(own):
            ordered = min(own.last, record.last_local_seqno)
            seqno = record.seqno + ordered - record.local_seqno
    state, is_purged = data.state(end), data.beginning() >= start > 0
    if own is not None and own.messages > 1 and not is_purged:
        ordered = max(ordered, _last_ordered(data, start, state, own))
    return _InOrder(resent, seqno, ordered, state, is_purged)


def _last_ordered(data: DataLog, start: int, state: SequencerState, own: _Ids) -> int:
    """Return the last local seqno of the incarnation that was ordered; 0 if none was, or only behind `start`."""
    row = state.received.get(own.sender)
    if row is not None and row.incarnation > own.incarnation:  # its sender has begun again since
        row = data.state(start).received.get(own.sender)
    return row.local_seqno if row is not None and row.incarnation == own.incarnation else 0


def _without(payloads: list[bytes], sent: Counter[bytes]) -> list[bytes]:
    """Return the payloads that were not sent, in order. Equal ones count one by one."""
    passed = Counter[bytes]()
    left = []
    for payload in payloads:
        passed[payload] += 1
        if passed[payload] > sent[payload]:
            left.append(payload)
    return left


def _waiting(connection: Connection, topic: Topic, since_ms: int, state: SequencerState) -> Iterator[Forward]:
    """Yield the FORWARD records that the sequencer of `state` has yet to consider; none that break a rule."""
    with closing(connection.consumer()) as consumer:
        with connection.reachable("READ", str(topic)):
            places = [TopicPartition(str(topic), number) for number in consumer.partitions_for_topic(str(topic))]
            begins, ends = consumer.offsets_for_times(dict.fromkeys(places, since_ms)), consumer.end_offsets(places)
        for place, first in begins.items():
            if first is None:
                continue
            partition = Partition(place.topic, place.partition)
            considered = max(state.positions.get(partition, 0), state.decided.get(partition, 0))
            for record in read_range(connection, consumer, place, max(int(first.offset), considered), int(ends[place])):
                source = Source(*partition, record.offset)
                waits = decode_forward(source, record.key, record.value, record.headers, record.timestamp)
                if isinstance(waits, Forward):
                    yield waits


def _refused(connection: Connection, group: str, site: str) -> set[str]:
    """Return the places in FORWARD of all dead letters. DATA tells no position behind the last ordered record."""
    return {letter.source for letter in read_dead_letters(connection, group, site)}


def _is_resent(headers: Headers, mark: bytes) -> bool:
    return any(name == RESENT_HEADER and (value or b"").split(b" ")[0] == mark for name, value in headers)


class _Ids(NamedTuple):
    """The ids of a record's messages."""

    sender: str
    incarnation: int
    local_seqno: int
    messages: int

    @property
    def last(self) -> int:
        """The last local seqno."""
        return self.local_seqno + self.messages - 1

    def meet(self, other: _Ids | None) -> bool:
        """Whether a message has one of the other ids, too."""
        if other is None or self[:2] != other[:2]:
            return False
        return self.local_seqno <= other.last and other.local_seqno <= self.last


def _ids(key: bytes | None, headers: Headers) -> _Ids | None:
    """Return the ids that the messages of a FORWARD record have; None if it has none."""
    incarnation, (local_seqno, count) = parse_number(_field(headers, 2)), _local_seqnos(headers)
    if key is None or incarnation is None or local_seqno is None:
        return None
    return _Ids(key.decode("ascii", "backslashreplace"), incarnation, local_seqno, count)


def _local_seqnos(headers: Headers) -> tuple[int | None, int]:
    return decode_local_seqnos(_field(headers, 1), _field(headers, 3))


def _field(headers: Headers, number: int) -> bytes:
    """Return a field of the record's own header, counted from 0; empty if it has fewer."""
    return b"".join(first_fields(headers, number + 1)[number:])


def _payloads(value: bytes, headers: Headers) -> list[bytes]:
    """Return the payloads of a refused record. Raises ProtocolViolation if it is a pack that can't be read."""
    if _field(headers, 1) != MESSAGES.encode("ascii"):
        return [value]
    local_seqno, count = _local_seqnos(headers)
    if local_seqno is None:
        raise ProtocolViolation(f"{WRONG_LOCAL_SEQNOS}.")
    return decode_pack(value, count)


def _sent(letter: StoredLetter, how: str) -> AbcastError:
    return AbcastError(f"dead letter {letter.offset} {how}. --anyway sends it once more.")


def _unknown(letter: StoredLetter, why: str) -> UsageError:
    return UsageError(
        f"dead letter {letter.offset} may be in the order: {why}. Look for it there (`abcast dead-letters show "
        f"{letter.offset}`, `abcast query`). --anyway sends it."
    )


def _place(group: str, site: str, offset: int) -> str:
    return f"{Topic(group, 'dead-letter', site)}-0:{offset}"
