"""Links between the sites of a mesh: how a site takes over what its neighbours have ordered, and can't lose any of it.

Source: RELAY (docs/sources.md). A relay that starts asks the other side what that has.

Each site orders by itself. The messages of its own members are its *own* ones; it is their *origin*, and their seqnos
there number them. A relay carries the DATA of one site into a topic of its neighbour. It decides nothing and keeps
nothing: it says of each record where it stands, and the neighbour's sequencer judges.

A relay carries in *sessions*. A session begins with a `link-start`, whose offset in the neighbour's topic is the
session's name, so no two have the same. It says where in the DATA of its site the session begins, and how far each
origin was known there. Then come all the records from there on, in their order: messages that the neighbour is to have,
views, and a `skip` without a payload for everything else.

The neighbour keeps two tables:

* a *link row* for each neighbour: the session in force, and the reading rule's state (epoch, seqno) of its DATA;
* an *origin row* for each origin: the seqno there of its last message that was ordered here.

Invariant. If the row of origin O is t, the site has ordered exactly the own messages of O up to t that are effective
there, each once and in their order. By induction over the site's log:

* A `link-start` is accepted only if every origin that the session carries was known at its beginning no further than
  the origin's row. What follows it is an unbroken run of the neighbour's DATA, and `Reader` takes its effective
  records. It takes no record that a fenced sequencer left behind a seal, and no record behind a hole that an
  interrupted write left. Where retention has made a hole in the topic, the session is over: a seal may be in the hole.
* So a message (O, t) that `Reader` takes comes after all the messages of O that the neighbour had ordered before: those
  before the session's beginning, which the row counts, and those in the run, which were judged before it. If t is above
  the row it is the next one of O. If not, it has been ordered, and is dropped.

What is dropped before it is ordered is sent again: a relay that starts begins where the rows of the neighbour say
(`connectors.relay.link_start`), whichever links have brought these rows so far. So links may be added and removed, and
relays may be killed and doubled (the later session replaces the earlier one). What one link fails to bring, another
may.

A crash keeps it. Each DATA record that came by a link carries what the link said of it, so `absorb` knows both rows as
of that record, and what came after it in the topic is read again. Records read again repeat a run. A `link-start` among
them moves the link row back to its beginning, and the run that follows is recognised and dropped.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ordering.base.canonical import canonical_json
from ordering.base.names import Topic, relay_of
from ordering.base.reader import Reader, Verdict
from ordering.base.records import (
    EPOCH,
    LINK_START,
    MAX_NUMBER,
    MESSAGE,
    REMOTE_VIEW,
    SKIP,
    VIEW,
    Data,
    Forward,
    Link,
    Source,
)

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


class LinkRow(NamedTuple):
    """How far the DATA of a neighbour was read: in which session, and the state of the reading rule."""

    session: int
    epoch: int
    seqno: int


class LinkStart(NamedTuple):
    """Where a session begins in the DATA of its site: after `seqno`, in `epoch`.

    `origins` has the last seqno of each origin that the session carries and that was known there.
    """

    epoch: int
    seqno: int
    origins: Mapping[str, int]

    def to_json(self) -> bytes:
        """As the payload of a `link-start`."""
        return canonical_json(self._asdict())

    @classmethod
    def from_json(cls, raw: bytes) -> LinkStart | None:
        """Inverse of `to_json`; None for anything else."""
        try:
            body = json.loads(raw)
            start = cls(body["epoch"], body["seqno"], dict(body["origins"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        numbers = (start.epoch, start.seqno, *start.origins.values())
        return start if all(type(number) is int and 0 <= number <= MAX_NUMBER for number in numbers) else None


class LinkTable:
    """Both tables in the course of a `step`. `rows` and `origins` are those of the state, and are not changed."""

    def __init__(self, rows: Mapping[str, LinkRow], origins: Mapping[str, int]) -> None:
        self.rows = dict(rows)
        self.origins = dict(origins)

    def take(self, record: Forward) -> bool:
        """Whether a record that a link has brought is to be ordered here: a message that is new, or a view."""
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
        """The next record of a partition, of which everything below the offset `expected` has been considered."""
        if source.offset > expected:
            self.lose(source.topic)

    def lose(self, topic: str) -> None:
        """Retention has dropped records of a topic before they were read: if a link fills it, its run is broken."""
        self.rows.pop(neighbour_of(topic), None)

    def _begin(self, record: Forward) -> None:
        start = LinkStart.from_json(record.payload)
        if start is not None and covers(self.origins, start.origins):
            self.rows[neighbour_of(record.source.topic)] = LinkRow(record.source.offset, start.epoch, start.seqno)

    def take_columns(
        self, neighbour: str, link: LinkColumns, origins: Collection[str], origin: Ints, is_message: Mask
    ) -> Mask:
        """`take` on all rows that one link has brought, in log order: the mask of the messages that are new here.

        `origin` indexes `origins`, the distinct sites of the senders.
        """
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
        """An effective DATA record that a link has brought: what it says of the two rows."""
        assert record.link is not None
        assert record.source is not None
        link = record.link
        self.rows[neighbour_of(record.source.topic)] = LinkRow(link.session, link.epoch, link.seqno)
        if record.kind == MESSAGE:
            origin = origin_of(record.sender)
            self.origins[origin] = max(self.origins.get(origin, 0), link.origin_seqno)


class LinkColumns(NamedTuple):
    """What links say of some rows, one element a row. `session` is -1 where no link has brought the row."""

    session: Ints
    epoch: Ints
    seqno: Ints
    origin_seqno: Ints

    def rows(self, index: NDArray[np.intp]) -> LinkColumns:
        """Some of them."""
        return LinkColumns(*(column[index] for column in self))


def covers(rows: Mapping[str, int], origins: Mapping[str, int]) -> bool:
    """Whether everything of these origins up to these seqnos is known by the rows."""
    return all(rows.get(origin, 0) >= seqno for origin, seqno in origins.items())


def origin_of(sender: str) -> str:
    """The site that a message comes from."""
    return sender.partition("/")[0]


@functools.lru_cache(maxsize=1024)
def neighbour_of(topic: str) -> str:
    """The neighbour whose relay fills a topic; "" if no relay does."""
    parsed = Topic.parse(topic)
    return parsed.neighbour if parsed is not None else ""


class CarriedRecord(NamedTuple):
    """What a relay writes for one DATA record, as FORWARD."""

    kind: str
    sender: str
    incarnation: int
    local_seqno: int
    payload: bytes
    link: Link


def carry_each(record: Data, source: str, session: int, carries: Callable[[str], bool]) -> list[CarriedRecord]:
    """Return what `carry` does, and a skip for each further number of a kind that only a later version knows.

    `connectors.relay.columns` has the same as Spark columns.
    """
    numbers = range(record.seqno, record.seqno + record.count)
    return [carry(replace(record, seqno=number), source, session, carries) for number in numbers]


def carry(record: Data, source: str, session: int, carries: Callable[[str], bool]) -> CarriedRecord:
    """What the relay from `source` says of a DATA record there. `carries`: whether it carries messages of an origin."""
    origin = origin_of(record.sender)
    has_number = record.link is not None or origin == source  # else it came without a link, and has none there
    if record.kind == MESSAGE and has_number and carries(origin):
        origin_seqno = record.seqno if record.link is None else record.link.origin_seqno
        link = Link(session, record.epoch, record.seqno, origin_seqno)
        return CarriedRecord(MESSAGE, record.sender, record.incarnation, record.local_seqno, record.payload, link)
    link = Link(session, record.epoch, record.seqno, 0)
    if record.kind == VIEW:
        return CarriedRecord(REMOTE_VIEW, relay_of(source), record.epoch, record.view, record.payload, link)
    return CarriedRecord(SKIP, relay_of(source), 1, 1, b"", link)
