"""The record codec as Spark columns, no Python per row: what nearly all records need of `connectors.kafka.codec`."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from connectors.kafka import codec
from connectors.spark.own_columns import inner, is_ascii, line_of, number_in, words_of
from ordering.names import ADDRESS_PATTERN, MAX_SITE_LENGTH, RESERVED_PREFIX, SITE_PATTERN, TICK_NAME, relay_of
from ordering.records import (
    CLOCK_AHEAD_MS,
    HEARTBEAT,
    INCARNATIONS_A_MS,
    LINK_START,
    MAX_HEADERS_BYTES,
    MAX_NUMBER,
    MAX_PAYLOAD_BYTES,
    MESSAGE,
    REMOTE_VIEW,
    SKIP,
)

HEADERS_TYPE = "array<struct<key:string,value:binary>>"
_DATA_AT = {name: position for position, name in enumerate(codec.DATA_FIELDS)}
_RELAYED_AT = {name: position for position, name in enumerate(codec.RELAYED_FIELDS)}


def group_of_forward(site: str) -> Column:
    """The group in `abcast.<group>.forward.<site>`, which nearly all topics of the site's are, and in others."""
    topic = F.col("topic")
    group = inner(topic, len("abcast."), len(f".forward.{site}"))
    return F.when(is_local(site), group).otherwise(group_of(topic))


def group_of(topic: Column) -> Column:
    """The group in `abcast.<group>.<role>.<site>` (cheaper than a regular expression, and it is once a record)."""
    role_and_site = F.substring_index(topic, ".", -2)
    return F.substring(topic, F.lit(len("abcast.") + 1), F.length(topic) - len("abcast.") - F.length(role_and_site) - 1)


def site_of(topic: Column) -> Column:
    """The site in `abcast.<group>.<role>.<site>`: a site has no dot."""
    return F.substring_index(topic, ".", -1)


def with_fields(kafka_rows: DataFrame) -> DataFrame:
    """The rows of Spark's Kafka source (with headers), plus `fields`: those of the header `abcast` as an array of text.

    Null where the first header is another: sequencers and our own clients write it there. A step of its own, so that
    the text is split once however many of its fields are used.
    """
    first = F.get(F.col("headers"), F.lit(0))
    return kafka_rows.select("*", words_of(F.when(first["key"] == codec.HEADER, first["value"])).alias("fields"))


def forward_field(name: str) -> Column:
    """The text of one of `codec.RELAYED_FIELDS` of a `with_fields` row; null where there is none."""
    return F.get(F.col("fields"), F.lit(_RELAYED_AT[name]))


def is_data() -> Column:
    """Whether a `with_fields` row of a data topic is no stray: as `codec.data_fields` has it."""
    first = F.get(F.col("headers"), F.lit(0))
    text = F.when(first["key"] == codec.HEADER, first["value"]).cast("string")
    has_sender = data_field("SOURCE") != codec.NOTHING
    is_address = F.col("key").cast("string").rlike(rf"\A(?:{ADDRESS_PATTERN})\z")
    is_right_key = F.when(F.col("key").isNull(), ~has_sender).otherwise(has_sender & is_address)
    return F.coalesce(text.rlike(rf"\A(?:{codec.DATA_PATTERN})\z") & is_right_key, F.lit(False))


def data_field(name: str) -> Column:
    """The text of one of `codec.DATA_FIELDS` of a `with_fields` row of DATA; `-` where it has no value.

    LINK is null then, or where there is none.
    """
    text = F.get(F.col("fields"), F.lit(_DATA_AT[name]))
    return F.when(text != codec.NOTHING, text) if name == "LINK" else text


def data_number(name: str) -> Column:
    """The same of a field that is a number; null where it has no value."""
    return data_field(name).try_cast("bigint")


def application_headers() -> Column:
    """The application's headers of a `with_fields` row: all but the first."""
    headers = F.col("headers")
    return F.slice(headers, 2, F.greatest(F.size(headers) - 1, F.lit(0)))


def all_headers() -> Column:
    """The headers of a row of Spark's Kafka source, none if there are none."""
    return F.coalesce("headers", F.array().cast(HEADERS_TYPE))


def own_place(headers: Column) -> Column:
    """Where among them the header `abcast` is, counted from 1; 0 if it is not there."""
    return F.array_position(headers["key"], codec.HEADER).cast("int")


def own_header(headers: Column) -> Column:
    """What the header `abcast` says, wherever it is; nothing if it is not there."""
    return F.coalesce(F.get(headers, own_place(headers) - 1)["value"], F.lit(b""))


def number(name: str) -> Column:
    """A field of FORWARD that is a canonical decimal from 1 to MAX_NUMBER, or null."""
    return number_in(forward_field(name), len(str(MAX_NUMBER)))  # the highest of so many digits


def pack_headers(headers: Column) -> Column:
    """An array of headers as one text: JSON, the values in base64."""
    # Spark's writer for a stateful Python function takes time with lists that grows with the square of their number.
    return F.to_json(headers)


