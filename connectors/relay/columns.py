"""The records that a relay carries, as Spark columns: rows of a site's topics in, rows for the neighbour's topics out.

Stateless, record by record. Nothing here needs to be exactly-once: the neighbour recognises repeats.

* `HomeData` (a hub's home to another site): DATA unchanged, with its epoch records and the records of fenced
  sequencers, without its strays. The copy is the home's log with runs of it repeated, and the reading rule takes the
  same records from it.
* `SiteForward` (a hub's other site to its home): FORWARD, partition by partition, into the home's relayed topic.
* `MeshData` (between the sites of a mesh): DATA, record by record, into the neighbour's relayed topic, by the rules of
  `ordering.sequencer.links`. Messages become FORWARD of their original senders, views become `remote-view`, and all
  other records a `skip`. So a message of a new member comes after the view that has it. If the links form a tree, the
  messages that a sender had delivered before it sent arrive first.
* `Agreed` (between sites that agree, `ordering.agreement.site`): FORWARD, partition by partition, into the neighbour's
  relayed topic, with the time of its broker; and the records of DATA that make the site's log.
* `Letters`: the inbox topics, partition by partition.
* `Casts`: the cast topics, partition by partition (`connectors.relay.casts`).

The field RELAYED_FROM names the record that a FORWARD, a letter or a cast was made from. A relay that starts goes on
behind the record that the last copy names. Letters and casts have the marks of all relays on their way, the newest
first.

Invariant, *never back*. A letter or a cast is carried into no Kafka that a relay has brought it out of, so each copy
has the mark of one Kafka more. None goes round, though each relay follows its own site's file, and these may be of
different age: a Kafka has at most as many copies of a record as there are ways without a circle. A record that is not
carried for this reason is already in the target's Kafka.

Spark plans all expressions anew for each batch. So one expression of our own (`conf/scala/Carried.scala`) makes the
whole row, except for a mesh's DATA.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import reduce
from operator import or_
from typing import Literal, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from connectors.kafka.codec import codec
from connectors.kafka.codec.cast_codec import CAST_FIELDS
from connectors.kafka.codec.headers import DEPENDS_HEADER, HEADER, NOTHING
from connectors.kafka.connection.sites import Direction
from connectors.spark import codec as spark_codec
from connectors.spark.own_columns import rows_carried
from ordering.base.kinds import ACROSS, MESSAGE_KINDS
from ordering.base.names import ADDRESS_PATTERN, MAX_ADDRESS_LENGTH, relay_of
from ordering.base.records import ENTRY, EPOCH, MAX_PAYLOAD_BYTES, MESSAGE, SKIP

MOST_LINE_BYTES = 2 * MAX_PAYLOAD_BYTES
"""The bytes of the header `abcast` that are carried. No codec reads further, or takes a field of that length."""


class _Way(NamedTuple):
    """The rule for topics whose names end with `source`: their records go to the topics that end with `target`.

    `takes`: `data` takes DATA unchanged, but no strays; `log` takes the entries and seals of DATA; `all` takes every
    record that a client may write. The last two name the record that a copy was made from, in place of the fields from
    `begin` to `end` of the header `abcast`, followed by the text `behind` and, with `says_when`, by the broker's time.

    The rest of the headers is unchanged (except for cuts, see `_carried`), so a faulty record has the same fault at the
    other site. Missing fields become `-`. The header `abcast` comes first, so the sequencer need not search for it.
    """

    takes: Literal["data", "log", "all"]
    source: str = ""
    target: str = ""
    begin: int = 0
    end: int = 0
    behind: str = ""
    says_when: bool = False


def relay_home_data(rows: DataFrame, direction: Direction) -> DataFrame:
    """DATA of the home → the same DATA at another site."""
    return _carried(rows, direction, _Way("data", f".data.{direction.source}", f".data.{direction.target}"))


def relay_forward(rows: DataFrame, direction: Direction) -> DataFrame:
    """FORWARD of another site → FORWARD at the home."""
    return _carried(rows, direction, _forward(direction, f" {NOTHING}"))


def relay_agreed(rows: DataFrame, direction: Direction) -> DataFrame:
    """FORWARD and DATA of a site → FORWARD and the site's log at one that agrees with it.

    The log (`ordering.agreement.log`) is the entries and seals of DATA. FORWARD gets its broker's time, which the
    clock there follows. Strays must be left out here: the copy lacks the key and the SOURCE that tell a stray.
    """
    forward = _forward(direction, f" {NOTHING} ")._replace(says_when=True)
    at = codec.DATA_FIELDS.index("SOURCE")
    entries = f".entries-{direction.source}.{direction.target}"
    return _carried(rows, direction, forward, _Way("log", f".data.{direction.source}", entries, at, at + 1))


def _forward(direction: Direction, behind: str) -> _Way:
    fields = len(codec.FORWARD_FIELDS)
    return _Way("all", f".forward.{direction.source}", _relayed(direction), fields, fields, behind)


def relay_mesh_data(
    rows: DataFrame, direction: Direction, sessions: Mapping[str, int], not_carried: Collection[str]
) -> DataFrame:
    """DATA of one mesh site → FORWARD at its neighbour: `ordering.sequencer.links.carry_each`, as columns.

    `sessions`: by DATA topic. `not_carried`: the origins whose messages this link does not carry.
    """
    relay, text = relay_of(direction.source), spark_codec.data_field("LINK")
    kind, origin = spark_codec.data_field("KIND"), F.substring_index(F.col("key").cast("string"), "/", 1)
    has_number = text.isNotNull() | (origin == direction.source)
    is_carried = has_number & ~origin.isin(*sorted(not_carried))
    changes_kind = kind.isin(*ACROSS)
    payloads = spark_codec.payloads_of(kind, F.col("value"), spark_codec.data_count())
    named = (
        spark_codec.with_fields(rows)
        .filter(spark_codec.is_data())
        .withColumn("payloads", payloads)
        .drop("value")
        .select("*", F.posexplode("payloads").alias("place", "value"))
        .withColumn("is_message", F.coalesce(kind.isin(*MESSAGE_KINDS) & is_carried, F.lit(False)))
    )
    place, is_message = F.col("place"), F.col("is_message")
    seqno, at_sender = (
        (F.coalesce(spark_codec.data_number(name), F.lit(0)) + place).cast("string")
        for name in ("SEQNO", "LOCAL_SEQNO")
    )
    number = spark_codec.followed(seqno)
    origin_seqno = F.when(~is_message, "0").when(text.isNull(), seqno).otherwise(F.substring_index(text, ".", -1))
    link = F.concat_ws(
        ".",
        _session(sessions),
        spark_codec.data_field("EPOCH"),
        number,
        origin_seqno,
    )
    # A view's epoch and number are its incarnation and local seqno.
    incarnation, local_seqno = (
        F.when(is_message, of_message).when(changes_kind, spark_codec.data_field(of_view)).otherwise("1")
        for of_message, of_view in ((spark_codec.data_field("INCARNATION"), "EPOCH"), (at_sender, "VIEW"))
    )
    said_kind = F.when(is_message, MESSAGE)
    for of_data, said in ACROSS.items():
        said_kind = said_kind.when(kind == of_data, said)
    header = spark_codec.header(said_kind.otherwise(SKIP), incarnation, local_seqno, F.lit(NOTHING), link)
    return named.select(
        _renamed(f".data.{direction.source}", _relayed(direction)),
        "partition",
        F.when(is_message, F.col("key")).otherwise(F.lit(relay).cast("binary")).alias("key"),
        F.when(is_message | changes_kind, F.col("value")).otherwise(F.lit(b"")).alias("value"),
        F.when(is_message, F.concat(header, spark_codec.application_headers())).otherwise(header).alias("headers"),
    )


def _session(sessions: Mapping[str, int]) -> Column:
    """Return the session of the row's topic."""
    return F.coalesce(*(F.when(F.col("topic") == topic, F.lit(str(name))) for topic, name in sorted(sessions.items())))


