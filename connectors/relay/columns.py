"""What a relay carries, as Spark columns: rows of one site's topics in, rows for the neighbour's topics out.

Stateless, record by record. Nothing here needs to be exactly-once: the neighbour recognises what arrives twice.

* `HomeData` (a hub's home to another site): DATA as it stands, with its epoch records and with what fenced sequencers
  have left. The copy is the home's log with runs of it repeated, and the reading rule takes the same records from it.
* `SiteForward` (a hub's other site to its home): FORWARD, partition by partition, into the home's relayed topic.
* `MeshData` (between the sites of a mesh): DATA, record by record, into the neighbour's relayed topic, as
  `ordering.links` has it. Messages become FORWARD of their original senders, views become `remote-view`, and all else
  a `skip`. So a message of a new member comes after the view that has it. Where the links make a tree, what a sender
  had delivered before it sent is there first.
* `Letters`: the inbox topics, partition by partition.

`abcast-relayed-from` says which record a FORWARD or a letter was made from. A relay that starts goes on after the last
one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from connectors.kafka import codec
from connectors.kafka.sites import Direction
from connectors.spark import codec as spark_codec
from ordering.names import relay_of
from ordering.records import MESSAGE, REMOTE_VIEW, SKIP, VIEW

_FORWARD_COUNT = len(codec.FORWARD_HEADERS)
_DATA_COUNT = len(codec.DATA_HEADERS)


def relay_home_data(rows: DataFrame, way: Direction) -> DataFrame:
    """DATA of the home → the same DATA at another site."""
    return rows.select(_renamed(f".data.{way.source}", f".data.{way.target}"), "partition", "key", "value", "headers")


def relay_forward(rows: DataFrame, way: Direction) -> DataFrame:
    """FORWARD of another site → FORWARD at the home."""
    headers = F.coalesce("headers", F.array().cast(spark_codec.HEADERS_TYPE))
    mark = F.array(_mark(way))
    # Behind abcast's own, as between the sites of a mesh: where the sequencer at the home finds it without a search.
    others = spark_codec.behind(headers, F.lit(_FORWARD_COUNT))
    marked = F.when(F.size(headers) <= _FORWARD_COUNT, F.concat(headers, mark)).otherwise(
        F.concat(F.slice(headers, 1, _FORWARD_COUNT), mark, others)
    )
    topic = _renamed(f".forward.{way.source}", _relayed(way))
    return rows.select(topic, "partition", "key", "value", marked.alias("headers"))


def relay_mesh_data(
    rows: DataFrame, way: Direction, sessions: Mapping[str, int], not_carried: Collection[str]
) -> DataFrame:
    """DATA of one mesh site → FORWARD at its neighbour: `ordering.links.carry`, as columns.

    `sessions`: by DATA topic. `not_carried`: the origins whose messages this link does not carry.
    """
    headers, relay = F.col("headers"), relay_of(way.source)
    named = rows.withColumns(
        {
            "kind": spark_codec.header(codec.H_KIND, 1).cast("string"),
            "epoch": spark_codec.header(codec.H_EPOCH, 6).cast("string"),
            "seqno": F.coalesce(spark_codec.header(codec.H_SEQNO, 5).cast("string"), F.lit("0")),
            "linked": F.when(F.size(headers) > _DATA_COUNT, spark_codec.header(codec.H_LINK, _DATA_COUNT)).cast(
                "string"
            ),
            "origin": F.substring_index(F.col("key").cast("string"), "/", 1),
        }
    )
    kind, linked = F.col("kind"), F.col("linked")
    has_number = linked.isNotNull() | (F.col("origin") == way.source)
    is_carried = has_number & ~F.col("origin").isin(*sorted(not_carried))
    is_message = F.coalesce((kind == MESSAGE) & is_carried, F.lit(False))
    is_view = kind == VIEW
    origin_seqno = F.when(~is_message, "0").when(linked.isNull(), F.col("seqno"))
    link = F.concat_ws(
        " ",
        _session(sessions),
        F.col("epoch"),
        F.col("seqno"),
        origin_seqno.otherwise(F.substring_index(linked, " ", -1)),
    )
    said = F.array(spark_codec.header_struct(codec.H_LINK, link))
    has_more = F.size(headers) > _DATA_COUNT
    message = F.concat(F.slice(headers, 1, _FORWARD_COUNT), said)
    view = _own_headers(REMOTE_VIEW, relay, F.col("epoch"), spark_codec.header(codec.H_VIEW, 4))
    return named.select(
        _renamed(f".data.{way.source}", _relayed(way)),
        "partition",
        F.when(is_message, F.col("key")).otherwise(F.lit(relay).cast("binary")).alias("key"),
        F.when(is_message | is_view, F.col("value")).otherwise(F.lit(b"")).alias("value"),
        F.when(is_message & has_more, F.concat(message, spark_codec.application_headers()))
        .when(is_message, message)
        .when(is_view, F.concat(view, said))
        .otherwise(F.concat(_own_headers(SKIP, relay, F.lit("1"), F.lit("1")), said))
        .alias("headers"),
    )


def _session(sessions: Mapping[str, int]) -> Column:
    """The session of the row's topic."""
    return F.coalesce(*(F.when(F.col("topic") == topic, F.lit(str(name))) for topic, name in sorted(sessions.items())))


def _own_headers(kind: str, relay: str, incarnation: Column, local_seqno: Column) -> Column:
    """The headers of a record of the relay's own."""
    return F.array(
        spark_codec.header_struct(codec.H_VERSION, F.lit(codec.VERSION)),
        spark_codec.header_struct(codec.H_KIND, F.lit(kind)),
        spark_codec.header_struct(codec.H_SENDER, F.lit(relay)),
        spark_codec.header_struct(codec.H_INCARNATION, incarnation),
        spark_codec.header_struct(codec.H_LOCAL_SEQNO, local_seqno),
    )


def relay_letters(rows: DataFrame, way: Direction) -> DataFrame:
    """Letters → the same letters, in the topic and the partition of the same name."""
    headers = F.coalesce("headers", F.array().cast(spark_codec.HEADERS_TYPE))
    others = F.filter(headers, lambda h: h["key"] != codec.H_RELAYED_FROM)
    marked = F.concat(others, F.array(_mark(way))).alias("headers")
    return rows.select("topic", "partition", "key", "value", marked)


def _relayed(way: Direction) -> str:
    """How the name of a topic ends that a relay fills with FORWARD."""
    return f".relayed-{way.source}.{way.target}"


def _renamed(suffix: str, other: str) -> Column:
    """The topic, whose name ends with `suffix`, with `other` in its place."""
    topic = F.col("topic")
    return F.concat(F.left(topic, F.length(topic) - len(suffix)), F.lit(other)).alias("topic")


def _mark(way: Direction) -> Column:
    """The header that says which record of the source a copy was made from."""
    source = F.concat(F.lit(f"{way.source}/"), "topic", F.lit("-"), "partition", F.lit(":"), "offset")
    return spark_codec.header_struct(codec.H_RELAYED_FROM, source)
