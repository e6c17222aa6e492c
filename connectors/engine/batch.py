"""A batch as the process engine decides it: Kafka's records in, Kafka's records out.

There are two ways, with the same result: row by row for a few records, and by columns (`ordering.columns`) for many.
By columns, the codec looks at one record of each sender and kind. What the others say differs in the local seqno only,
so that is read from the text. Whatever is not plain (an application's headers, control records, bad input, what a relay
has brought) is read by the codec, row by row.

The header of a plain message is the beginning of its DATA's: `2 message INCARNATION LOCAL_SEQNO`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from kafka.structs import TopicPartition

from connectors.kafka.codec import (
    FORWARD_FIELDS,
    HEADER,
    dead_letter_headers,
    decode_forward,
    encode_data,
    highest_incarnation,
    parse_number,
)
from connectors.kafka.sending import Record
from connectors.kafka.transport import Record as Read
from ordering.columns import Decisions, ForwardColumns, step_columns
from ordering.links import LinkColumns
from ordering.names import Topic
from ordering.records import (
    HEARTBEAT,
    MAX_PAYLOAD_BYTES,
    MESSAGE,
    SKIP,
    Data,
    DeadLetter,
    Forward,
    Malformed,
    Partition,
    Source,
)
from ordering.sequencer import SequencerState, step

COLUMNS_FROM = 64
"""With fewer records the arrays cost more than they save."""
_NO_LINK = (-1, 0, 0, 0)
_PLAIN_KINDS = (MESSAGE, HEARTBEAT)

Polled = Mapping[TopicPartition, Sequence[Read]]
"""Records as a consumer gives them, by partition."""


class Output(NamedTuple):
    """A record to write, and the topic."""

    topic: str
    record: Record


class Topics(NamedTuple):
    """Where a group's outputs go."""

    data: str
    dead_letters: str

    @classmethod
    def of(cls, group: str, site: str) -> Topics:
        """Those of the group at the site."""
        return cls(str(Topic(group, "data", site)), str(Topic(group, "dead-letter", site)))

    def encode(self, output: Data | DeadLetter, raw: Read | None) -> Output:
        """What was decided, as it is written. `raw`: the record that it came from, if there is one."""
        if isinstance(output, Data):
            return Output(self.data, encode_data(output))
        assert raw is not None
        # The value is null, too, if that is what is wrong with it.
        return Output(self.dead_letters, (raw.key, raw.value, dead_letter_headers(output, raw.headers)))  # type: ignore[arg-type]


def decide(state: SequencerState, polled: Polled, topics: Topics) -> tuple[SequencerState, list[Output]]:
    """Decide the records: the state after them, and what is to be written."""
    # The one place where a batch gets its order: topic, partition, offset.
    rows = [(place, raw) for place in sorted(polled) for raw in polled[place]]
    if len(rows) < COLUMNS_FROM:
        return by_rows(state, rows, topics)
    return by_columns(state, rows, topics)


Rows = Sequence[tuple[TopicPartition, Read]]
"""Records in the order of the log."""


def by_rows(state: SequencerState, rows: Rows, topics: Topics) -> tuple[SequencerState, list[Output]]:
    """One by one."""
    decoded = [_decoded(place, raw) for place, raw in rows]
    raws = {record.source: raw for record, (_, raw) in zip(decoded, rows, strict=True)}
    state, outputs = step(state, decoded)
    return state, [topics.encode(output, raws.get(output.source)) for output in outputs]  # type: ignore[arg-type]


def by_columns(state: SequencerState, rows: Rows, topics: Topics) -> tuple[SequencerState, list[Output]]:
    """As arrays."""
    batch = _Columns(rows)
    decisions = step_columns(state, batch.columns())
    return decisions.state, list(batch.outputs(state, decisions, topics))


def _decoded(place: TopicPartition, raw: Read) -> Forward | Malformed:
    return decode_forward(
        Source(place.topic, place.partition, raw.offset), raw.key, raw.value, raw.headers, raw.timestamp
    )


class _Sender(NamedTuple):
    """What all plain records of a sender's life and kind have in common."""

    code: int
    incarnation: int
    is_message: bool