def is_plain_forward(site: str, *, relayed: bool, agreed: bool = False) -> Column:
    """Whether a `with_fields` row is a FORWARD record for the site that breaks no rule, as nearly all are.

    It is False for some that break none (what has another header first, or fields behind those that are known; what a
    relay says for itself), never True for one that does: `connectors.kafka.codec` reads what is not plain, and has the
    reasons. `relayed`: whether there may be rows of topics that a relay fills. `agreed`: whether the rows are of the
    FORWARD of several sites, each to be judged as at its own.
    """
    sender, value, headers, kind = F.col("sender"), F.col("value"), F.col("headers"), forward_field("KIND")
    has_fields = F.size("fields") == len(codec.FORWARD_FIELDS)
    is_members = (kind != SKIP) & _may_have_its_name()
    of_site = sender.startswith(f"{site}/")
    if agreed:
        of_site = F.when(is_local(site), of_site).otherwise(
            sender.startswith(F.concat(site_of(F.col("topic")), F.lit("/")))
        )
    is_own = (F.lit(True) if agreed else is_local(site)) & has_fields & of_site & is_members
    others = application_headers()
    names, values = others["key"], others["value"]
    size = F.octet_length(F.array_join(names, "")) + F.octet_length(F.array_join(values.cast("array<string>"), ""))
    others_are_the_applications = (F.size(headers) == 1) | (
        ~F.array_join(F.array_remove(names, codec.DEPENDS_HEADER), ",").contains(codec.HEADER)
        & (size + F.size(others) <= MAX_HEADERS_BYTES)
    )
    plain = (
        (F.get(F.col("fields"), F.lit(0)) == codec.VERSION)
        & kind.isin(*(kind for kind in codec.FORWARD_KINDS if kind not in (REMOTE_VIEW, LINK_START)))
        & is_ascii(sender)
        & F.col("incarnation").isNotNull()
        & F.col("local_seqno").isNotNull()
        & (is_own | _came_by_relay(site) if relayed else is_own)
        & (_is_of_its_time() | _is_linked() if relayed else _is_of_its_time())
        & (F.octet_length(value) <= MAX_PAYLOAD_BYTES)
        & others_are_the_applications
    )
    return F.coalesce(plain, F.lit(False))


def link_of_plain(position: int) -> Column:
    """The number at that position of what a link says of a plain FORWARD row; null where no link has brought it."""
    return F.when(_is_linked(), F.split(forward_field("LINK"), r"\.")[position].cast("long"))


def is_local(site: str) -> Column:
    """Whether the topic is the site's own, not one that a relay fills."""
    return F.col("topic").endswith(f".forward.{site}")


def _is_linked() -> Column:
    return F.coalesce(forward_field("LINK") != codec.NOTHING, F.lit(False))


def _is_of_its_time() -> Column:
    """Whether the incarnation is not above `codec.highest_incarnation`; null where the timestamp is a wild one."""
    latest_ms = F.unix_millis("timestamp") + CLOCK_AHEAD_MS
    return F.col("incarnation") <= F.try_multiply(latest_ms, F.lit(INCARNATIONS_A_MS))


def _may_have_its_name() -> Column:
    """Whether the sender has a member's name, or that of ticks and writes one. Other reserved names go row by row."""
    sender = F.col("sender")
    is_tick = sender.endswith(f"/{TICK_NAME}") & (forward_field("KIND") == HEARTBEAT)
    return ~sender.contains(f"/{RESERVED_PREFIX}") | is_tick


def _came_by_relay(site: str) -> Column:
    """Whether the neighbour that fills the topic can have sent it: by a link, or to the home of a hub."""
    role = F.substring_index(F.substring_index("topic", ".", -2), ".", 1)
    neighbour = F.substring(role, len("relayed-") + 1, MAX_SITE_LENGTH)
    kind, sender = forward_field("KIND"), F.col("sender")
    by_link = forward_field("LINK").rlike(f"\\A{codec.LINK_PATTERN}\\z")
    is_own = forward_field("RELAYED_FROM") == codec.NOTHING
    is_skip = (kind == SKIP) & (sender == F.concat(neighbour, F.lit(relay_of("")))) & is_own
    is_message = (kind == MESSAGE) & _may_have_its_name() & ~sender.startswith(f"{site}/")
    of_hub = (kind != SKIP) & _may_have_its_name() & sender.startswith(F.concat(neighbour, F.lit("/")))
    has_site = sender.rlike(f"\\A{SITE_PATTERN}/")
    is_right = (by_link & (is_skip | (is_message & has_site))) | (~_is_linked() & of_hub)
    return role.startswith("relayed-") & (F.size("fields") == len(codec.RELAYED_FIELDS)) & is_right


def header(*fields: Column) -> Column:
    """The header `abcast` with these fields (text or numbers) but those that are null, as an array."""
    text = F.concat_ws(" ", F.lit(codec.VERSION), *fields)
    return F.array(F.struct(F.lit(codec.HEADER).alias("key"), text.cast("binary").alias("value")))


def data_header(kind: Column, *fields: Column | tuple[Column, Column]) -> Column:
    """The same, quicker, for a row of DATA from a FORWARD record: null where a field that is a number is null."""
    line = line_of(F.lit(codec.VERSION), kind, *fields)
    return F.array(F.struct(F.lit(codec.HEADER).alias("key"), line.alias("value")))


def link_text(*numbers: Column) -> Column:
    """What a link says of a row, in one field; null where the numbers are null."""
    return F.when(numbers[0].isNotNull(), F.concat_ws(".", *numbers))


def kind_code() -> Column:
    """The index of a plain FORWARD row's kind in `codec.FORWARD_KINDS`."""
    kind, kinds = forward_field("KIND"), F.array(*map(F.lit, codec.FORWARD_KINDS))
    return F.when(kind == MESSAGE, 0).otherwise(F.array_position(kinds, kind).cast("int") - 1)
