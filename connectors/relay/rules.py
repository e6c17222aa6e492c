"""The rules by which a relay makes records for the neighbour's topics from records of a site's topics.

Stateless, record by record. Nothing here needs to be exactly-once: the neighbour recognises repeats.

* `HomeData` (a hub's home to another site): DATA unchanged, with its epoch records and the records of fenced
  sequencers, without its strays. The copy is the home's log with runs of it repeated, and the reading rule takes the
  same records from it.
* `SiteForward` (a hub's other site to its home): FORWARD, partition by partition, into the home's relayed topic, with
  the time of its broker.
* `MeshData` (between the sites of a mesh): DATA, record by record, into the neighbour's relayed topic, by the rules of
  `ordering.sequencer.links`. Messages become FORWARD of their original senders, views become `remote-view`, and all
  other records a `skip`. So a message of a new member comes after the view that has it. If the links form a tree, the
  messages that a sender had delivered before it sent arrive first.
* `Agreed` (between sites that agree, `ordering.agreement.site`): FORWARD, partition by partition, into the neighbour's
  relayed topic, as in a hub; and the records of DATA that make the site's log.
* `Letters`: the inbox topics, partition by partition.
* `Casts`: the cast topics, partition by partition (`connectors.relay.casts`).

The field RELAYED_FROM names the record that a FORWARD, a letter or a cast was made from. A relay that starts goes on
behind the record that the last copy names. Letters and casts have the marks of all relays on their way, the newest
first.

Invariant, *never back*. A letter or a cast is carried into no Kafka that a relay has brought it out of, so each copy
has the mark of one Kafka more. None goes round, though each relay follows its own site's file, and these may be of
different age: a Kafka has at most as many copies of a record as there are ways without a circle. A record that is not
carried for this reason is already in the target's Kafka.

Each engine has one form of all rules, record by record the same: `connectors.relay.spark.columns` and
`connectors.relay.process.copying`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

from connectors.kafka.codec.cast_codec import CAST_FIELDS
from connectors.kafka.codec.codec import DATA_FIELDS, FORWARD_FIELDS, LETTER_FIELDS
from connectors.kafka.codec.headers import NOTHING
from connectors.kafka.connection.sites import Direction
from ordering.base.records import MAX_PAYLOAD_BYTES

MOST_LINE_BYTES = 2 * MAX_PAYLOAD_BYTES
"""The bytes of the header `abcast` that are carried. No codec reads further, or takes a field of that length."""


class CopyWay(NamedTuple):
    """The rule for topics whose names end with `source`: their records go to the topics that end with `target`.

    `takes`: `data` takes DATA unchanged, but no strays; `log` takes the entries and seals of DATA; `all` takes every
    record that a client may write. The last two name the record that a copy was made from, in place of the fields from
    `begin` to `end` of the header `abcast`, followed by the text `behind` and, with `says_when`, by the broker's time.

    The rest of the headers is unchanged, so a faulty record has the same fault at the other site. Missing fields become
    `-`. The header `abcast` comes first, so the sequencer need not search for it.

    With `all`, a key, a value or headers larger than in any good record are cut to a length that still shows this.
    Kafka limits the compressed size of a record. So a source may hold a record that is too large for every topic once
    it is read, and it would stop the relay for good.
    """

    takes: Literal["data", "log", "all"]
    source: str = ""
    target: str = ""
    begin: int = 0
    end: int = 0
    behind: str = ""
    says_when: bool = False


class Copying(NamedTuple):
    """The rule of a relay that copies records, by the first of `ways` that fits.

    `at_target`: the sites in the target's Kafka. A record with a mark of one of them, from field `begin` of its way on,
    has been there, and is not copied. `of_views`: copy casts of a view, too.
    """

    direction: Direction
    ways: tuple[CopyWay, ...]
    at_target: frozenset[str] = frozenset()
    of_views: bool = True


class Linking(NamedTuple):
    """The rule of a mesh's link: `ordering.sequencer.links.carry_each`.

    `sessions`: by DATA topic. `not_carried`: the origins whose messages this link does not carry.
    """

    direction: Direction
    sessions: Mapping[str, int]
    not_carried: frozenset[str]


Rule = Copying | Linking


def home_data(direction: Direction) -> Copying:
    """DATA of the home → the same DATA at another site."""
    return Copying(direction, (CopyWay("data", f".data.{direction.source}", f".data.{direction.target}"),))


def forward(direction: Direction) -> Copying:
    """FORWARD of another site → FORWARD at the home."""
    return Copying(direction, (_forward(direction),))


def agreed(direction: Direction) -> Copying:
    """FORWARD and DATA of a site → FORWARD and the site's log at one that agrees with it.

    The log (`ordering.agreement.log`) is the entries and seals of DATA. The clock there follows the time in FORWARD.
    Strays must be left out here: the copy lacks the key and the SOURCE that tell a stray.
    """
    at = DATA_FIELDS.index("SOURCE")
    entries = f".entries-{direction.source}.{direction.target}"
    log = CopyWay("log", f".data.{direction.source}", entries, at, at + 1)
    return Copying(direction, (_forward(direction), log))


def _forward(direction: Direction) -> CopyWay:
    fields = len(FORWARD_FIELDS)
    return CopyWay(
        "all", f".forward.{direction.source}", relayed(direction), fields, fields, f" {NOTHING} ", says_when=True
    )


def relayed(direction: Direction) -> str:
    """Return the end of the name of a topic that a relay fills with FORWARD."""
    return f".relayed-{direction.source}.{direction.target}"


def letters(direction: Direction, at_target: Collection[str]) -> Copying:
    """Letters → the same letters, in the topic and the partition of the same name."""
    at = LETTER_FIELDS.index("RELAYED_FROM")
    return Copying(direction, (CopyWay("all", begin=at, end=at),), frozenset(at_target))


def casts(direction: Direction, at_target: Collection[str], *, of_views: bool) -> Copying:
    """Casts → the same casts, in the topic and the partition of the same name."""
    at = CAST_FIELDS.index("RELAYED_FROM")
    return Copying(direction, (CopyWay("all", begin=at, end=at),), frozenset(at_target), of_views)


def mesh_data(direction: Direction, sessions: Mapping[str, int], not_carried: Collection[str]) -> Linking:
    """DATA of one mesh site → FORWARD at its neighbour."""
    return Linking(direction, dict(sessions), frozenset(not_carried))
