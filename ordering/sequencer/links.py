"""Links between the sites of a mesh, by which a site orders every message of its neighbours once.

Source: RELAY (docs/sources.md). A relay that starts asks the other side how far it is.

A relay copies the DATA of one site into a topic of its neighbour, in *sessions* that each begin with a `link-start`.
The neighbour's sequencer keeps a *link row* (session, epoch, seqno) for each neighbour and an *origin row* for each
site: the seqno there of its last message that was ordered here.

Invariant. If the row of origin O is t, this site has ordered exactly the effective messages of O's own members up to t,
each once and in their order. A crash keeps it: a DATA record that came by a link carries the link's header, so `absorb`
restores both rows. Records read again repeat a run, which is recognised and dropped.
docs/protocols/links.md has the picture and the proof.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ordering.base.canonical import UNREADABLE, canonical_json
from ordering.base.kinds import ACROSS
from ordering.base.names import Topic, relay_of
from ordering.base.packs import unpacked
from ordering.base.reader import Reader, Verdict
from ordering.base.records import (
    EPOCH,
    LINK_START,
    MAX_NUMBER,
    MESSAGE,
    SKIP,
    Data,
    Forward,
    Link,
    Source,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Mask = NDArray[np.bool_]


class LinkRow(NamedTuple):
    """The place up to which a neighbour's DATA was read: the session, and the state of the reading rule."""

    session: int
    epoch: int
    seqno: int


class LinkStart(NamedTuple):
    """The start of a session in the DATA of its site: after `seqno`, in `epoch`.

    `origins` has, for each origin that the session carries, the last of its seqnos that was ordered there by then.
    """

    epoch: int
    seqno: int
    origins: Mapping[str, int]

    def to_json(self) -> bytes:
        """Return the payload of a `link-start`."""
        return canonical_json(self._asdict())

    @classmethod
    def from_json(cls, raw: bytes) -> LinkStart | None:
        """Return the inverse of `to_json`, or None for any other payload."""
        try:
            body = json.loads(raw)
            start = cls(body["epoch"], body["seqno"], dict(body["origins"]))
        except UNREADABLE:
            return None
        numbers = (start.epoch, start.seqno, *start.origins.values())
        return start if all(type(number) is int and 0 <= number <= MAX_NUMBER for number in numbers) else None


class LinkTable:
    """Both tables during a `step`: copies of the state's `rows` and `origins`."""

    def __init__(self, rows: Mapping[str, LinkRow], origins: Mapping[str, int]) -> None:
        self.rows = dict(rows)
        self.origins = dict(origins)

    def take(self, record: Forward) -> bool:
        """Whether to order a record that a link has brought: a new message, or a view. Updates the tables."""
        if record.kind == LINK_START:
            self._begin(record)
        neighbour, link = neighbour_of(record.source.topic), record.link
        row = self.rows.get(neighbour)
        if row is None or link is None or row.session != link.session:
            return False
        reader = Reader(row.epoch, row.seqno)
        verdict = reader.accept(record.kind if link.seqno else EPOCH, link.epoch, link.seqno)
        self.rows[neighbour] = LinkRow(row.session, reader.epoch, reader.last_seqno)
        if verdict is not Verdict.TAKE or record.kind == SKIP:
            return False
        if record.kind != MESSAGE:
            return True
        origin = origin_of(record.sender)
        if link.origin_seqno <= self.origins.get(origin, 0):
            return False
        self.origins[origin] = link.origin_seqno
        return True

    def follow(self, source: Source, expected: int) -> None:
        """End the link's session if the next record of its partition is behind `expected`, the offset that follows."""
        if source.offset > expected:
            self.lose(source.topic)

    def lose(self, topic: str) -> None:
        """End the session of the link that fills `topic`, if one does: retention has dropped unread records there."""
        self.rows.pop(neighbour_of(topic), None)

    def _begin(self, record: Forward) -> None:
        start = LinkStart.from_json(record.payload)
        if start is not None and covers(self.origins, start.origins):
            self.rows[neighbour_of(record.source.topic)] = LinkRow(record.source.offset, start.epoch, start.seqno)

    def take_columns(
        self, neighbour: str, link: LinkColumns, origins: Collection[str], origin: Ints, is_message: Mask
    ) -> Mask:
        """Apply `take` to all rows of one link, in log order, and return the mask of the messages that are new here.

        `origin` indexes `origins`, the distinct sites of the senders.
        """
        import numpy as np  # here, as in `Reader.accept_columns`

        new = np.zeros(len(link.seqno), np.bool_)
        row = self.rows.get(neighbour)
        if row is None:
            return new
        current = np.flatnonzero(link.session == row.session)
        reader = Reader(row.epoch, row.seqno)
        taken = reader.accept_columns(link.seqno[current] == 0, link.epoch[current], link.seqno[current])
        self.rows[neighbour] = LinkRow(row.session, reader.epoch, reader.last_seqno)
        messages = current[taken & is_message[current]]
        for code, name in enumerate(origins):
            of_origin = messages[origin[messages] == code]
            if len(of_origin):
                numbers = link.origin_seqno[of_origin]
                before = np.maximum.accumulate(np.append(self.origins.get(name, 0), numbers))
                new[of_origin[numbers > before[:-1]]] = True
                if before[-1]:
                    self.origins[name] = int(before[-1])
        return new

    def note(self, record: Data) -> None:
        """Update both tables from an effective DATA record that a link has brought."""
        assert record.link is not None
        assert record.source is not None
        link = record.link
        self.rows[neighbour_of(record.source.topic)] = LinkRow(link.session, link.epoch, link.seqno)
        if record.kind == MESSAGE:
            origin = origin_of(record.sender)
            self.origins[origin] = max(self.origins.get(origin, 0), link.origin_seqno)


