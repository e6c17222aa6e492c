"""Filling a FORWARD topic with what members would have sent, as fast as Spark's Kafka sink writes."""

from __future__ import annotations

import random
import time

from pyspark.sql import Column
from pyspark.sql import functions as F

from connectors.kafka import codec
from connectors.spark.sink import SINK_OPTIONS
from tests.bench.lab import Lab, Place
from tests.bench.plan import Case

_NOISE_BYTES = 1 << 20


def fill(lab: Lab, place: Place, records: int, case: Case) -> float:
    """Write `records` messages of the case's senders, each sender's in order; returns the seconds it took.

    The headers are those of our own client, in its order. Payloads are slices of random bytes, so that no compression
    makes the ledger look better than it is.
    """
    spark = lab.spark  # columns can be made when there is a session
    noise = bytearray(random.Random(7).randbytes(_NOISE_BYTES))
    number = F.col("id")
    sender = F.concat(F.lit(f"{place.site}/m"), number % case.senders)
    values = {
        codec.H_VERSION: F.lit(codec.VERSION),
        codec.H_KIND: F.lit("message"),
        codec.H_SENDER: F.col("sender"),
        codec.H_INCARNATION: F.lit("1"),
        codec.H_LOCAL_SEQNO: F.floor(number / case.senders) + 1,
    }
    start = F.pmod(F.hash(number), F.lit(_NOISE_BYTES - case.payload_bytes)) + 1
    rows = (
        # One task, since a sender's messages must stand in their order.
        spark.range(0, records, 1, 1)
        .withColumn("sender", sender)
        .select(
            F.lit(place.forward).alias("topic"),
            F.col("sender").cast("binary").alias("key"),
            F.substring(F.lit(noise), start, F.lit(case.payload_bytes)).alias("value"),
            F.array(*(_header(name, values[name]) for name in codec.FORWARD_HEADERS)).alias("headers"),
        )
    )
    started = time.monotonic()
    rows.write.format("kafka").options(**lab.connection.spark_options(), **SINK_OPTIONS).save()
    return time.monotonic() - started


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
