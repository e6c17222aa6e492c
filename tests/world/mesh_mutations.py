"""Mutations of the links: each breaks a rule on purpose, and the mesh must name the violation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.log.data_log import DataLog
from connectors.relay.link_start import SessionStart
from connectors.relay.relay import Relay
from ordering.base.packs import unpacked
from ordering.base.reader import Reader, Verdict
from ordering.base.records import MESSAGE, SKIP, Data, Forward
from ordering.checker.anomalies import DUPLICATE, LOST
from ordering.sequencer import links
from ordering.sequencer.links import CarriedRecord, LinkRow, LinkTable, carry, neighbour_of, origin_of
from tests.simulator.mutation import Mutation
from tests.world.group_readers import EpochBlindReader
from tests.world.mesh_actions import CIRCLE, STUCK, UNKNOWN_MESSAGE, WRONG_STATE
from tests.world.mesh_history import BUSY, LATER, TALK
from tests.world.mesh_links import at_the_end


def one_skip(record: Data, *where: Any) -> list[CarriedRecord]:
    """Carry a record of several seqnos as one of a single seqno."""
    return [carry(record, *where)]


def first_only(record: Data, *where: Any) -> list[CarriedRecord]:
    """Carry a pack as its first message."""
    return [carry(next(unpacked(record)), *where)]


def any_start(_rows: Mapping[str, int], _origins: Mapping[str, int]) -> bool:
    """Every `link-start` is accepted."""
    return True


def take_of_any_session(table: LinkTable, record: Forward) -> bool:
    """Count a link's records of any session."""
    row = table.rows.get(neighbour_of(record.source.topic))
    if row is not None and record.link is not None:
        record = replace(record, link=record.link._replace(session=row.session))
    return TAKE(table, record)


def take_without_reading(table: LinkTable, record: Forward) -> bool:
    """Take every message above its origin's row, without the reading rule."""
    link, origin = record.link, origin_of(record.sender)
    if link is None or record.kind == SKIP:
        return TAKE(table, record)
    if record.kind != MESSAGE:
        return True
    is_new = link.origin_seqno > table.origins.get(origin, 0)
    table.origins[origin] = max(table.origins.get(origin, 0), link.origin_seqno)
    return is_new


def take_what_is_known(table: LinkTable, record: Forward) -> bool:
    """Take a message without comparing it with its origin's row."""
    if record.link is not None and record.kind == MESSAGE:
        table.origins.pop(origin_of(record.sender), None)
    return TAKE(table, record)


def beginning_of_data(here: DataLog, _end: int) -> SessionStart | None:
    """Try the beginning of DATA last, where the state is unknown."""
    return SessionStart(0, here.state(0)) if here.beginning() == 0 else None


def begin_at_the_end_and_lie(
    here: DataLog, _origins: Mapping[str, int], _carries: Callable[[str], bool]
) -> SessionStart:
    """Begin at the end of DATA with a state that has no origins."""
    return SessionStart(here.end(), replace(here.state(), origins={}, own_seqno=0))


def carry_with_own_seqno(record: Data, source: str, session: int, carries: Callable[[str], bool]) -> CarriedRecord:
    """The seqno at the origin is that at the relay's site."""
    link = record.link._replace(origin_seqno=record.seqno) if record.link is not None else None
    return carry(replace(record, link=link), source, session, carries)


def no_skips(*of: Any) -> list[CarriedRecord]:
    """Only messages and views are carried."""
    return [said for said in CARRY_EACH(*of) if said.kind != SKIP]


def note_nothing(_table: LinkTable, _record: Data) -> None:
    """Note nothing: a successor forgets the links' records since the last snapshot."""


def note_no_origin(table: LinkTable, record: Data) -> None:
    """Note the session only."""
    assert record.link is not None
    assert record.source is not None
    table.rows[neighbour_of(record.source.topic)] = LinkRow(record.link.session, record.link.epoch, record.link.seqno)


def known_sites_only(sites: Sites, direction: Direction, origin: str) -> bool:
    """A message of a site that the file does not know goes nowhere."""
    return origin != direction.target and sites.next_hop(direction.target, origin) == direction.source


