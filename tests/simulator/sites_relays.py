"""A relay of one direction: `connectors.relay.mesh.MeshData` and `connectors.relay.presence`, as a process that may die
anywhere.

What decides anything is the product's: `find_session_start`, `link_start`, `carry`, `Sites.carries`. The ledger's form
of a session (`connectors.relay.bootstrap`) is here, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from connectors.kafka.connection.sites import Direction, Sites
from connectors.relay.link_start import SessionStart, find_session_start, is_ordered, ledger_start, link_start
from ordering.base.errors import HistoryUnavailable
from ordering.base.names import relay_of
from ordering.base.records import HEARTBEAT, LEAVE, LINK_START, MESSAGE, REMOTE_VIEW
from ordering.sequencer import links
from ordering.sequencer.links import CarriedRecord, covers, origin_of
from tests.simulator.sites_broker import SiteBroker, SiteLog

MOST_REPEATED = 4
"""Records that a producer's retry repeats, at most."""


class Relay:
    """A process. `advance` does one step; None says that it has ended."""

    def __init__(self, here: SiteBroker, there: SiteBroker, sites: Sites, *, blind: bool = False) -> None:
        self.here, self.there, self.sites = here, there, sites
        self.direction = Direction(here.site, there.site)
        self.place = there.relayed(here.site)
        self.blind = blind
        """Whether it begins at the end of DATA, whatever the neighbour's rows say: a relay with a fault."""
        self.position = 0
        self.session = -1
        self.looked_at: int | None = None
        self.now_ms = 0
        self.lacks_history = False
        self._life = self._run()

    def advance(self, now_ms: int) -> str | None:
        self.now_ms = now_ms
        return next(self._life, None)

    def carries(self, origin: str) -> bool:
        return self.sites.carries(self.direction, origin)

    @property
    def is_done(self) -> bool:
        """Whether there is nothing more to carry."""
        return self.session >= 0 and self.position >= len(self.here.data)

    def _run(self) -> Iterator[str]:
        try:
            beginning = self._begin()
        except HistoryUnavailable:
            self.lacks_history = True
            return
        yield "looked"
        start = link_start(beginning.state, self.direction.source, self.carries)
        session = self._say(LINK_START, payload=start.to_json())
        yield "began"
        state = beginning.state
        if state.view:
            members = json.dumps({"members": state.membership.members}).encode("ascii")
            self._say(REMOTE_VIEW, state.epoch, state.view, members)
        self.session, self.position = session, beginning.offset
        yield "told the view"
        while True:
            if self.position < self.here.beginning:
                return  # failOnDataLoss
            if self.position < len(self.here.data):
                self._carry(self.position)
                self.position += 1
                yield "carried"
            else:
                yield "idle"

    def _begin(self) -> SessionStart:
        here, there = SiteLog(self.here), SiteLog(self.there)
        if self.blind:
            return SessionStart(here.end(), here.state())
        return find_session_start(here, there.state().origins, self.carries)

    def could_begin(self) -> bool:
        """Whether DATA has all that the neighbour lacks, behind some place with a known state."""
        here, rows = SiteLog(self.here), SiteLog(self.there).state().origins
        for offset in range(self.here.beginning, len(self.here.data) + 1):
            try:
                state = here.state(offset)
            except HistoryUnavailable:
                continue
            return covers(rows, link_start(state, self.direction.source, self.carries).origins)
        return False

    def _carry(self, offset: int) -> None:
        for said in links.carry_each(self.here.data[offset], self.direction.source, self.session, self.carries):
            write(self.there, self.place, said, self.now_ms)

    def repeat(self, count: int) -> None:
        """The producer did not get an answer, and writes its last records again."""
        if self.session >= 0:
            for offset in range(max(self.here.beginning, self.position - count), self.position):
                if offset >= self.position - MOST_REPEATED:
                    self._carry(offset)

    def beat(self, now_ms: int, kind: str = HEARTBEAT) -> None:
        self.now_ms = now_ms
        if self.session >= 0:
            self._say(kind)

    def farewell(self, now_ms: int) -> None:
        self.beat(now_ms, LEAVE)

    def look(self) -> bool:
        """Whether the copies of the last look count; if not, a session begins anew."""
        if self.looked_at is not None:
            try:
                there, carried = SiteLog(self.there).state(), SiteLog(self.here).state(self.looked_at)
            except HistoryUnavailable:
                return True
            if not is_ordered(carried, there, self.direction.source, self.carries):
                self._life, self.session, self.looked_at = self._run(), -1, None
                return False
        self.looked_at = self.position if self.session >= 0 else None
        return True

    def _say(self, kind: str, incarnation: int = 1, local_seqno: int = 1, payload: bytes = b"") -> int:
        sender = relay_of(self.direction.source)
        return self.there.append(
            self.place, sender, incarnation, local_seqno, payload=payload, kind=kind, at_ms=self.now_ms
        )


def from_ledger(here: SiteBroker, there: SiteBroker, sites: Sites, now_ms: int, last_seqno: int | None = None) -> None:
    """`abcast site add --ledger`: a session of what the ledger of `here` has, up to `last_seqno`."""
    direction = Direction(here.site, there.site)

    def carries(origin: str) -> bool:
        return sites.carries(direction, origin)

    rows = [row for row in here.rows() if last_seqno is None or row.seqno <= last_seqno]
    numbers = [
        (origin_of(row.sender), row.seqno, row.seqno if row.link is None else row.link.origin_seqno)
        for row in rows
        if row.kind == MESSAGE
    ]
    start = ledger_start(numbers, SiteLog(there).state().origins, carries)
    relay, place = relay_of(direction.source), there.relayed(direction.source)
    session = there.append(place, relay, 1, 1, payload=start.to_json(), kind=LINK_START, at_ms=now_ms)
    for row in rows[start.seqno :]:
        write(there, place, links.carry(row, direction.source, session, carries), now_ms)


def write(there: SiteBroker, place: int, said: CarriedRecord | None, now_ms: int) -> None:
    """Append what a link says of a record (None: a mutation says nothing)."""
    if said is not None:
        there.append(
            place,
            said.sender,
            said.incarnation,
            said.local_seqno,
            payload=said.payload,
            kind=said.kind,
            at_ms=now_ms,
            link=said.link,
        )