def relay_letters(rows: DataFrame, direction: Direction, at_target: Collection[str]) -> DataFrame:
    """Letters → the same letters, in the topic and the partition of the same name.

    `at_target`: the sites in the target's Kafka, here and below. Letters that have been there are not carried.
    """
    at = codec.LETTER_FIELDS.index("RELAYED_FROM")
    return _carried(rows.filter(~_has_been_at(at, at_target)), direction, _Way("all", begin=at, end=at))


def relay_casts(rows: DataFrame, direction: Direction, at_target: Collection[str], *, of_views: bool) -> DataFrame:
    """Casts → the same casts, in the topic and the partition of the same name. `of_views`: casts of a view, too."""
    at = CAST_FIELDS.index("RELAYED_FROM")
    is_carried = ~_has_been_at(at, at_target)
    if not of_views:
        text = spark_codec.own_header(spark_codec.all_headers()).cast("string")
        view = F.get(F.split(text, " ", len(CAST_FIELDS) + 1), F.lit(CAST_FIELDS.index("VIEW")))
        is_carried &= F.coalesce(view.isin(NOTHING, ""), F.lit(True))
    return _carried(rows.filter(is_carried), direction, _Way("all", begin=at, end=at))


def _has_been_at(at: int, sites: Collection[str]) -> Column:
    """Whether relays have brought a record out of the Kafka of these sites, by the marks from field `at` on.

    Relays write their header as the first one. Few records name one of the sites at all: the fields of the others are
    not split.
    """

    def names_one(text: Column) -> Column:
        return reduce(or_, (text.contains(f" {site}/") for site in sorted(sites)))

    header = F.get(F.col("headers"), F.lit(0))
    text = header["value"].cast("string")
    marks = F.concat(F.lit(" "), F.get(F.split(text, " ", at + 1), F.lit(at)))
    is_so = (header["key"] == HEADER) & F.coalesce(names_one(marks), F.lit(False))
    return F.when(names_one(text), is_so).otherwise(F.lit(False))


