"""The decision of a batch in the process engine: Kafka's records in, Kafka's records out.

There are two ways, with the same result: row by row (`connectors.takeover.rows`) for a few records, and by columns
(`ordering.sequencer.columns`) for many. By columns, the codec decodes one record of each sender, kind and headers of
the application. The others differ only in numbers, which are read from the text: the local seqno, and LINK where a
link of a mesh has brought the record. A pack differs in its value, too. Irregular records (control records, bad input,
what relays of a hub bring) are decoded by the codec, row by row, and so is a pack that is to be cut.

The header of a plain message is the beginning of its DATA's: `2 message INCARNATION LOCAL_SEQNO`. That of a pack is,
without its last local seqno: `2 messages INCARNATION FIRST-LAST`. That of a linked message is followed by ` - LINK`,
and LINK is the end of its DATA's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import NamedTuple

import numpy as np
from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import FORWARD_FIELDS, decode_local_seqnos, linked_fields
from connectors.kafka.codec.headers import HEADER, NOTHING, VERSION, highest_incarnation
from connectors.kafka.transport import Record as Read
from connectors.takeover.rows import Output, OutputTopics, Rows, by_rows, decoded
from ordering.base.kinds import COLUMN_KINDS, MESSAGE_KINDS
from ordering.base.packs import encode_pack, fault, most_messages, parts, rest_of
from ordering.base.records import (
    MAX_NUMBER,
    MAX_PAYLOAD_BYTES,
    MESSAGES,
    Data,
    DeadLetter,
    Forward,
    Headers,
    Malformed,
    Partition,
    Source,
)
from ordering.sequencer.columns import Decisions, ForwardColumns, step_columns
from ordering.sequencer.links import LinkColumns, neighbour_of
from ordering.sequencer.packing import runs
from ordering.sequencer.sequencer import data_of
from ordering.sequencer.state import SequencerState

COLUMNS_FROM = 16
"""The smallest batch for columns. With fewer records, of several senders, the arrays cost more than they save."""
_NO_LINK = (-1, 0, 0, 0)
_ZERO = ord("0")
_DIGITS = len(str(MAX_NUMBER))
_PACK = MESSAGES.encode("ascii")
_BEFORE_LINK = f" {NOTHING} ".encode("ascii")

Polled = Mapping[TopicPartition, Sequence[Read]]
"""Records of a consumer's poll, by partition."""


def decide(
    state: SequencerState, polled: Polled, topics: OutputTopics, *, packs: bool = False
) -> tuple[SequencerState, list[Output]]:
    """Decide the records; return the state after them, and the records to write, with `packs` among them."""
    # The one place where a batch gets its order: topic, partition, offset.
    rows = sorted(polled.items(), key=lambda item: item[0])
    if sum(map(len, polled.values())) < COLUMNS_FROM:
        return by_rows(state, rows, topics, packs=packs)
    return by_columns(state, rows, topics, packs=packs)


def by_columns(
    state: SequencerState, rows: Rows, topics: OutputTopics, *, packs: bool = False
) -> tuple[SequencerState, list[Output]]:
    """Decide the records as arrays."""
    batch = _Columns(rows)
    columns = batch.forward()
    decisions = step_columns(state, columns)
    seqnos = decisions.seqno.tolist()
    made = batch.packs(state, columns, seqnos, topics) if packs else {}
    after = replace(decisions.state, counted=True) if made else decisions.state
    return after, list(batch.outputs(state, decisions, seqnos, topics, made))


class _SenderAndKind(NamedTuple):
    """The common part of the records of a sender's incarnation and a kind."""

    sender: int
    incarnation: int
    is_message: bool