class LinkColumns(NamedTuple):
    """The link headers of some rows, one element a row. `session` is -1 where no link has brought the row."""

    session: Ints
    epoch: Ints
    seqno: Ints
    origin_seqno: Ints

    def rows(self, index: NDArray[np.intp]) -> LinkColumns:
        """Return the rows at `index`."""
        return LinkColumns(*(column[index] for column in self))


def covers(rows: Mapping[str, int], origins: Mapping[str, int]) -> bool:
    """Whether the origin rows reach at least these seqnos, for each of the origins."""
    return all(rows.get(origin, 0) >= seqno for origin, seqno in origins.items())


def origin_of(sender: str) -> str:
    """Return the site of a message's sender."""
    return sender.partition("/")[0]


@functools.lru_cache(maxsize=1024)
def neighbour_of(topic: str) -> str:
    """Return the neighbour whose relay fills a topic; "" if no relay does."""
    parsed = Topic.parse(topic)
    return parsed.neighbour if parsed is not None else ""


class CarriedRecord(NamedTuple):
    """The FORWARD record that a relay writes for one DATA record."""

    kind: str
    sender: str
    incarnation: int
    local_seqno: int
    payload: bytes
    link: Link


def carry_each(record: Data, source: str, session: int, carries: Callable[[str], bool]) -> list[CarriedRecord]:
    """Return the record of `carry` for each seqno that a record takes: each message of a pack crosses a link alone.

    Of a kind of a later version, each is a skip. `connectors.relay.spark.columns` has the same as Spark columns.
    """
    return [
        carry(replace(each, seqno=number), source, session, carries)
        for each in unpacked(record)
        for number in range(each.seqno, each.seqno + each.count)
    ]


def carry(record: Data, source: str, session: int, carries: Callable[[str], bool]) -> CarriedRecord:
    """Return the relay's copy of a DATA record of site `source`. `carries`: whether it copies an origin's messages."""
    origin = origin_of(record.sender)
    has_number = record.link is not None or origin == source  # a record without a link has no origin seqno
    if record.kind == MESSAGE and has_number and carries(origin):
        origin_seqno = record.seqno if record.link is None else record.link.origin_seqno
        link = Link(session, record.epoch, record.seqno, origin_seqno)
        return CarriedRecord(MESSAGE, record.sender, record.incarnation, record.local_seqno, record.payload, link)
    link = Link(session, record.epoch, record.seqno, 0)
    if record.kind in ACROSS:
        said, payload = ACROSS[record.kind], _members_of(record.payload)
        return CarriedRecord(said, relay_of(source), record.epoch, record.view, payload, link)
    return CarriedRecord(SKIP, relay_of(source), 1, 1, b"", link)


def _members_of(view: bytes) -> bytes:
    """Return the payload of a view with its members alone.

    DATA takes longer payloads than FORWARD, and a view that names many joiners twice may have one. If the neighbour
    refused it, it would take nothing of the session behind it. A payload that is no view stays as it is.
    """
    try:
        return canonical_json({"members": json.loads(view)["members"]})
    except UNREADABLE:
        return view