def _carried(rows: DataFrame, direction: Direction, *ways: _Way) -> DataFrame:
    """Return the rows to write for records of the source's topics.

    A key, a value or headers larger than in any good record are cut to a length that still shows this. Kafka
    limits the compressed size of a record. So a source may hold a record that is too large for every topic once it is
    read, and it would stop the relay for good.
    """
    rules = {
        "site": direction.source,
        "header": HEADER,
        "nothing": NOTHING,
        "data": codec.DATA_PATTERN,
        "address": ADDRESS_PATTERN,
        "kind_at": codec.DATA_FIELDS.index("KIND"),
        "source_at": codec.DATA_FIELDS.index("SOURCE"),
        "entry": ENTRY,
        "epoch": EPOCH,
        "depends": DEPENDS_HEADER,
        "most_address_bytes": MAX_ADDRESS_LENGTH,
        "most_payload_bytes": MAX_PAYLOAD_BYTES,
        "most_line_bytes": MOST_LINE_BYTES,
        "ways": [way._asdict() for way in ways],
    }
    made = rows.select(rows_carried(json.dumps(rules)).alias("made"))
    return made.where(F.col("made").isNotNull()).select("made.*")


def _relayed(direction: Direction) -> str:
    """Return the end of the name of a topic that a relay fills with FORWARD."""
    return f".relayed-{direction.source}.{direction.target}"


def _renamed(suffix: str, other: str) -> Column:
    """Return the topic's name with the end `suffix` replaced by `other`."""
    topic = F.col("topic")
    return F.concat(F.left(topic, F.length(topic) - len(suffix)), F.lit(other)).alias("topic")