class _Columns:
    """The records of a batch, read into columns. `irregular`: records that are not plain, decoded by the codec."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._size = sum(len(records) for _, records in rows)
        self.irregular: dict[int, Forward | Malformed] = {}
        self._application: dict[int, Headers] = {}
        """The application's headers of the plain rows that have some."""
        self._senders: dict[str, int] = {}
        self._common: dict[_SenderAndKind, int] = {}
        self._indices: list[int] = []
        """For each row, an index into `_common`."""
        self._local_seqno: list[int] = []
        self._count: dict[int, int] = {}
        """The number of messages, of the rows that are packs."""
        self._links: dict[int, list[int]] = {}
        """The numbers of LINK, of the plain rows that a link has brought."""
        for place, records in rows:
            self._read(place, records)

    def _read(self, place: TopicPartition, records: Sequence[Read]) -> None:
        """Read one partition."""
        highest = _highest_incarnation_of_all(records)
        if not highest:
            for raw in records:
                self._read_irregular(place, raw)
        elif neighbour_of(place.topic):
            self._read_relayed(place, records)
        else:
            self._read_own(place, records, highest)

    def _read_own(self, place: TopicPartition, records: Sequence[Read], highest: int) -> None:
        """Read a partition that senders fill. `known`: the answer of `_judge` for each beginning of a header."""
        known: dict[tuple[bytes | None, bytes, Headers], tuple[int, int]] = {}
        add_index, add_local_seqno = self._indices.append, self._local_seqno.append
        for raw in records:
            headers = raw.headers
            if headers and headers[0][0] == HEADER:
                head, _, number = (headers[0][1] or b"").rpartition(b" ")
                application = tuple(headers[1:]) if len(headers) > 1 else ()
                try:
                    index, most = known[raw.key, head, application]
                except KeyError:
                    index, most = known[raw.key, head, application] = self._judge(place, raw, head, highest)
                local_seqno = 0
                if most == 1 and number.isdigit() and number[0] != _ZERO and len(number) <= _DIGITS:
                    local_seqno = int(number)
                elif most > 1:
                    local_seqno, count = _pack_numbers(number, raw.value or b"", most)
                    if local_seqno:
                        self._count[len(self._indices)] = count
                if local_seqno:
                    if application:
                        self._application[len(self._indices)] = application
                    add_index(index)
                    add_local_seqno(local_seqno)
                    continue
            self._read_irregular(place, raw)

    def _read_relayed(self, place: TopicPartition, records: Sequence[Read]) -> None:
        """Read a partition that a relay fills. Its records are irregular in a hub, and between sites that agree.

        `known`: the answer of `_judge_linked`, as above.
        """
        known: dict[tuple[bytes | None, bytes, Headers], int | None] = {}
        add_index, add_local_seqno = self._indices.append, self._local_seqno.append
        for raw in records:
            headers = raw.headers
            if fields := linked_fields(headers):
                head, *numbers = fields
                application = tuple(headers[1:]) if len(headers) > 1 else ()
                try:
                    index = known[raw.key, head, application]
                except KeyError:
                    index = known[raw.key, head, application] = self._judge_linked(place, raw)
                if index is not None:
                    row = len(self._indices)
                    if application:
                        self._application[row] = application
                    local_seqno, *self._links[row] = map(int, numbers)
                    add_index(index)
                    add_local_seqno(local_seqno)
                    continue
            self._read_irregular(place, raw)

    def _read_irregular(self, place: TopicPartition, raw: Read) -> None:
        row = len(self._indices)
        record = self.irregular[row] = decoded(Source(place.topic, place.partition, raw.offset), raw)
        if isinstance(record, Malformed):
            self._indices.append(self._index_of("", 0, ""))
            self._local_seqno.append(0)
            return
        self._indices.append(self._index_of(record.sender, record.incarnation, record.kind))
        self._local_seqno.append(record.local_seqno)
        if record.kind == MESSAGES:
            self._count[row] = record.count

    def _judge(self, place: TopicPartition, raw: Read, head: bytes, highest: int) -> tuple[int, int]:
        """Return the index of the record's sender and kind, and the most messages that a record with this beginning may
        have: none if one may be irregular.
        """
        irregular = 0, 0
        record = decoded(Source(place.topic, place.partition, raw.offset), raw)
        if isinstance(record, Malformed) or record.kind not in COLUMN_KINDS:
            return irregular
        if head.count(b" ") != len(FORWARD_FIELDS) - 2 or record.incarnation > highest:
            return irregular
        most = most_messages(record.headers) if record.kind == MESSAGES else 1
        return self._index_of(record.sender, record.incarnation, record.kind), most

    def _judge_linked(self, place: TopicPartition, raw: Read) -> int | None:
        """Return the index of the record's sender and kind; None if one with this beginning may be irregular."""
        record = decoded(Source(place.topic, place.partition, raw.offset), raw)
        if isinstance(record, Malformed) or record.kind not in COLUMN_KINDS or record.link is None:
            return None
        return self._index_of(record.sender, record.incarnation, record.kind)

    def _index_of(self, sender: str, incarnation: int, kind: str) -> int:
        code = self._senders.setdefault(sender, len(self._senders))
        return self._common.setdefault(_SenderAndKind(code, incarnation, kind in MESSAGE_KINDS), len(self._common))

    def forward(self) -> ForwardColumns:
        """Return the columns on which the core decides."""
        size, raws = self._size, [raw for _, records in self._rows for raw in records]
        well_formed = np.ones(size, np.bool_)
        links: dict[int, Sequence[int]] = dict(self._links)
        controls: dict[int, tuple[str, bytes]] = {}
        for row, record in self.irregular.items():
            if isinstance(record, Malformed):
                well_formed[row] = False
                continue
            if record.link is not None:
                links[row] = record.link
            if record.kind not in COLUMN_KINDS:
                controls[row] = record.kind, record.payload
        sender, incarnation, is_message = (np.array(column) for column in zip(*self._common, strict=True))
        index = np.array(self._indices, dtype=np.int64)
        count = np.ones(size, np.int64) if self._count else None
        if count is not None:
            count[list(self._count)] = list(self._count.values())
        return ForwardColumns(
            partitions=[Partition(place.topic, place.partition) for place, _ in self._rows],
            partition=np.repeat(np.arange(len(self._rows)), [len(records) for _, records in self._rows]),
            offset=np.array([raw.offset for raw in raws], dtype=np.int64),
            senders=list(self._senders),
            sender=sender[index],
            incarnation=incarnation[index],
            local_seqno=np.array(self._local_seqno, dtype=np.int64),
            well_formed=well_formed,
            timestamp_ms=np.array([raw.timestamp for raw in raws], dtype=np.int64),
            is_message=is_message[index],
            controls=controls,
            link=_link_columns(links, size),
            count=count,
        )

    def packs(
        self, state: SequencerState, columns: ForwardColumns, seqnos: list[int], topics: OutputTopics
    ) -> dict[int, Output]:
        """Return the packs by their last rows, and take all of their rows out of `seqnos`, which has those decided."""
        raws = [raw for _, records in self._rows for raw in records]
        irregular = self.irregular.items()
        others = {row: record.headers for row, record in irregular if isinstance(record, Forward) and record.headers}
        headers = self._application | others
        incarnations, partitions = columns.incarnation.tolist(), columns.partition.tolist()
        made: dict[int, Output] = {}
        for first, end in runs(columns, np.array(seqnos), headers):
            payloads = [raw.value or b"" for raw in raws[first:end]]
            for begin, stop in parts(list(map(len, payloads)), headers.get(first, ())):
                count, at, last = stop - begin, first + begin, raws[first + stop - 1]
                if count > 1:
                    header = (
                        f"{VERSION} {MESSAGES} {incarnations[at]} {self._local_seqno[at]} {seqnos[at]} {state.epoch} "
                        f"{state.view} {columns.partitions[partitions[at]]}:{last.offset} {last.timestamp} - {count}"
                    )
                    own = HEADER, header.encode("ascii")
                    pack = last.key, encode_pack(payloads[begin:stop]), [own, *headers.get(at, ())]
                    made[at + count - 1] = topics.data, pack
                    seqnos[at : at + count] = repeat(0, count)
        return made

    def outputs(
        self,
        state: SequencerState,
        decisions: Decisions,
        seqnos: Sequence[int],
        topics: OutputTopics,
        packs: Mapping[int, Output],
    ) -> Iterator[Output]:
        """Yield the outputs, in the order of the rows. `state`: before the batch. `packs`: by their last rows."""
        reasons = {row: reason for reason, mask in decisions.dead.items() for row in np.flatnonzero(mask).tolist()}
        irregular, application, data, row = self.irregular, self._application, topics.data, -1
        counts, links = self._count, self._links
        cut = {row for row, taken in decisions.taken.items() if row not in irregular and taken < counts[row]}
        by_codec = cut.union(irregular)
        for place, records in self._rows:
            between = f"{state.epoch} {state.view} {place.topic}-{place.partition}:".encode("ascii")
            for raw in records:
                row += 1
                seqno = seqnos[row]
                if seqno and row not in by_codec:
                    begin, count, end = raw.headers[0][1], counts.get(row), b""
                    if count:
                        begin, end = begin.partition(b"-")[0], b" - %d" % count
                    elif row in links:
                        begin, _, link = begin.partition(_BEFORE_LINK)
                        end = b" " + link
                    header = b"%b %d %b%d %d%b" % (begin, seqno, between, raw.offset, raw.timestamp, end)
                    headers = [(HEADER, header), *application.get(row, ())]
                    yield data, (raw.key, raw.value, headers)  # type: ignore[misc]  # it has a value
                elif row in packs:
                    yield packs[row]
                elif row in by_codec or row in reasons:
                    source = Source(place.topic, place.partition, raw.offset)
                    if row in cut:
                        irregular[row] = decoded(source, raw)
                    output = self._irregular_output(state, seqno, row, source, reasons.get(row, ""), decisions)
                    if output is not None:
                        yield topics.encode(output, raw)

    def _irregular_output(
        self, state: SequencerState, seqno: int, row: int, source: Source, reason: str, decisions: Decisions
    ) -> Data | DeadLetter | None:
        record = self.irregular.get(row)
        if isinstance(record, Malformed):
            return DeadLetter(source, record.reason)
        if reason:
            return DeadLetter(source, reason)
        if not seqno or record is None:
            return None
        record = rest_of(record, decisions.taken.get(row, 1))
        kind, payload = decisions.controls.get(row, (record.kind, record.payload))
        return data_of(state, seqno, record, kind, payload)


def _highest_incarnation_of_all(records: Sequence[Read]) -> int:
    """Return the highest incarnation that all records may have; 0 if a payload is bad, to decode all one by one."""
    try:
        if max(len(raw.value) for raw in records) > MAX_PAYLOAD_BYTES:  # type: ignore[arg-type]  # null: TypeError
            return 0
    except TypeError:
        return 0
    return min(highest_incarnation(at_ms) for at_ms in {raw.timestamp for raw in records})


def _pack_numbers(text: bytes, value: bytes, most: int) -> tuple[int, int]:
    """Return the first local seqno of a pack, and how many messages it has; (0, 0) if it breaks a rule."""
    first, count = decode_local_seqnos(_PACK, text)
    return (0, 0) if first is None or count > most or fault(value, count) else (first, count)


def _link_columns(links: Mapping[int, Sequence[int]], size: int) -> LinkColumns | None:
    if not links:
        return None
    rows = np.full((size, len(_NO_LINK)), _NO_LINK, dtype=np.int64)
    rows[list(links)] = list(links.values())
    return LinkColumns(*rows.T)