def no_site(_relay: Relay, _found: Any = ()) -> set[str]:
    """The target's Kafka has no site."""
    return set()


class GreedyLinkReader(Reader):
    """Takes records behind a hole."""

    def accept(self, kind: str, epoch: int, seqno: int, count: int = 1) -> Verdict:
        verdict = super().accept(kind, epoch, seqno, count)
        if verdict is Verdict.AHEAD:
            self.last_seqno = seqno
            return Verdict.TAKE
        return verdict


TAKE, CARRY_EACH = LinkTable.take, links.carry_each
_TAKE, _NOTE = "ordering.sequencer.links.LinkTable.take", "ordering.sequencer.links.LinkTable.note"
_CARRY, _CARRY_EACH = "ordering.sequencer.links.carry", "ordering.sequencer.links.carry_each"
_READER, _BEGIN = "ordering.sequencer.links.Reader", "connectors.relay.mesh.find_session_start"
_CARRIES = "connectors.kafka.connection.sites.Sites.carries"
MUTATIONS = (
    Mutation(
        "any-start",
        "The sequencer accepts every link-start",
        LOST,
        (("ordering.sequencer.links.covers", any_start),),
    ),
    Mutation(
        "any-session",
        "The sequencer counts a link's records of any session",
        LOST,
        ((_TAKE, take_of_any_session),),
        needs=(BUSY,),
    ),
    Mutation(
        "no-reading-rule",
        "The sequencer takes every record above its origin's row, behind holes and seals, too",
        LOST,
        ((_TAKE, take_without_reading),),
    ),
    Mutation(
        "no-origin-row",
        "The sequencer takes a message again that its origin's row has",
        DUPLICATE,
        ((_TAKE, take_what_is_known),),
    ),
    Mutation(
        "begin-at-the-end",
        "A relay begins at the end of DATA, wherever the neighbour's rows are",
        LOST,
        ((_BEGIN, at_the_end),),
    ),
    Mutation(
        "begin-with-a-lie",
        "A relay begins at the end of DATA, and its link-start says that nothing is missing",
        LOST,
        ((_BEGIN, begin_at_the_end_and_lie),),
    ),
    Mutation(
        "one-skip",
        "A relay writes one skip for a record of a later kind that takes several seqnos",
        LOST,
        ((_CARRY_EACH, one_skip),),
        needs=(LATER,),
    ),
    Mutation(
        "pack-as-its-first",
        "A relay carries only the first message of a pack",
        LOST,
        ((_CARRY_EACH, first_only),),
        needs=("packs",),
    ),
    Mutation(
        "no-skips",
        "A relay writes no skip for a record that is no message",
        LOST,
        ((_CARRY_EACH, no_skips),),
    ),
    Mutation(
        "epoch-ignored",
        "The sequencer takes a link's records from behind a seal",
        UNKNOWN_MESSAGE,
        ((_READER, EpochBlindReader),),
    ),
    Mutation(
        "ahead",
        "The sequencer takes a link's records from behind a hole",
        LOST,
        ((_READER, GreedyLinkReader),),
    ),
    Mutation(
        "rows-forgotten", "A successor forgets the rows of links and origins", WRONG_STATE, ((_NOTE, note_nothing),)
    ),
    Mutation("origins-forgotten", "A successor forgets the rows of origins", WRONG_STATE, ((_NOTE, note_no_origin),)),
    Mutation(
        "wrong-origin-seqno",
        "A relay carries its own site's seqno in place of the origin's",
        UNKNOWN_MESSAGE,
        ((_CARRY, carry_with_own_seqno),),
    ),
    Mutation(
        "known-sites-only",
        "A relay drops messages of an origin that its sites' file lacks",
        LOST,
        ((_CARRIES, known_sites_only),),
    ),
    Mutation(
        "beginning-only",
        "A relay does not look for the oldest snapshot",
        STUCK,
        (("connectors.relay.link_start._oldest", beginning_of_data),),
    ),
    Mutation(
        "carried-back",
        "A relay carries a letter or a cast back to a Kafka where it has been",
        CIRCLE,
        (("connectors.relay.relay.Relay.in_kafka_of_target", no_site),),
        needs=(TALK,),
    ),
)
