"""The record codec as Spark columns, no Python per row: what nearly all records need of `connectors.kafka.codec`."""

from __future__ import annotations

import functools
import operator

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from connectors.kafka import codec
from ordering.names import MAX_SITE_LENGTH, SITE_PATTERN, relay_of
from ordering.records import LINK_START, MAX_HEADERS_BYTES, MAX_NUMBER, MAX_PAYLOAD_BYTES, MESSAGE, REMOTE_VIEW, SKIP

HEADERS_TYPE = "array<struct<key:string,value:binary>>"
_FORWARD_COUNT = len(codec.FORWARD_HEADERS)
_RELAYED_COUNT = _FORWARD_COUNT + 1  # of the two that relays add, a record has one


def group_of_forward(site: str) -> Column:
    """The group in `abcast.<group>.forward.<site>`, which nearly all topics of the site's are, and in others."""
    topic, begin, end = F.col("topic"), "abcast.", f".forward.{site}"
    group = F.substring(topic, F.lit(len(begin) + 1), F.length(topic) - (len(begin) + len(end)))
    return F.when(_is_local(site), group).otherwise(group_of(topic))


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
    # No lambda: Spark generates no code for a projection that has one.
    by_name = F.get(headers, F.array_position(headers["key"], name).cast("int") - 1)["value"]
    return F.when(at_position["key"] == name, at_position["value"]).otherwise(by_name)


def extract(kafka_rows: DataFrame, names: tuple[str, ...]) -> DataFrame:
    """The rows of Spark's Kafka source (with headers), plus one text column for each header named.

    A step of its own, so that each header is looked up once however often its column is used.
    """
    texts = [header(name, position).cast("string").alias(name) for position, name in enumerate(names)]
    return kafka_rows.select("*", *texts)


def extract_in_order(kafka_rows: DataFrame, names: tuple[str, ...]) -> DataFrame:
    """The rows of Spark's Kafka source (with headers), plus `in_order`: whether the first headers have these names in
    this order, as our own client writes them; and if so, a text column for each. Cheaper than `extract`.
    """
    firsts = [F.get(F.col("headers"), F.lit(position)) for position in range(len(names))]
    named = [first["key"] == name for first, name in zip(firsts, names, strict=True)]
    in_order = F.coalesce(functools.reduce(operator.and_, named), F.lit(False))
    texts = [first["value"].cast("string").alias(name) for first, name in zip(firsts, names, strict=True)]
    return kafka_rows.select("*", in_order.alias("in_order"), *texts)


def number(name: str) -> Column:
    """A canonical decimal from 1 to MAX_NUMBER, or null. Casting back tells the canonical from ' 7' and '07'."""
    text = F.col(name)
    value = text.try_cast("bigint")
    return F.when((value.cast("string") == text) & value.between(1, MAX_NUMBER), value)


def pack_headers(headers: Column) -> Column:
    """An array of headers as one text: JSON, the values in base64."""
    # Spark's writer for a stateful Python function takes time with lists that grows with the square of their number.
    return F.to_json(headers)


def is_plain_forward(site: str, *, relayed: bool) -> Column:
    """Whether an `extract_in_order` row is a FORWARD record for the site that breaks no rule, as nearly all are.

    It is False for some that break none (what other clients write in another order, what a relay says for itself),
    never True for one that does: `connectors.kafka.codec` reads what is not plain, and has the reasons. `relayed`:
    whether there may be rows of topics that a relay fills.
    """
    sender, value, headers = F.col(codec.H_SENDER), F.col("value"), F.col("headers")
    is_members = (F.col(codec.H_KIND) != SKIP) & ~sender.endswith(relay_of(""))
    is_local = _is_local(site) & sender.startswith(f"{site}/") & is_members
    others = others_of_plain(site, relayed=relayed)
    names, values = others["key"], others["value"]
    size = F.octet_length(F.array_join(names, "")) + F.octet_length(F.array_join(values.cast("array<string>"), ""))
    others_are_the_applications = (F.size(headers) == _FORWARD_COUNT) | (
        ~F.array_join(names, ",").contains(codec.PREFIX) & (size <= MAX_HEADERS_BYTES)
    )
    plain = (
        F.col("in_order")
        & (F.col(codec.H_VERSION) == codec.VERSION)
        & F.col(codec.H_KIND).isin(*(kind for kind in codec.FORWARD_KINDS if kind not in (REMOTE_VIEW, LINK_START)))
        & (F.col("key") == sender.cast("binary"))
        & _is_ascii(sender)
        & F.col("incarnation").isNotNull()
        & F.col("local_seqno").isNotNull()
        & (is_local | _came_by_relay(site) if relayed else is_local)
        & (_is_of_its_time() | _is_linked() if relayed else _is_of_its_time())
        & (F.octet_length(value) <= MAX_PAYLOAD_BYTES)
        & others_are_the_applications
    )
    return F.coalesce(plain, F.lit(False))


