"""The record codec as Spark columns, without Python per row: the part of `connectors.kafka.codec.codec` that nearly all
records need.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from connectors.kafka.codec import codec
from connectors.kafka.codec.headers import HEADER, NOTHING, VERSION
from connectors.spark.own_columns import words_of
from ordering.base.formats import NEWEST
from ordering.base.names import ADDRESS_PATTERN
from ordering.base.packs import LAYOUT, MAX_PACK_BYTES, MAX_PACK_MESSAGES, size_of_pack
from ordering.base.records import EPOCH, MESSAGES

LATER_FORMAT = "abcast: a later format:"
"""The beginning of the error of a query that met a later format."""
HEADERS_TYPE = "array<struct<key:string,value:binary>>"
_DATA_AT = {name: position for position, name in enumerate(codec.DATA_FIELDS)}


def group_of(topic: Column) -> Column:
    """Return the group in `abcast.<group>.<role>.<site>`; cheaper than a regular expression, for each record."""
    role_and_site = F.substring_index(topic, ".", -2)
    return F.substring(topic, F.lit(len("abcast.") + 1), F.length(topic) - len("abcast.") - F.length(role_and_site) - 1)


def site_of(topic: Column) -> Column:
    """Return the site in `abcast.<group>.<role>.<site>`: a site has no dot."""
    return F.substring_index(topic, ".", -1)


def with_fields(kafka_rows: DataFrame) -> DataFrame:
    """Add `fields` to rows of Spark's Kafka source (with headers): the fields of the header `abcast`, as texts.

    Null if the first header is another: sequencers and abcast's clients write it first. A step of its own, so that the
    text is split once, however many of its fields are used.
    """
    return kafka_rows.select("*", fields())


def fields() -> Column:
    """Return the column that `with_fields` adds."""
    first = F.get(F.col("headers"), F.lit(0))
    return words_of(F.when(first["key"] == HEADER, first["value"])).alias("fields")


def is_data() -> Column:
    """Whether a `with_fields` row of a data topic is no stray, by the rule of `codec.data_fields`."""
    first = F.get(F.col("headers"), F.lit(0))
    text = F.when(first["key"] == HEADER, first["value"]).cast("string")
    has_sender = data_field("SOURCE") != NOTHING
    is_address = F.col("key").cast("string").rlike(rf"\A(?:{ADDRESS_PATTERN})\z")
    is_right_key = F.when(F.col("key").isNull(), ~has_sender).otherwise(has_sender & is_address)
    return F.coalesce(text.rlike(rf"\A(?:{codec.DATA_PATTERN})\z") & is_right_key, F.lit(False))


def data_field(name: str) -> Column:
    """Return the text of one of `codec.DATA_FIELDS` of a `with_fields` row of DATA; `-` without a value.

    LINK is null if it has no value, or is missing.
    """
    text = F.get(F.col("fields"), F.lit(_DATA_AT[name]))
    return F.when(text != NOTHING, text) if name == "LINK" else text


def data_number(name: str) -> Column:
    """Return a field of a `with_fields` row of DATA as a number; null without a value."""
    return data_field(name).try_cast("bigint")


def data_count() -> Column:
    """Return how many seqnos the record of a `with_fields` row of DATA takes, as `codec.data_count` does."""
    return _counted("COUNT")


def payloads_of(kind: Column, value: Column, count: Column) -> Column:
    """Return an array with a payload for each seqno that a record of DATA takes: the payloads of a pack's messages.

    Any other record has its value in the first place, and null in the others. The rows have `topic` and `offset`: a
    pack that `ordering.base.packs.fault` refuses ends the query, with these in the error.
    """
    places, begin = F.sequence(F.lit(0).cast("bigint"), count - 1), size_of_pack(0, 0)
    lengths = F.transform(
        places, lambda n: F.conv(F.hex(F.substring(value, 4 * n + begin + 1, F.lit(4))), 16, 10).cast("bigint")
    )
    # A sum a place, as text: Spark appends to a string by a copy of its bytes, to an array by a turn for each element.
    sums = F.aggregate(
        lengths,
        F.struct((begin + 4 * count).alias("end"), (begin + 4 * count).cast("string").alias("ends")),
        lambda so_far, length: F.struct(
            (so_far["end"] + length).alias("end"),
            F.concat(so_far["ends"], F.lit(","), (so_far["end"] + length).cast("string")).alias("ends"),
        ),
        lambda sums: F.split(sums["ends"], ",").cast("array<bigint>"),
    )
    may_be = (
        (count <= MAX_PACK_MESSAGES)
        & F.length(value).between(begin + 4 * count, MAX_PACK_BYTES)
        & (F.hex(F.substring(value, 1, 1)) == f"{LAYOUT:02X}")
    )

    def split(ends: Column) -> Column:
        pack = F.transform(
            F.slice(F.arrays_zip(ends.alias("begin"), F.slice(ends, 2, count.cast("int")).alias("end")), 1, count),
            lambda at: F.substring(value, (at["begin"] + 1).cast("int"), (at["end"] - at["begin"]).cast("int")),
        )
        return F.when(F.element_at(ends, -1) == F.length(value), pack).otherwise(refused)

    refused = F.raise_error(F.concat_ws(" ", F.lit("a pack of DATA can't be read:"), F.col("topic"), F.col("offset")))
    others = F.concat(F.array(value), F.array_repeat(F.lit(None).cast("binary"), (count - 1).cast("int")))
    # Spark computes a column again wherever a lambda or a condition names it, but a lambda's argument once.
    whole = F.get(F.transform(F.array(sums), split), F.lit(0))
    checked = F.when(may_be, whole).otherwise(refused)
    return F.when(kind == MESSAGES, checked).otherwise(others)


def data_format() -> Column:
    """Return the number of the group's format in a seal, as `codec.data_format` does."""
    return _counted("FORMAT")


