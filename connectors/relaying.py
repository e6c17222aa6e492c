"""What a relay carries, as Spark columns: rows of one site's topics in, rows for the neighbour's topics out.

Stateless, record by record. Nothing here needs to be exactly-once: whatever arrives twice is known there.

* *Orders* (a hub's home to another site): DATA as it stands, epoch records and leftovers of fenced sequencers
  included. The copy is the home's log with runs of it repeated, and the reading rule takes the same records from it.
* *Requests* (a hub's other site to its home): FORWARD, partition by partition, into the home's relayed topic.
* *News* (between the sites of a mesh): the messages of DATA, in DATA's order, into the neighbour's relayed topic as
  FORWARD of their original senders. So what a sender had delivered before it sent is there first. The list of sites
  in `abcast-visited` keeps a message from coming back, and from coming twice where every site has a link to every
  other: it names the sites that have the message or are being sent it. The site's views travel among them as
  `remote-view`, one hop: so a message of a new member comes after the view that has it. There may be some that a fenced
  sequencer has left; `connectors.herald` makes up for it.

* *Letters*: the inbox topics, partition by partition.

`abcast-relayed-from` says which record a copy was made from; a relay that starts goes on after the last one.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from connectors import codec, sequencing, spark_codec
from connectors.sites import Direction
from ordering.names import relay_of
from ordering.records import MESSAGE, REMOTE_VIEW, VIEW

_OWN = len(codec.FORWARD_HEADERS)
_DATA_OWN = len(codec.DATA_HEADERS)


def relay_orders(rows: DataFrame, way: Direction) -> DataFrame:
    """DATA of the home → the same DATA at another site."""
    return rows.select(_renamed(f".data.{way.source}", f".data.{way.target}"), "partition", "key", "value", "headers")


def relay_requests(rows: DataFrame, way: Direction) -> DataFrame:
    """FORWARD of another site → FORWARD at the home."""
    headers = F.coalesce("headers", F.array().cast(spark_codec.HEADERS_TYPE))
    marks = _marks(F.lit(way.source), way)
    # Behind abcast's own, as in news: where the sequencer at the home finds them without a search.
    others = spark_codec.behind(headers, F.lit(_OWN))
    marked = F.when(F.size(headers) <= _OWN, F.concat(headers, marks)).otherwise(
        F.concat(F.slice(headers, 1, _OWN), marks, others)
    )
    topic = _renamed(f".forward.{way.source}", _relayed(way))
    return rows.select(topic, "partition", "key", "value", marked.alias("headers"))


def relay_news(rows: DataFrame, way: Direction, neighbours: Sequence[str]) -> DataFrame:
    """The messages and the views of one mesh site's DATA → FORWARD at its neighbour. `neighbours`: the source's."""
    headers = F.col("headers")
    has_more = F.size(headers) > _DATA_OWN  # than its own, which our sequencer writes first, in the order of the codec
    visited = F.when(has_more, spark_codec.header(codec.H_VISITED, _DATA_OWN)).cast("string")
    kind = spark_codec.header(codec.H_KIND, 1).cast("string")
    news = rows.filter(kind.isin(MESSAGE, VIEW)).withColumn("visited", visited)
    unvisited = F.col("visited").isNull() | ~F.array_contains(F.split("visited", ","), way.target)
    # Sent to all neighbours that have it not: they need not send it to each other.
    going = [way.source, *(site for site in neighbours if site != way.target)]
    going_on = F.array_join(F.array_union(F.split("visited", ","), F.array(*map(F.lit, going))), ",")
    going_to = F.when(F.col("visited").isNull(), ",".join(going)).otherwise(going_on)
    marked = F.concat(F.slice(headers, 1, _OWN), _marks(going_to, way))
    is_view, relay = F.col("key").isNull(), F.lit(relay_of(way.source))  # a view has no sender
    return news.filter(unvisited).select(
        _renamed(f".data.{way.source}", _relayed(way)),
        "partition",
        F.coalesce("key", relay.cast("binary")).alias("key"),
        "value",
        F.when(is_view, F.concat(_view_headers(relay), _marks(F.lit(way.source), way)))
        .when(has_more, F.concat(marked, spark_codec.application_headers()))
        .otherwise(marked)
        .alias("headers"),
    )


def _view_headers(relay: Column) -> Column:
    """The own headers of a remote view, from those of a view."""
    return F.array(
        _header(codec.H_VERSION, F.lit(codec.VERSION)),
        _header(codec.H_KIND, F.lit(REMOTE_VIEW)),
        _header(codec.H_SENDER, relay),
        _header(codec.H_INCARNATION, spark_codec.header(codec.H_EPOCH, 2)),
        _header(codec.H_LOCAL_SEQNO, spark_codec.header(codec.H_VIEW, 4)),
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


def _marks(visited: Column, way: Direction) -> Column:
    """The two headers of a relay."""
    return F.array(_header(codec.H_VISITED, visited), _mark(way))


def _mark(way: Direction) -> Column:
    """The header that says which record of the source a copy was made from."""
    place = F.concat(F.lit(f"{way.source}/"), "topic", F.lit("-"), "partition", F.lit(":"), "offset")
    return _header(codec.H_RELAYED_FROM, place)


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))


SINK_OPTIONS = {
    **sequencing.SINK_OPTIONS,
    # A record that the producer gave up on, while later ones got through, would be a hole in the copy: it never does.
    "kafka.delivery.timeout.ms": str(2**31 - 1),
    "kafka.retries": str(2**31 - 1),
    "kafka.max.block.ms": "60000",
}