def link_of_plain(position: int) -> Column:
    """The number at that position of what a link says of a plain FORWARD row; null where no link has brought it."""
    return F.when(_is_linked(), F.split(_relayed_text(), " ")[position].cast("long"))


def behind(headers: Column, count: Column) -> Column:
    """The headers but the first `count`."""
    return F.slice(headers, count + 1, F.greatest(F.size(headers) - count, F.lit(0)))


def others_of_plain(site: str, *, relayed: bool) -> Column:
    """The headers of a plain FORWARD row behind abcast's own, of which there are more if a relay brought it."""
    own = F.when(_is_local(site), _FORWARD_COUNT).otherwise(_RELAYED_COUNT) if relayed else F.lit(_FORWARD_COUNT)
    return behind(F.col("headers"), own)


def _is_local(site: str) -> Column:
    """Whether the topic is the site's own, not one that a relay fills."""
    return F.col("topic").endswith(f".forward.{site}")


def _relayed_header() -> Column:
    """The header that a relay adds to a FORWARD row, where our own relays put it."""
    return F.get(F.col("headers"), F.lit(_FORWARD_COUNT))


def _relayed_text() -> Column:
    return _relayed_header()["value"].cast("string")


def _is_linked() -> Column:
    return F.coalesce(_relayed_header()["key"] == codec.H_LINK, F.lit(False))


def _is_of_its_time() -> Column:
    """Whether the incarnation is not above `codec.highest_incarnation`; null where the timestamp is a wild one."""
    latest_ms = F.unix_millis("timestamp") + codec.CLOCK_AHEAD_MS
    return F.col("incarnation") <= F.try_multiply(latest_ms, F.lit(codec.INCARNATIONS_A_MS))


def _came_by_relay(site: str) -> Column:
    """Whether the neighbour that fills the topic can have sent it: by a link, or to the home of a hub."""
    role = F.substring_index(F.substring_index("topic", ".", -2), ".", 1)
    neighbour = F.substring(role, len("relayed-") + 1, MAX_SITE_LENGTH)
    kind, sender = F.col(codec.H_KIND), F.col(codec.H_SENDER)
    key = _relayed_header()["key"]
    by_link = _is_linked() & _relayed_text().rlike(f"\\A{codec.LINK_PATTERN}\\z")
    is_skip = (kind == SKIP) & (sender == F.concat(neighbour, F.lit(relay_of(""))))
    is_message = (kind == MESSAGE) & ~sender.endswith(relay_of("")) & ~sender.startswith(f"{site}/")
    of_hub = (kind != SKIP) & ~sender.endswith(relay_of("")) & sender.startswith(F.concat(neighbour, F.lit("/")))
    has_site = sender.rlike(f"\\A{SITE_PATTERN}/")
    return role.startswith("relayed-") & (
        (by_link & (is_skip | (is_message & has_site))) | ((key == codec.H_RELAYED_FROM) & of_hub)
    )


def _is_ascii(text: Column) -> Column:
    # Spark counts a byte that begins no character of UTF-8 as one character.
    return F.is_valid_utf8(text) & (F.octet_length(text) == F.length(text))


def header_struct(name: str, value: Column) -> Column:
    """A header of abcast's with this value, in ASCII."""
    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))


def link_header(*numbers: Column) -> Column:
    """The header that says what a link says of a row, as an array; empty where the numbers are null."""
    one = F.array(header_struct(codec.H_LINK, F.concat_ws(" ", *numbers)))
    return F.when(numbers[0].isNotNull(), one).otherwise(F.array().cast(HEADERS_TYPE))


def own_data_headers() -> Column:
    """The own headers of a DATA row, from the sequencer's output columns."""
    return F.array(
        header_struct(codec.H_VERSION, F.lit(codec.VERSION)),
        header_struct(codec.H_KIND, F.col("kind")),
        header_struct(codec.H_SENDER, F.col("sender")),
        header_struct(codec.H_INCARNATION, F.col("incarnation")),
        header_struct(codec.H_LOCAL_SEQNO, F.col("local_seqno")),
        header_struct(codec.H_SEQNO, F.col("seqno")),
        header_struct(codec.H_EPOCH, F.col("epoch")),
        header_struct(codec.H_VIEW, F.col("view")),
        header_struct(codec.H_SOURCE, F.col("source")),
        header_struct(codec.H_FORWARDED_AT, F.col("forwarded_at_ms")),
    )


def kind_code() -> Column:
    """The index of a plain FORWARD row's kind in `codec.FORWARD_KINDS`."""
    kind, kinds = F.col(codec.H_KIND), F.array(*map(F.lit, codec.FORWARD_KINDS))
    return F.when(kind == MESSAGE, 0).otherwise(F.array_position(kinds, kind).cast("int") - 1)


def application_headers() -> Column:
    """The application's headers of a record."""
    return F.filter(F.col("headers"), lambda h: ~h["key"].startswith(codec.PREFIX))
