"""Records of a log, independent of the client library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Record(Protocol):
    """A record of a log. `timestamp` is the broker's, in ms since the epoch."""

    @property
    def topic(self) -> str: ...  # noqa: D102
    @property
    def partition(self) -> int: ...  # noqa: D102
    @property
    def offset(self) -> int: ...  # noqa: D102
    @property
    def timestamp(self) -> int: ...  # noqa: D102
    @property
    def key(self) -> bytes | None: ...  # noqa: D102
    @property
    def value(self) -> bytes | None: ...  # noqa: D102
    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...  # noqa: D102


UNREAD_HEADER = "abcast-unread"
"""The only header, except a relay's mark, of a record that could be located but not read. It is bad input to all
codecs.
"""


class PlainRecord(NamedTuple):
    """A `Record` that abcast makes itself."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
