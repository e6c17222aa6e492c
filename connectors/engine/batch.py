"""A batch as the process engine decides it: Kafka's records in, Kafka's records out.

There are two ways, with the same result: row by row for a few records, and by columns (`ordering.sequencer.columns`)
for many. By columns, the codec looks at one record of each sender and kind. What the others say differs in the local
seqno only, so that is read from the text. Whatever is not plain (an application's headers, control records, bad input,
what a relay has brought) is read by the codec, row by row.

The header of a plain message is the beginning of its DATA's: `2 message INCARNATION LOCAL_SEQNO`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import (
    FORWARD_FIELDS,
    HEADER,
    decode_forward,
    encode_data,
    encode_dead_letter,
    highest_incarnation,
)
from connectors.kafka.connection.sending import Record
from connectors.kafka.transport import Record as Read
from ordering.base.names import Topic
from ordering.base.records import (
    HEARTBEAT,
    MAX_NUMBER,
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
from ordering.sequencer.columns import Decisions, ForwardColumns, step_columns
from ordering.sequencer.links import LinkColumns
from ordering.sequencer.sequencer import SequencerState, data_of, step

COLUMNS_FROM = 64
"""With fewer records the arrays cost more than they save."""
_NO_LINK = (-1, 0, 0, 0)
_PLAIN_KINDS = (MESSAGE, HEARTBEAT)
_ZERO = ord("0")
_DIGITS = len(str(MAX_NUMBER))

Polled = Mapping[TopicPartition, Sequence[Read]]
"""Records as a consumer gives them, by partition."""


Output = tuple[str, Record]
"""A record to write, behind its topic."""


class OutputTopics(NamedTuple):
    """Where a group's outputs go."""

    data: str
    dead_letters: str

    @classmethod
    def of(cls, group: str, site: str) -> OutputTopics:
        """Those of the group at the site."""
        return cls(str(Topic(group, "data", site)), str(Topic(group, "dead-letter", site)))

    def encode(self, output: Data | DeadLetter, raw: Read | None) -> Output:
        """What was decided, as it is written. `raw`: the record that it came from, if there is one."""
        if isinstance(output, Data):
            return self.data, encode_data(output)
        assert raw is not None
        # The value is null, too, if that is what is wrong with it.
        return self.dead_letters, encode_dead_letter(output, raw.key, raw.value, raw.headers)  # type: ignore[return-value]


Rows = Sequence[tuple[TopicPartition, Sequence[Read]]]
"""Records in the order of the log, by partition."""


def decide(state: SequencerState, polled: Polled, topics: OutputTopics) -> tuple[SequencerState, list[Output]]:
    """Decide the records: the state after them, and what is to be written."""
    # The one place where a batch gets its order: topic, partition, offset.
    rows = sorted(polled.items(), key=lambda item: item[0])
    if sum(map(len, polled.values())) < COLUMNS_FROM:
        return by_rows(state, rows, topics)
    return by_columns(state, rows, topics)


def by_rows(state: SequencerState, rows: Rows, topics: OutputTopics) -> tuple[SequencerState, list[Output]]:
    """One by one."""
    raws = {Source(place.topic, place.partition, raw.offset): raw for place, records in rows for raw in records}
    state, outputs = step(state, [_decoded(source, raw) for source, raw in raws.items()])
    return state, [topics.encode(output, raws.get(output.source)) for output in outputs]  # type: ignore[arg-type]


def by_columns(state: SequencerState, rows: Rows, topics: OutputTopics) -> tuple[SequencerState, list[Output]]:
    """As arrays."""
    batch = _Columns(rows)
    decisions = step_columns(state, batch.forward())
    return decisions.state, list(batch.outputs(state, decisions, topics))


def _decoded(source: Source, raw: Read) -> Forward | Malformed:
    return decode_forward(source, raw.key, raw.value, raw.headers, raw.timestamp)


class _Life(NamedTuple):
    """What the records of a sender's incarnation and of a kind have in common."""

    sender: int
    incarnation: int
    is_message: bool


