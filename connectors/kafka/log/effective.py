"""The effective records of DATA for readers: one by one, many messages in columns, or packs that are still whole.

Invariant. All forms of the same messages are equal as sequences of `Effective`: in each item and each slice, a slice in
the middle of a pack, too. A pack stays whole, or a slice of it, until somebody asks for a message or a column. So a
reader that wants neither pays for the pack, and not for each of its messages.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import operator
import struct
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, overload

from ordering.base.packs import size_of_pack
from ordering.base.records import MESSAGE, Headers, headers_bytes

WHOLE_FROM = 4
"""Packs stay whole if the records have so many messages on average. With fewer, taking them apart costs less."""


class Effective(NamedTuple):
    """A DATA record that was taken, or a message of a pack. `seqno` is the last one that it takes.

    Numbers missing in the header are 0.

    The sequencer's own records have no key, and so no sender. `forwarded_at_ms` is the broker's timestamp of the
    FORWARD record, `timestamp_ms` that of the DATA record, both in ms since the epoch.
    """

    seqno: int
    offset: int
    kind: str
    key: bytes | None
    incarnation: int
    local_seqno: int
    epoch: int
    view: int
    forwarded_at_ms: int
    headers: Headers
    """The application's headers, in their order."""
    value: bytes | None
    timestamp_ms: int

    @property
    def sender(self) -> str:
        """The sender's address, or ""."""
        return address_of(self.key)


@functools.lru_cache(maxsize=10_000)
def address_of(key: bytes | None) -> str:
    """Return the sender of DATA with that key, or "". Senders are few, and each comes often."""
    return (key or b"").decode("ascii")


class Pack(NamedTuple):
    """The messages of one record of DATA: all of a pack, or successive ones of it; or a message in no pack.

    `first` is the first of them, but with the value of the whole record. `lengths`: of their payloads, each as four
    bytes, as packs have them. `begin`, `end`: of their payloads in the value.
    """

    first: Effective
    lengths: bytes
    begin: int
    end: int

    @classmethod
    def of(cls, record: Effective, count: int) -> Pack:
        """Return a whole pack of `count` messages, which has no `fault`."""
        value = record.value or b""
        begin = size_of_pack(0, count)
        return cls(record, value[1:begin], begin, len(value))

    @classmethod
    def alone(cls, record: Effective) -> Pack:
        """Return a message in no pack."""
        length = len(record.value or b"")
        return cls(record, length.to_bytes(4, "big"), 0, length)

    @property
    def size(self) -> int:
        """Return how many messages these are."""
        return len(self.lengths) // 4

    @property
    def kind(self) -> str:
        """The kind of each message."""
        return MESSAGE

    @property
    def key(self) -> bytes | None:
        """The key of all."""
        return self.first.key

    @property
    def offset(self) -> int:
        """The offset of the record."""
        return self.first.offset

    @property
    def incarnation(self) -> int:
        """The incarnation of all."""
        return self.first.incarnation

    @property
    def payloads(self) -> list[bytes | None]:
        """Return the value of each message."""
        value, lengths = self.first.value, self.lengths
        if value is None:
            return [None]
        if self.size > 1 and lengths == lengths[:4] * self.size:  # often, and this takes a fifth of the time
            return list(struct.unpack_from(f"{int.from_bytes(lengths[:4], 'big')}s" * self.size, value, self.begin))
        ends = itertools.accumulate(_numbers_in(lengths), initial=self.begin)
        return [value[begin:end] for begin, end in itertools.pairwise(ends)]

    @property
    def content(self) -> memoryview:
        """Return all payloads, one directly after the other."""
        return memoryview(self.first.value or b"")[self.begin : self.end]

    def messages(self) -> Iterator[Effective]:
        """Return each message."""
        seqno, offset, kind, key, incarnation, local_seqno, *shared, _, timestamp_ms = self.first
        count, repeat = itertools.count, itertools.repeat
        same, others = map(repeat, (offset, kind, key, incarnation)), map(repeat, shared)
        columns = count(seqno), *same, count(local_seqno), *others, self.payloads, repeat(timestamp_ms)
        return map(effective, zip(*columns, strict=False))

    def part(self, begin: int, end: int) -> Pack:
        """Return the messages from the `begin`-th on to below the `end`-th, counted from 0."""
        if (begin, end) == (0, self.size):
            return self
        seqno, offset, kind, key, incarnation, local_seqno, *others = self.first
        moved = effective((seqno + begin, offset, kind, key, incarnation, local_seqno + begin, *others))
        taken = self.lengths[4 * begin : 4 * end]
        begins = self.begin + sum(_numbers_in(self.lengths[: 4 * begin]))
        return Pack(moved, taken, begins, self.end if end == self.size else begins + sum(_numbers_in(taken)))