def followed(column: Column) -> Column:
    """Return the column, of `with_fields` rows of DATA, that ends the query at a seal of an unknown format.

    `connectors.spark.query_failure` recognises the error.
    """
    number, version = data_field("FORMAT"), F.coalesce(data_field("FORMAT_VERSION"), F.lit(""))
    says = F.concat_ws(" ", F.lit(LATER_FORMAT), F.col("topic"), number, version)
    is_later = (data_field("KIND") == EPOCH) & (data_format() > NEWEST.number)
    return F.when(is_later, F.raise_error(says)).otherwise(column)


def _counted(name: str) -> Column:
    text = data_field(name)
    return F.when(text.rlike(rf"\A{codec.COUNT_PATTERN}\z"), text.cast("bigint")).otherwise(1)


def application_headers() -> Column:
    """Return the application's headers of a `with_fields` row: all but the first."""
    headers = F.col("headers")
    return F.slice(headers, 2, F.greatest(F.size(headers) - 1, F.lit(0)))


def all_headers() -> Column:
    """Return the headers of a row of Spark's Kafka source; an empty array if they are null."""
    return F.coalesce("headers", F.array().cast(HEADERS_TYPE))


def own_place(headers: Column) -> Column:
    """Return the position of the header `abcast` among the headers, counted from 1; 0 if it is missing."""
    return F.array_position(headers["key"], HEADER).cast("int")


def own_header(headers: Column) -> Column:
    """Return the value of the header `abcast`, wherever it is; empty if it is missing."""
    return F.coalesce(F.get(headers, own_place(headers) - 1)["value"], F.lit(b""))


def header(*fields: Column) -> Column:
    """Return the header `abcast` with these fields (text or numbers), without nulls, as an array."""
    text = F.concat_ws(" ", F.lit(VERSION), *fields)
    return F.array(F.struct(F.lit(HEADER).alias("key"), text.cast("binary").alias("value")))
