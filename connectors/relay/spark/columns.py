"""The rules of `connectors.relay.rules` as Spark columns: rows of a site's topics in, rows for the neighbour's out.

Spark plans all expressions anew for each batch. So one expression of our own (`conf/scala/Carried.scala`) makes the
whole row, except for a mesh's DATA.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from connectors.kafka.codec import codec
from connectors.kafka.codec.cast_codec import CAST_FIELDS
from connectors.kafka.codec.headers import DEPENDS_HEADER, HEADER, NOTHING
from connectors.relay.rules import MOST_LINE_BYTES, Copying, Linking, Rule, relayed
from connectors.spark import codec as spark_codec
from connectors.spark.own_columns import rows_carried
from ordering.base.kinds import ACROSS, MESSAGE_KINDS
from ordering.base.names import ADDRESS_PATTERN, MAX_ADDRESS_LENGTH, relay_of
from ordering.base.records import ENTRY, EPOCH, MAX_PAYLOAD_BYTES, MESSAGE, SKIP


def rows_by(rule: Rule, rows: DataFrame) -> DataFrame:
    """Return the rows to write for records of the source's topics."""
    return _linked(rows, rule) if isinstance(rule, Linking) else _copied(rows, rule)


def _copied(rows: DataFrame, rule: Copying) -> DataFrame:
    at = rule.ways[0].begin
    if rule.at_target:
        rows = rows.filter(~_has_been_at(at, rule.at_target))
    if not rule.of_views:
        text = spark_codec.own_header(spark_codec.all_headers()).cast("string")
        view = F.get(F.split(text, " ", len(CAST_FIELDS) + 1), F.lit(CAST_FIELDS.index("VIEW")))
        rows = rows.filter(F.coalesce(view.isin(NOTHING, ""), F.lit(True)))
    rules = {
        "site": rule.direction.source,
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
        "ways": [way._asdict() for way in rule.ways],
    }
    made = rows.select(rows_carried(json.dumps(rules)).alias("made"))
    return made.where(F.col("made").isNotNull()).select("made.*")


def _linked(rows: DataFrame, rule: Linking) -> DataFrame:
    direction = rule.direction
    relay, text = relay_of(direction.source), spark_codec.data_field("LINK")
    kind, origin = spark_codec.data_field("KIND"), F.substring_index(F.col("key").cast("string"), "/", 1)
    has_number = text.isNotNull() | (origin == direction.source)
    is_carried = has_number & ~origin.isin(*sorted(rule.not_carried))
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
        _session(rule.sessions),
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
        _renamed(f".data.{direction.source}", relayed(direction)),
        "partition",
        F.when(is_message, F.col("key")).otherwise(F.lit(relay).cast("binary")).alias("key"),
        F.when(is_message, F.col("value"))
        .when(changes_kind, _members_of(F.col("value")))
        .otherwise(F.lit(b""))
        .alias("value"),
        F.when(is_message, F.concat(header, spark_codec.application_headers())).otherwise(header).alias("headers"),
    )


def _members_of(view: Column) -> Column:
    """Return the payload of a view with its members alone; any other payload as it is."""
    members = F.get_json_object(view.cast("string"), "$.members")
    return F.coalesce(F.concat(F.lit('{"members":'), members, F.lit("}")).cast("binary"), view)


def _session(sessions: Mapping[str, int]) -> Column:
    """Return the session of the row's topic."""
    return F.coalesce(*(F.when(F.col("topic") == topic, F.lit(str(name))) for topic, name in sorted(sessions.items())))


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


def _renamed(suffix: str, other: str) -> Column:
    """Return the topic's name with the end `suffix` replaced by `other`."""
    topic = F.col("topic")
    return F.concat(F.left(topic, F.length(topic) - len(suffix)), F.lit(other)).alias("topic")
