"""The effective records of DATA as a reader has them: one by one, or many messages by columns."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, overload

from ordering.base.records import MESSAGE, Headers


class Effective(NamedTuple):
    """A DATA record that was taken; `seqno` is the last of its numbers. Numbers are 0 where its header has none.

    What the sequencer decided by itself has no key, and so no sender. `forwarded_at_ms`: when the broker had the
    FORWARD record that it was made from; `timestamp_ms`: when it had this one. Both in ms since the epoch.
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
    """Those that are not abcast's own, in their order."""
    value: bytes | None
    timestamp_ms: int

    @property
    def sender(self) -> str:
        """The sender's address, or nothing."""
        return address_of(self.key)


@functools.lru_cache(maxsize=10_000)
def address_of(key: bytes | None) -> str:
    """The sender of DATA with that key, or nothing. There are few of them, and each comes often."""
    return (key or b"").decode("ascii")


class MessageColumns(NamedTuple):
    """The fields of `Effective` but its kind, a list each, all of one length."""

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


class Messages(Sequence[Effective]):
    """Effective records that are all messages: each is made when it is asked for.

    Who wants a field of all of them has it as a column, which costs a fraction. Lists of numbers and bytes are also no
    work for the garbage collector, while a window of records is.
    """

    __slots__ = ("columns",)

    def __init__(self, columns: MessageColumns) -> None:
        self.columns = columns

    @classmethod
    def joined(cls, parts: Iterable[Messages]) -> Messages:
        """All of them, one after the other."""
        pieces: Iterable[tuple[list[Any], ...]] = zip(*(part.columns for part in parts), strict=True)
        columns: Any = (list(itertools.chain.from_iterable(of_parts)) for of_parts in pieces)
        return cls(MessageColumns(*columns))

    def __len__(self) -> int:
        return len(self.columns.seqno)

    def __iter__(self) -> Iterator[Effective]:
        return _made_of(self.columns)

    def at(self, indices: Sequence[int]) -> Iterator[Effective]:
        """Those of them. To ask for one after the other takes three times as long."""
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
"""Of all its fields: there are many of them, and to pass each by its name takes longer."""
