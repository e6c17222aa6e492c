"""The record codec as Spark columns: the same rules and reasons as `connectors.codec`, no Python per row.

Our own client writes the headers in a fixed order, and then a header is found by its position. Records of other
clients take the general way: a look-up by name. Both give the same columns; only the speed differs.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from connectors import codec
from ordering.membership import NOT_A_MEMBER
from ordering.names import MAX_SITE_LENGTH, SITE_PATTERN, relay_of
from ordering.records import MAX_HEADERS_BYTES, MAX_NUMBER, MAX_PAYLOAD_BYTES, MESSAGE, REMOTE_VIEW
from ordering.sequencer import BAD_ADDRESS

HEADERS_TYPE = "array<struct<key:string,value:binary>>"


def group_of(topic: Column) -> Column:
    """The group in `abcast.<group>.<role>.<site>` (cheaper than a regular expression, and it is once a record)."""
    role_and_site = F.substring_index(topic, ".", -2)
    return F.substring(topic, F.lit(len("abcast.") + 1), F.length(topic) - len("abcast.") - F.length(role_and_site) - 1)


def site_of(topic: Column) -> Column:
    """The site in `abcast.<group>.<role>.<site>`: a site has no dot."""
    return F.substring_index(topic, ".", -1)


def header(name: str, position: int) -> Column:
    """The value of header `name` (binary, or null); `position` is where our own client puts it."""
    headers = F.col("headers")
    at_position = F.get(headers, F.lit(position))
    by_name = F.get(F.filter(headers, lambda h: h["key"] == name), F.lit(0))["value"]
    return F.when(at_position["key"] == name, at_position["value"]).otherwise(by_name)


def extract(kafka_rows: DataFrame, names: tuple[str, ...]) -> DataFrame:
    """The rows of Spark's Kafka source (with headers), plus one text column for each header named.

    A step of its own, so that each header is looked up once however often its column is used. `bare` says that
    the headers are exactly these, in this order, and nothing else: by far the commonest record.
    """
    bare = F.size("headers") == len(names)
    for position, name in enumerate(names):
        bare = bare & (F.get(F.col("headers"), F.lit(position))["key"] == name)
    texts = [header(name, position).cast("string").alias(name) for position, name in enumerate(names)]
    return kafka_rows.select("*", F.coalesce(bare, F.lit(False)).alias("bare"), *texts)


def number(name: str) -> Column:
    """A canonical decimal from 1 to MAX_NUMBER, or null. Casting back tells the canonical from ' 7' and '07'."""
    text = F.col(name)
    value = text.try_cast("bigint")
    return F.when((value.cast("string") == text) & value.between(1, MAX_NUMBER), value)


def neighbour_of(topic: Column) -> Column:
    """The neighbouring site in `abcast.<group>.relayed-<neighbour>.<site>`; empty in other topics."""
    role = F.substring_index(F.substring_index(topic, ".", -2), ".", 1)
    return F.when(role.startswith("relayed-"), F.substring(role, len("relayed-") + 1, MAX_SITE_LENGTH)).otherwise("")


def forward_error(sites: Collection[str] | None = None) -> Column:
    """The reason why an extracted FORWARD row is a dead letter, or null. The same order as in `connectors.codec`."""
    sender, key, value, topic = F.col(codec.H_SENDER), F.col("key"), F.col("value"), F.col("topic")
    own = F.filter(F.col("headers"), lambda h: h["key"].startswith(codec.PREFIX))
    own_names = F.transform(own, lambda h: h["key"])
    allowed = F.array(*map(F.lit, codec.FORWARD_HEADERS))
    relays = F.array(*map(F.lit, codec.RELAYED_HEADERS))
    by_relay = F.col("neighbour") != ""
    visited = F.split(F.coalesce(codec.H_VISITED, F.lit("")), ",")
    came_from = F.when(by_relay, F.get(visited, F.lit(0))).otherwise(site_of(topic))
    odd_headers = (
        F.when(F.size(F.array_distinct(own_names)) != F.size(own_names), codec.REPEATED_HEADER)
        .when(F.size(F.array_except(own_names, F.array_union(allowed, relays))) > 0, codec.RESERVED_HEADER)
        .when(~by_relay & F.arrays_overlap(own_names, relays), codec.NOT_RELAYED)
    )
    too_large = F.when(_size(application_headers()) > MAX_HEADERS_BYTES, codec.HEADERS_TOO_LARGE)
    rest = (
        F.when(~F.col(codec.H_VERSION).eqNullSafe(codec.VERSION), codec.WRONG_VERSION)
        .when(~F.coalesce(F.col(codec.H_KIND).isin(*codec.FORWARD_KINDS), F.lit(False)), codec.WRONG_KIND)
        .when(~F.coalesce(_is_ascii(sender) & (sender != ""), F.lit(False)), codec.NO_SENDER)
        .when(~key.eqNullSafe(sender.cast("binary")), codec.KEY_IS_NOT_SENDER)
        .when(F.col("incarnation").isNull(), codec.WRONG_INCARNATION)
        .when(F.col("local_seqno").isNull(), codec.WRONG_LOCAL_SEQNO)
        .when(by_relay & ~_is_way(visited, topic), codec.FORGED_VISITED)
        .when(by_relay & _names_others(visited, sites), codec.UNKNOWN_SITE)
        .when(~sender.startswith(F.concat(came_from, F.lit("/"))), codec.WRONG_SITE)
        .when(_claims_relay(sender) & ~_is_its_relay(sender), codec.NOT_THE_RELAY)
        .when(value.isNull(), codec.NO_PAYLOAD)
        .when(F.octet_length(value) > MAX_PAYLOAD_BYTES, codec.PAYLOAD_TOO_LARGE)
    )
    return F.coalesce(F.when(~F.col("bare"), F.coalesce(odd_headers, too_large)), rest)


def _is_way(visited: Column, topic: Column) -> Column:
    """Whether a record with this list can have come to the relayed topic: by its neighbour, never here before."""
    return (
        F.forall(visited, lambda site: site.rlike(f"^(?:{SITE_PATTERN})$") & ~site.contains("\n"))
        & (F.size(F.array_distinct(visited)) == F.size(visited))
        & F.array_contains(visited, F.col("neighbour"))
        & ~F.array_contains(visited, site_of(topic))
    )


def _names_others(visited: Column, sites: Collection[str] | None) -> Column:
    """Whether the list has a site that is not configured."""
    if sites is None:
        return F.lit(False)
    return F.size(F.array_except(visited, F.array(*map(F.lit, sorted(sites))))) > 0


def _claims_relay(sender: Column) -> Column:
    """Whether only a relay may say so."""
    return sender.endswith(relay_of("")) | (F.col(codec.H_KIND) == REMOTE_VIEW)


def _is_its_relay(sender: Column) -> Column:
    """Whether it is the relay that fills the topic, and speaks for itself."""
    its_relay = F.concat(F.col("neighbour"), F.lit(relay_of("")))
    return (F.col("neighbour") != "") & (sender == its_relay) & F.col(codec.H_KIND).isin(*codec.RELAY_KINDS)


def _is_ascii(text: Column) -> Column:
    # Spark counts a byte that begins no character of UTF-8 as one character.
    return F.is_valid_utf8(text) & (F.octet_length(text) == F.length(text))


def pack_headers() -> Column:
    """What must travel on: the application's headers and the relay's list, as JSON, or null; of a dead letter, all."""
    headers = F.col("headers")
    travelling = F.filter(headers, lambda h: (h["key"] == codec.H_VISITED) | ~h["key"].startswith(codec.PREFIX))
    return F.when(F.col("error").isNotNull(), F.when(F.size(headers) > 0, F.to_json(headers))).when(
        ~F.col("bare"), F.when(F.size(travelling) > 0, F.to_json(travelling))
    )


def unpack_headers(packed: Column) -> Column:
    """Inverse of `pack_headers`, an empty array for null."""
    empty = F.array().cast(HEADERS_TYPE)
    return F.when(packed.isNull(), empty).otherwise(F.from_json(packed, HEADERS_TYPE))


def _ascii(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))


def own_data_headers() -> Column:
    """The own headers of a DATA row, from the sequencer's output columns."""
    return F.array(
        _ascii(codec.H_VERSION, F.lit(codec.VERSION)),
        _ascii(codec.H_KIND, F.col("kind")),
        _ascii(codec.H_SENDER, F.col("sender")),
        _ascii(codec.H_INCARNATION, F.col("incarnation")),
        _ascii(codec.H_LOCAL_SEQNO, F.col("local_seqno")),
        _ascii(codec.H_SEQNO, F.col("seqno")),
        _ascii(codec.H_EPOCH, F.col("epoch")),
        _ascii(codec.H_VIEW, F.col("view")),
        _ascii(codec.H_SOURCE, F.col("source")),
        _ascii(codec.H_FORWARDED_AT, F.col("forwarded_at_ms")),
    )


