"""FORWARD as columns of a sequencer's query: one function in the JVM (`conf/scala/Forward.scala`) judges each record.

Nearly all records break no rule: they are *plain*, and become columns. An irregular record keeps its key and all its
headers, and `connectors.kafka.codec.codec` decodes it, row by row: so one place has the reasons of refusals. No plain
record breaks a rule. Some irregular records break none either: those with another header first, or with fields behind
the known ones, packs that a relay has brought, and all of the kinds that are decided row by row.
"""

from __future__ import annotations

import json

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connectors.kafka.codec import codec, epochs
from connectors.kafka.codec.headers import DEPENDS_HEADER, HEADER, NOTHING, REPLACEMENT, VERSION
from connectors.kafka.codec.inputs import LATEST_MS
from connectors.spark.codec import HEADERS_TYPE
from connectors.spark.own_columns import rows_of_forward
from ordering.base.kinds import COLUMN_KINDS, WITHOUT_SEQNO
from ordering.base.names import MAX_ADDRESS_LENGTH, RESERVED_PREFIX, SITE_PATTERN, TICK_NAME, relay_of
from ordering.base.packs import LAYOUT, MAX_PACK_BYTES, MAX_PACK_HEADERS_BYTES, MAX_PACK_MESSAGES
from ordering.base.records import (
    CLOCK_AHEAD_MS,
    HEARTBEAT,
    INCARNATIONS_A_MS,
    MAX_HEADERS_BYTES,
    MAX_NUMBER,
    MAX_PAYLOAD_BYTES,
    MAX_RECORD_BYTES,
    MESSAGE,
    MESSAGES,
    SKIP,
)

FROM_FORWARD, FROM_LOG, FROM_EPOCH = range(3)
"""The source of a row, for queries that read more than FORWARD."""
LINK_COLUMNS = ("link_session", "link_epoch", "link_seqno", "link_origin_seqno")
"""The columns with a row's fields of a link."""
_SCHEMA = (
    "group string, topic string, partition int, offset long, plain boolean, sender string, incarnation long, "
    f"local_seqno long, kind int, count int, forwarded_at_ms long, key binary, value binary, headers {HEADERS_TYPE}, "
    f"{', '.join(f'{name} long' for name in LINK_COLUMNS)}, at long, input int"
)
_COLUMNS = [field.split()[0] for field in _SCHEMA.split(", ")]


def forward_rows(kafka_rows: DataFrame, site: str, *, relayed: bool = False, agreed: bool = False) -> DataFrame:
    """Rows of Spark's Kafka source (with headers) → the columns that the site's sequencer works on.

    `record`: a plain record for the payload buffer (`conf/scala/RecordsAside.scala`). Irregular rows (not `plain`) and
    heartbeats, which are not in DATA, have `key`, `value` and `packed_headers` in its place. The sender of an irregular
    row is null, and its numbers are 0. `kind`: an index in `FORWARD_KINDS`. `count`: the number of a pack's messages, 1
    otherwise. `topic`: null for the site's own, which nearly all rows have: a text in each row is expensive on its way
    to Python. Null sorts first, as the site's own topic does.

    `relayed`: there may be rows of topics that a relay fills. They have LINK_COLUMNS, which are -1 and 0 if no link has
    brought the row. `agreed`: there are rows of other sites' topics. Each is judged as at its own site; a copy of
    FORWARD becomes the record that it was made from (`connectors.kafka.codec.inputs.original`); rows that are no copy,
    and rows of logs and EPOCH that are not needed, are left out. The rows then have the columns `input` and `at`, the
    offset behind the row in the topic that it was read from. They have no `count`: sites that agree take no packs.
    """
    rules = _rules(site, relayed=relayed, agreed=agreed)
    read = kafka_rows.select(rows_of_forward(_SCHEMA, rules).alias("read"))
    wanted = read.where(F.col("read").isNotNull()) if agreed else read
    left_out = ({"count"} if agreed else {"at", "input"}) | (set() if relayed else set(LINK_COLUMNS))
    # Spark's writer for a stateful Python function takes time with lists that grows with the square of their number.
    known = {"headers": F.to_json("read.headers").alias("packed_headers")}
    columns = [known.get(name, F.col(f"read.{name}")) for name in _COLUMNS if name not in left_out]
    return wanted.select(*columns, "read.record")


def _rules(site: str, *, relayed: bool, agreed: bool) -> str:
    """Return the rules for `conf/scala/Forward.scala`, as JSON."""
    version, exclusion = epochs.EXCLUSION.decode("ascii").split(" ")
    assert version == VERSION
    rules = {
        "site": site,
        "relayed": relayed,
        "agreed": agreed,
        "header": HEADER,
        "version": VERSION,
        "nothing": NOTHING,
        "depends": DEPENDS_HEADER,
        "replacement": REPLACEMENT,
        "forward_fields": len(codec.FORWARD_FIELDS),
        "relayed_fields": len(codec.RELAYED_FIELDS),
        "copied_fields": codec.COPIED_FIELDS,
        "kinds": COLUMN_KINDS,
        "message": MESSAGE,
        "messages": MESSAGES,
        "heartbeat": HEARTBEAT,
        "skip": SKIP,
        "of_log": WITHOUT_SEQNO,
        "of_epoch": [exclusion],
        "reserved": RESERVED_PREFIX,
        "tick": TICK_NAME,
        "relay": relay_of(""),
        "link": codec.LINK_PATTERN,
        "site_of_sender": f"(?:{SITE_PATTERN})/",
        "most_sender_bytes": MAX_ADDRESS_LENGTH,
        "most_digits": len(str(MAX_NUMBER)),
        "most_payload_bytes": MAX_PAYLOAD_BYTES,
        "most_pack_messages": MAX_PACK_MESSAGES,
        "most_pack_bytes": MAX_PACK_BYTES,
        "most_pack_headers_bytes": MAX_PACK_HEADERS_BYTES,
        "layout": LAYOUT,
        "most_record_bytes": MAX_RECORD_BYTES,
        "most_headers_bytes": MAX_HEADERS_BYTES,
        "clock_ahead_ms": CLOCK_AHEAD_MS,
        "incarnations_a_ms": INCARNATIONS_A_MS,
        "latest_ms": LATEST_MS,
    }
    return json.dumps(rules)
