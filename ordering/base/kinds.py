"""The table of record kinds: one row for each kind, and the groups of kinds that other parts treat alike.

A part that judges, writes, carries or reads records by their kind takes the group from here. So a new kind is a row
here, and code for its effect only. `tests/ordering/base/test_kinds.py` adds rows and sees that all parts follow them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, Flag, IntEnum, auto

from ordering.base import records
from ordering.base.names import ADMIN_NAME, TICK_NAME


class Way(Enum):
    """The topic of a kind, the rule that judges it, and whether it takes a seqno."""

    NEXT = auto()  # FORWARD, taken if its local seqno is the sender's next one; a seqno in DATA
    NEWER = auto()  # FORWARD, taken if incarnation and local seqno are above the sender's last ones; a seqno in DATA
    HEARD = auto()  # FORWARD, only heard: the time passes, and its sender lives
    OF_LINK = auto()  # FORWARD, for the row of its link only (`ordering.sequencer.links`)
    DECIDED = auto()  # DATA only, with a seqno
    BESIDE = auto()  # DATA only, without a seqno: sequencers and sites read it, all other readers pass over it
    LETTER = auto()  # an inbox


class WrittenBy(Flag):
    """The writers of a kind."""

    CLIENT = auto()
    RELAY = auto()  # about itself or its site
    TICK = auto()  # the sequencer's job, into FORWARD
    ADMIN = auto()  # an operator's command
    SEQUENCER = auto()  # by itself, into DATA


class Rank(IntEnum):
    """The least that the group must know of a sender. A message needs it in a closed group only."""

    STRANGER = auto()
    JOINER = auto()
    MEMBER = auto()


class Linked(Enum):
    """The presence of LINK."""

    NEVER = auto()
    MAYBE = auto()
    ALWAYS = auto()


@dataclass(frozen=True)
class Kind:
    """A row of the table.

    `needs`: of its sender, see `Rank`. `across`: the kind that a relay of a mesh makes of its DATA at the
    neighbour; a message that the link carries stays one. `in_columns`: decided by columns, without its payload; all
    other kinds of FORWARD are decided row by row. `takes_several`: a record of DATA may take several seqnos. `watches`:
    it may change whether the group has members to watch.
    """

    name: str
    way: Way
    writers: WrittenBy
    needs: Rank = Rank.STRANGER
    linked: Linked = Linked.NEVER
    across: str = records.SKIP
    in_columns: bool = False
    takes_several: bool = False
    watches: bool = False


_CLIENT, _RELAY, _SEQUENCER = WrittenBy.CLIENT, WrittenBy.RELAY, WrittenBy.SEQUENCER
KINDS = (
    Kind(records.MESSAGE, Way.NEXT, _CLIENT, Rank.MEMBER, Linked.MAYBE, in_columns=True),
    # A pack: each reader takes it as its messages.
    Kind(records.MESSAGES, Way.NEXT, _CLIENT, Rank.MEMBER, in_columns=True, takes_several=True),
    Kind(records.HEARTBEAT, Way.HEARD, _CLIENT | _RELAY | WrittenBy.TICK, in_columns=True),
    Kind(records.SKIP, Way.OF_LINK, _RELAY, linked=Linked.ALWAYS, in_columns=True),
    Kind(records.JOIN, Way.NEXT, _CLIENT, watches=True),
    Kind(records.LEAVE, Way.NEXT, _CLIENT | _RELAY, Rank.JOINER),  # a relay's is only heard
    Kind(records.SETTINGS, Way.NEXT, _CLIENT | WrittenBy.ADMIN),
    Kind(records.FORGET, Way.NEXT, _CLIENT | WrittenBy.ADMIN),
    Kind(records.START_FLUSH, Way.NEXT, _CLIENT | _SEQUENCER, Rank.MEMBER, watches=True),
    Kind(records.FLUSH_OK, Way.NEXT, _CLIENT, Rank.MEMBER),
    Kind(records.STOP_FLUSH, Way.NEXT, _CLIENT | _SEQUENCER, Rank.MEMBER),
    Kind(records.REMOTE_VIEW, Way.NEWER, _RELAY | _SEQUENCER, linked=Linked.MAYBE, watches=True),
    Kind(records.LINK_START, Way.OF_LINK, _RELAY),
    Kind(records.VIEW, Way.DECIDED, _SEQUENCER, across=records.REMOTE_VIEW, watches=True),
    Kind(records.FLUSH_COMPLETED, Way.DECIDED, _SEQUENCER),
    Kind(records.REFUSED, Way.DECIDED, _CLIENT),  # a client's control record that changes nothing
    Kind(records.RESTORED, Way.DECIDED, _SEQUENCER, takes_several=True),  # `abcast restore` writes it
    Kind(records.EPOCH, Way.BESIDE, _SEQUENCER),
    Kind(records.ENTRY, Way.BESIDE, _SEQUENCER),
    Kind(records.LETTER, Way.LETTER, _CLIENT),
    Kind(records.STATE, Way.LETTER, _CLIENT),
)
NEEDS = {kind.name: kind.needs for kind in KINDS}


def _of(*ways: Way, which: Callable[[Kind], bool] = lambda _: True) -> tuple[str, ...]:
    return tuple(kind.name for kind in KINDS if kind.way in (ways or Way) and which(kind))


_FORWARD = (Way.NEXT, Way.NEWER, Way.HEARD, Way.OF_LINK)
COLUMN_KINDS = _of(*_FORWARD, which=lambda kind: kind.in_columns)
FORWARD_KINDS = (*COLUMN_KINDS, *_of(*_FORWARD, which=lambda kind: not kind.in_columns))
NEXT_KINDS, NEWER_KINDS, HEARD_KINDS, LINK_KINDS = (frozenset(_of(way)) for way in _FORWARD)
RELAY_KINDS = _of(*_FORWARD, which=lambda kind: _RELAY in kind.writers)
ONLY_OF_RELAYS = _of(*_FORWARD, which=lambda kind: _CLIENT not in kind.writers)
HEARD_OF_RELAYS = NEXT_KINDS.intersection(RELAY_KINDS)
"""FORWARD kinds that are only heard if a relay writes them about itself: it numbers nothing."""
LINKED_KINDS = _of(which=lambda kind: kind.linked is not Linked.NEVER)
ALWAYS_LINKED = _of(which=lambda kind: kind.linked is Linked.ALWAYS)
RESERVED = {(TICK_NAME, kind.name) for kind in KINDS if WrittenBy.TICK in kind.writers}
RESERVED |= {(ADMIN_NAME, kind.name) for kind in KINDS if WrittenBy.ADMIN in kind.writers}
"""The reserved names of senders, relays aside, with the kinds that abcast writes under each."""

MESSAGE_KINDS = frozenset((records.MESSAGE, records.MESSAGES))
"""Kinds that bring messages of applications, one or several. All others may change the membership."""
DATA_KINDS = frozenset(_of(Way.NEXT, Way.NEWER, Way.DECIDED, Way.BESIDE))
"""The DATA kinds that this version knows. A record of any other kind takes its seqnos and has no other effect."""
SINGLE_KINDS = DATA_KINDS.difference(_of(which=lambda kind: kind.takes_several))
"""The DATA kinds that take one seqno, or none."""
WITHOUT_SEQNO = _of(Way.BESIDE)
DECIDED_KINDS = _of(Way.NEXT, Way.NEWER, Way.DECIDED, which=lambda kind: _SEQUENCER in kind.writers)
"""DATA kinds that may come from the sequencer itself, without a sender and a source."""
SENDERS_KINDS = _of(which=lambda kind: kind.name not in DECIDED_KINDS)
"""Kinds that the sequencer never writes by itself. A record of DATA with such a kind and no sender is a stray."""
ACROSS = {kind.name: kind.across for kind in KINDS if kind.across != records.SKIP}
"""The kind that a relay of a mesh makes of each kind of DATA, if it is neither a message nor made a `skip`."""
WATCH_KINDS = _of(which=lambda kind: kind.watches)
LETTER_KINDS = _of(Way.LETTER)