def decided_headers() -> Column:
    """The headers of what the sequencer decides by itself: no sender, no source."""
    return F.array(
        _ascii(codec.H_VERSION, F.lit(codec.VERSION)),
        _ascii(codec.H_KIND, F.col("kind")),
        _ascii(codec.H_EPOCH, F.col("epoch")),
        _ascii(codec.H_SEQNO, F.col("seqno")),
        _ascii(codec.H_VIEW, F.col("view")),
    )


def kind_code() -> Column:
    """The index of a FORWARD row's kind in `codec.FORWARD_KINDS`; 0, a message, where there is none."""
    kind, kinds = F.col(codec.H_KIND), F.array(*map(F.lit, codec.FORWARD_KINDS))
    position = F.when(kind == MESSAGE, 0).otherwise(F.array_position(kinds, kind) - 1)
    return F.greatest(F.coalesce(position, F.lit(0)), F.lit(0)).cast("int")


def epoch_headers() -> Column:
    """The headers of an epoch record."""
    return F.array(
        _ascii(codec.H_VERSION, F.lit(codec.VERSION)),
        _ascii(codec.H_KIND, F.col("kind")),
        _ascii(codec.H_EPOCH, F.col("epoch")),
    )


def dead_letter_headers() -> Column:
    """The original headers of a dead letter, followed by the reason and where the record came from."""
    # These two are judged after the headers were packed, when only the application's were thought to be needed.
    own = F.array(
        _ascii(codec.H_VERSION, F.lit(codec.VERSION)),
        _ascii(codec.H_KIND, F.col("kind")),
        _ascii(codec.H_SENDER, F.col("sender")),
        _ascii(codec.H_INCARNATION, F.col("incarnation")),
        _ascii(codec.H_LOCAL_SEQNO, F.col("local_seqno")),
    )
    return F.concat(
        F.when(F.col("error").isin(BAD_ADDRESS, NOT_A_MEMBER), own).otherwise(F.array().cast(HEADERS_TYPE)),
        unpack_headers(F.col("packed_headers")),
        F.array(_ascii(codec.H_REASON, F.col("error")), _ascii(codec.H_SOURCE, F.col("source"))),
    )


def _size(headers: Column) -> Column:
    sizes = F.transform(headers, lambda h: F.octet_length(h["key"]) + F.coalesce(F.octet_length(h["value"]), F.lit(0)))
    return F.aggregate(sizes, F.lit(0), lambda total, size: total + size)


def application_headers() -> Column:
    """The application's headers of a record."""
    return F.filter(F.col("headers"), lambda h: ~h["key"].startswith(codec.PREFIX))