class _Columns:
    """The records of a batch, read into columns. `odd` has those that are not plain, as the codec reads them."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._size = sum(len(records) for _, records in rows)
        self.odd: dict[int, Forward | Malformed] = {}
        self._senders: dict[str, int] = {}
        self._lives: dict[_Life, int] = {}
        self._life: list[int] = []
        """Of each row, an index of `_lives`."""
        self._local_seqno: list[int] = []
        for place, records in rows:
            self._read(place, records)

    def _read(self, place: TopicPartition, records: Sequence[Read]) -> None:
        """Read one partition. `lives` has what is known of its records that begin alike; None: they are not plain."""
        lives: dict[tuple[bytes | None, bytes], int | None] = {}
        add_life, add_local_seqno = self._life.append, self._local_seqno.append
        highest = _highest_incarnation_of_all(records)
        for raw in records:
            headers = raw.headers
            if len(headers) == 1 and headers[0][0] == HEADER and highest:
                head, _, number = (headers[0][1] or b"").rpartition(b" ")
                try:
                    life = lives[raw.key, head]
                except KeyError:
                    life = lives[raw.key, head] = self._judge(place, raw, head, highest)
                if life is not None and number.isdigit() and number[0] != _ZERO and len(number) <= _DIGITS:
                    add_life(life)
                    add_local_seqno(int(number))
                    continue
            record = self.odd[len(self._life)] = _decoded(Source(place.topic, place.partition, raw.offset), raw)
            if isinstance(record, Malformed):
                add_life(self._life_of("", 0, ""))
                add_local_seqno(0)
            else:
                add_life(self._life_of(record.sender, record.incarnation, record.kind))
                add_local_seqno(record.local_seqno)

    def _judge(self, place: TopicPartition, raw: Read, head: bytes, highest: int) -> int | None:
        """The life, if the codec finds nothing in this record that could make another one of the same beginning odd."""
        record = _decoded(Source(place.topic, place.partition, raw.offset), raw)
        if isinstance(record, Malformed) or record.kind not in _PLAIN_KINDS or record.link is not None:
            return None
        if head.count(b" ") != len(FORWARD_FIELDS) - 2 or record.incarnation > highest:
            return None
        return self._life_of(record.sender, record.incarnation, record.kind)

    def _life_of(self, sender: str, incarnation: int, kind: str) -> int:
        code = self._senders.setdefault(sender, len(self._senders))
        return self._lives.setdefault(_Life(code, incarnation, kind == MESSAGE), len(self._lives))

    def forward(self) -> ForwardColumns:
        """What the core decides on."""
        size, raws = self._size, [raw for _, records in self._rows for raw in records]
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
        sender, incarnation, is_message = (np.array(column) for column in zip(*self._lives, strict=True))
        life = np.array(self._life, dtype=np.int64)
        return ForwardColumns(
            partitions=[Partition(place.topic, place.partition) for place, _ in self._rows],
            partition=np.repeat(np.arange(len(self._rows)), [len(records) for _, records in self._rows]),
            offset=np.array([raw.offset for raw in raws], dtype=np.int64),
            senders=list(self._senders),
            sender=sender[life],
            incarnation=incarnation[life],
            local_seqno=np.array(self._local_seqno, dtype=np.int64),
            well_formed=well_formed,
            timestamp_ms=np.array([raw.timestamp for raw in raws], dtype=np.int64),
            is_message=is_message[life],
            controls=controls,
            link=_link_columns(links, size),
        )

    def outputs(self, state: SequencerState, decisions: Decisions, topics: OutputTopics) -> Iterator[Output]:
        """What was decided, in the order of the rows. `state` is the one before."""
        reasons = {row: reason for reason, mask in decisions.dead.items() for row in np.flatnonzero(mask).tolist()}
        odd, data, row, seqnos = self.odd, topics.data, -1, decisions.seqno.tolist()
        for place, records in self._rows:
            between = f"{state.epoch} {state.view} {place.topic}-{place.partition}:".encode("ascii")
            for raw in records:
                row += 1
                seqno = seqnos[row]
                if seqno and row not in odd:
                    begin = raw.headers[0][1]
                    header = b"%b %d %b%d %d" % (begin, seqno, between, raw.offset, raw.timestamp)
                    yield data, (raw.key, raw.value, [(HEADER, header)])  # type: ignore[misc]  # it has a value
                elif row in odd or row in reasons:
                    source = Source(place.topic, place.partition, raw.offset)
                    output = self._odd_output(state, row, source, reasons.get(row, ""), decisions)
                    if output is not None:
                        yield topics.encode(output, raw)

    def _odd_output(
        self, state: SequencerState, row: int, source: Source, reason: str, decisions: Decisions
    ) -> Data | DeadLetter | None:
        record, seqno = self.odd.get(row), int(decisions.seqno[row])
        if isinstance(record, Malformed):
            return DeadLetter(source, record.reason)
        if reason:
            return DeadLetter(source, reason)
        if not seqno or record is None:
            return None
        kind, payload = decisions.controls.get(row, (record.kind, record.payload))
        return data_of(state, seqno, record, kind, payload)


def _highest_incarnation_of_all(records: Sequence[Read]) -> int:
    """The highest incarnation that each of the records may have; 0 if a payload is none, so that all are read one by
    one.
    """
    try:
        if max(len(raw.value) for raw in records) > MAX_PAYLOAD_BYTES:  # type: ignore[arg-type]  # that is asked
            return 0
    except TypeError:
        return 0
    return min(highest_incarnation(at_ms) for at_ms in {raw.timestamp for raw in records})


def _link_columns(links: Mapping[int, tuple[int, ...]], size: int) -> LinkColumns | None:
    if not links:
        return None
    rows = np.full((size, len(_NO_LINK)), _NO_LINK, dtype=np.int64)
    for row, link in links.items():
        rows[row] = link
    return LinkColumns(*rows.T)