class MessageColumns(NamedTuple):
    """The fields of `Effective` except the kind, as lists of one length."""

    seqno: list[int]
    offset: list[int]
    key: list[bytes | None]
    incarnation: list[int]
    local_seqno: list[int]
    epoch: list[int]
    view: list[int]
    forwarded_at_ms: list[int]
    headers: list[Headers]
    value: list[bytes | None]
    timestamp_ms: list[int]


_NOTHING = MessageColumns([], [], [], [], [], [], [], [], [], [], [])


def next_offsets(offsets: Sequence[int]) -> list[int]:
    """Return the offset to read on from behind each of some successive messages: inside of a pack, the pack's own."""
    return [offset + (offset != after) for offset, after in zip(offsets, [*offsets[1:], -1], strict=False)]


class Messages(Sequence[Effective]):
    """Effective records that are all messages; each is made on demand.

    Reading a field of all of them as a column costs a fraction. Lists of numbers and bytes also cost the garbage
    collector nothing, unlike a list of records.
    """

    __slots__ = ("_columns",)

    def __init__(self, columns: MessageColumns) -> None:
        self._columns: MessageColumns | None = columns

    @property
    def columns(self) -> MessageColumns:
        """Return the fields of all."""
        assert self._columns is not None
        return self._columns

    @classmethod
    def of(cls, records: Iterable[Effective]) -> Messages:
        """Return these records, which are all messages, at least one."""
        seqno, offset, _, *others = map(list, zip(*records, strict=True))
        columns: Any = (seqno, offset, *others)
        return cls(MessageColumns(*columns))

    @classmethod
    def joined(cls, parts: Iterable[Messages]) -> Messages:
        """Return the concatenation of the parts."""
        pieces: Iterable[tuple[list[Any], ...]] = zip(_NOTHING, *(part.columns for part in parts), strict=True)
        columns: Any = (list(itertools.chain.from_iterable(of_parts)) for of_parts in pieces)
        return cls(MessageColumns(*columns))

    def of_senders(self, keys: Container[bytes | None]) -> Iterable[Effective | Pack]:
        """Return the messages with these keys; a pack as a whole."""
        return self.at([index for index, key in enumerate(self.columns.key) if key in keys])

    @property
    def first(self) -> tuple[int, int]:
        """The seqno and the offset of the first message."""
        return self.columns.seqno[0], self.columns.offset[0]

    @property
    def last(self) -> tuple[int, int]:
        """The seqno and the offset of the last message."""
        return self.columns.seqno[-1], self.columns.offset[-1]

    def size_bytes(self) -> int:
        """Return the bytes of payloads and headers."""
        return sum(map(len, filter(None, self.columns.value))) + sum(
            map(headers_bytes, filter(None, self.columns.headers))
        )

    def __len__(self) -> int:
        return len(self.columns.seqno)

    def __iter__(self) -> Iterator[Effective]:
        return _made_of(self.columns)

    def at(self, indices: Sequence[int]) -> Iterator[Effective]:
        """Yield the records at these indices. Indexing one by one takes three times as long."""
        return _made_of([map(column.__getitem__, indices) for column in self.columns])

    @overload
    def __getitem__(self, index: int) -> Effective: ...

    @overload
    def __getitem__(self, index: slice) -> Messages: ...

    def __getitem__(self, index: int | slice) -> Effective | Messages:
        if not isinstance(index, slice):
            return next(self.at([index]))
        at: Any = (column[index] for column in self.columns)
        return Messages(MessageColumns(*at))


