"""The effective records of DATA for readers: one by one, or many messages in columns."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, overload

from ordering.base.records import MESSAGE, Headers


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


def next_offsets(offsets: Sequence[int]) -> list[int]:
    """Return the offset to read on from behind each of some successive messages: inside of a pack, the pack's own."""
    return [offset + (offset != after) for offset, after in zip(offsets, [*offsets[1:], -1], strict=False)]


class Messages(Sequence[Effective]):
    """Effective records that are all messages; each is made on demand.

    Reading a field of all of them as a column costs a fraction. Lists of numbers and bytes also cost the garbage
    collector nothing, unlike a list of records.
    """

    __slots__ = ("columns",)

    def __init__(self, columns: MessageColumns) -> None:
        self.columns = columns

    @classmethod
    def of(cls, records: Iterable[Effective]) -> Messages:
        """Return these records, which are all messages, at least one."""
        seqno, offset, _, *others = map(list, zip(*records, strict=True))
        columns: Any = (seqno, offset, *others)
        return cls(MessageColumns(*columns))

    @classmethod
    def joined(cls, parts: Iterable[Messages]) -> Messages:
        """Return the concatenation of the parts."""
        pieces: Iterable[tuple[list[Any], ...]] = zip(*(part.columns for part in parts), strict=True)
        columns: Any = (list(itertools.chain.from_iterable(of_parts)) for of_parts in pieces)
        return cls(MessageColumns(*columns))

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


def _made_of(columns: Sequence[Iterable[Any]]) -> Iterator[Effective]:
    return map(effective, zip(*columns[:2], itertools.repeat(MESSAGE), *columns[2:], strict=False))


effective: Callable[[tuple[Any, ...]], Effective] = functools.partial(tuple.__new__, Effective)
"""Makes a record from a tuple of its fields. There are many records, and passing names takes longer."""