class _Columns:
    """The records of a batch, read into columns. `odd` has those that are not plain, as the codec reads them."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.odd: dict[int, Forward | Malformed] = {}
        self._codes: dict[str, int] = {}
        self._partitions: list[Partition] = []
        self._partition: list[int] = []
        self._sender: list[int] = []
        self._incarnation: list[int] = []
        self._local_seqno: list[int] = []
        self._is_message: list[bool] = []
        at: TopicPartition | None = None
        plain: dict[tuple[bytes | None, bytes], _Sender | None] = {}
        for row, (place, raw) in enumerate(rows):
            if place is not at:
                at, plain = place, {}
                self._partitions.append(Partition(place.topic, place.partition))
            sender, local_seqno = self._read(row, place, raw, plain)
            self._partition.append(len(self._partitions) - 1)
            self._sender.append(sender.code)
            self._incarnation.append(sender.incarnation)
            self._local_seqno.append(local_seqno)
            self._is_message.append(sender.is_message)

    def _read(
        self, row: int, place: TopicPartition, raw: Read, plain: dict[tuple[bytes | None, bytes], _Sender | None]
    ) -> tuple[_Sender, int]:
        """The sender, and the local seqno. `plain`: what is known of records of this partition that begin alike."""
        headers = raw.headers
        if len(headers) == 1 and headers[0][0] == HEADER:
            head, _, text = (headers[0][1] or b"").rpartition(b" ")
            try:
                sender = plain[raw.key, head]
            except KeyError:
                sender = plain[raw.key, head] = self._judge(place, raw, head)
            if sender is not None:
                local_seqno = parse_number(text)
                value = raw.value
                if (
                    local_seqno is not None
                    and value is not None
                    and len(value) <= MAX_PAYLOAD_BYTES
                    and sender.incarnation <= highest_incarnation(raw.timestamp)
                ):
                    return sender, local_seqno
        record = self.odd[row] = _decoded(place, raw)
        if isinstance(record, Malformed):
            return _Sender(self._code(""), 0, is_message=False), 0
        return _Sender(self._code(record.sender), record.incarnation, record.kind == MESSAGE), record.local_seqno

    def _judge(self, place: TopicPartition, raw: Read, head: bytes) -> _Sender | None:
        """Whether records of that key that begin so are plain, if the codec finds nothing wrong with the rest."""
        record = _decoded(place, raw)
        if isinstance(record, Malformed) or record.kind not in _PLAIN_KINDS or record.link is not None:
            return None
        if head.count(b" ") != len(FORWARD_FIELDS) - 2:
            return None
        return _Sender(self._code(record.sender), record.incarnation, record.kind == MESSAGE)

    def _code(self, address: str) -> int:
        return self._codes.setdefault(address, len(self._codes))

    def columns(self) -> ForwardColumns:
        """What the core decides on."""
        size = len(self.rows)
        well_formed = np.ones(size, np.bool_)
        links: dict[int, tuple[int, ...]] = {}
        controls: dict[int, tuple[str, bytes]] = {}
        for row, record in self.odd.items():
            if isinstance(record, Malformed):
                well_formed[row] = False
                continue
            if record.link is not None:
                links[row] = record.link
            if record.kind not in (*_PLAIN_KINDS, SKIP):
                controls[row] = record.kind, record.payload
        return ForwardColumns(
            partitions=self._partitions,
            partition=np.array(self._partition, dtype=np.int64),
            offset=np.fromiter((raw.offset for _, raw in self.rows), np.int64, size),
            senders=list(self._codes),
            sender=np.array(self._sender, dtype=np.int64),
            incarnation=np.array(self._incarnation, dtype=np.int64),
            local_seqno=np.array(self._local_seqno, dtype=np.int64),
            well_formed=well_formed,
            timestamp_ms=np.fromiter((raw.timestamp for _, raw in self.rows), np.int64, size),
            is_message=np.array(self._is_message, dtype=np.bool_),
            controls=controls,
            link=_link_columns(links, size),
        )

    def outputs(self, state: SequencerState, decisions: Decisions, topics: Topics) -> Iterator[Output]:
        """What was decided, in the order of the rows. `state` is the one before."""
        reasons = {row: reason for reason, mask in decisions.dead.items() for row in np.flatnonzero(mask).tolist()}
        between = [
            f"{state.epoch} {state.view} {partition.topic}-{partition.number}:".encode("ascii")
            for partition in self._partitions
        ]
        data, odd, partitions = topics.data, self.odd, self._partition
        for row, seqno in enumerate(decisions.seqno.tolist()):
            if seqno and row not in odd:
                raw = self.rows[row][1]
                header = b"%b %d %b%d %d" % (
                    raw.headers[0][1], seqno, between[partitions[row]], raw.offset, raw.timestamp
                )  # fmt: skip
                yield Output(data, (raw.key, raw.value, [(HEADER, header)]))  # type: ignore[arg-type]
            elif seqno or row in odd or row in reasons:
                output = self._odd_output(state, row, seqno, reasons.get(row, ""), decisions)
                if output is not None:
                    yield topics.encode(output, self.rows[row][1])

    def _odd_output(
        self, state: SequencerState, row: int, seqno: int, reason: str, decisions: Decisions
    ) -> Data | DeadLetter | None:
        place, raw = self.rows[row]
        record = self.odd.get(row)
        if isinstance(record, Malformed):
            return DeadLetter(record.source, record.reason)
        if reason:
            return DeadLetter(Source(place.topic, place.partition, raw.offset), reason)
        if not seqno or record is None:
            return None
        kind, payload = decisions.controls.get(row, (record.kind, record.payload))
        return Data(
            kind=kind,
            epoch=state.epoch,
            seqno=seqno,
            view=state.view,
            sender=record.sender,
            incarnation=record.incarnation,
            local_seqno=record.local_seqno,
            payload=payload,
            source=record.source,
            headers=record.headers,
            forwarded_at_ms=record.timestamp_ms,
            link=record.link,
        )


def _link_columns(links: Mapping[int, tuple[int, ...]], size: int) -> LinkColumns | None:
    if not links:
        return None
    rows = np.full((size, len(_NO_LINK)), _NO_LINK, dtype=np.int64)
    for row, link in links.items():
        rows[row] = link
    return LinkColumns(*rows.T)