class PackedMessages(Messages):
    """Messages as packs, and messages in no pack between them. The columns are made when they are asked for."""

    __slots__ = ("_ends", "packs")

    def __init__(self, packs: list[Pack]) -> None:
        self._columns = None
        self.packs = packs
        self._ends = list(itertools.accumulate(pack.size for pack in packs))  # in messages

    @property
    def columns(self) -> MessageColumns:
        """Return the fields of all."""
        if self._columns is None:
            self._columns = _columns_of(self.packs, [*map(int.__sub__, self._ends, [0, *self._ends])])
        return self._columns

    def of_senders(self, keys: Container[bytes | None]) -> Iterable[Effective | Pack]:
        """Return the packs, and other messages, with these keys."""
        return [pack for pack in self.packs if pack.first.key in keys]

    @property
    def first(self) -> tuple[int, int]:
        """The seqno and the offset of the first message."""
        return self.packs[0].first[:2]

    @property
    def last(self) -> tuple[int, int]:
        """The seqno and the offset of the last message."""
        seqno, offset = self.packs[-1].first[:2]
        return seqno + self.packs[-1].size - 1, offset

    def size_bytes(self) -> int:
        """Return the bytes of the packs, and of the headers of each message."""
        with_headers = sum(pack.size * headers_bytes(pack.first.headers) for pack in self.packs if pack.first.headers)
        return with_headers + sum(len(pack.first.value or b"") for pack in self.packs)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Effective: ...

    @overload
    def __getitem__(self, index: slice) -> Messages: ...

    def __getitem__(self, index: int | slice) -> Effective | Messages:
        if isinstance(index, slice):
            begin, end, step = index.indices(len(self))
            return self._from_to(begin, max(begin, end)) if step == 1 else super().__getitem__(index)
        at = operator.index(index) + (len(self) if index < 0 else 0)
        if not 0 <= at < len(self):
            raise IndexError(index)
        number = bisect.bisect_right(self._ends, at)
        pack = self.packs[number]
        n = at - self._ends[number] + pack.size
        return next(pack.part(n, n + 1).messages())

    def _from_to(self, begin: int, end: int) -> PackedMessages:
        if begin == end:
            return PackedMessages([])
        first, last = bisect.bisect_right(self._ends, begin), bisect.bisect_left(self._ends, end)
        packs = self.packs[first : last + 1]
        before = self._ends[last] - packs[-1].size
        packs[-1] = packs[-1].part(0, end - before)
        begins = begin - (self._ends[first - 1] if first else 0)
        packs[0] = packs[0].part(begins, packs[0].size)
        return PackedMessages(packs)


def seqnos_of(records: Sequence[Effective]) -> tuple[int, int]:
    """Return the first and the last seqno of the records, at least one."""
    if isinstance(records, Messages):
        return records.first[0], records.last[0]
    return records[0].seqno, records[-1].seqno


def with_packs(records: Sequence[Effective | Pack], count: int, *, are_messages: bool) -> Sequence[Effective]:
    """Return packs and other records as a sequence of `count` records. `are_messages`: whether all are messages."""
    if are_messages and count >= WHOLE_FROM * len(records):
        return PackedMessages([each if isinstance(each, Pack) else Pack.alone(each) for each in records])
    apart: list[Effective] = []
    for each in records:
        apart += each.messages() if isinstance(each, Pack) else (each,)
    return Messages.of(apart) if are_messages else apart


def _columns_of(packs: Sequence[Pack], sizes: Sequence[int]) -> MessageColumns:
    """Return the fields of all messages. All steps but the cutting of payloads are C's."""
    if not packs:
        return Messages.joined([]).columns
    flat, repeat = itertools.chain.from_iterable, itertools.repeat
    seqnos, offsets, _, keys, incarnations, local_seqnos, *others = zip(*(pack.first for pack in packs), strict=True)
    *shared, _, timestamps = others

    def counted(firsts: Iterable[int]) -> list[int]:
        return list(flat(map(range, firsts, map(int.__add__, firsts, sizes))))

    def same(values: Iterable[Any]) -> list[Any]:
        return list(flat(map(repeat, values, sizes)))

    columns: Any = (
        counted(seqnos),
        *map(same, (offsets, keys, incarnations)),
        counted(local_seqnos),
        *map(same, shared),
        list(flat(pack.payloads for pack in packs)),
        same(timestamps),
    )
    return MessageColumns(*columns)


def _numbers_in(lengths: bytes) -> tuple[int, ...]:
    return struct.unpack(f">{len(lengths) // 4}I", lengths)


def _made_of(columns: Sequence[Iterable[Any]]) -> Iterator[Effective]:
    return map(effective, zip(*columns[:2], itertools.repeat(MESSAGE), *columns[2:], strict=False))


effective: Callable[[tuple[Any, ...]], Effective] = functools.partial(tuple.__new__, Effective)
"""Makes a record from a tuple of its fields. There are many records, and passing names takes longer."""
