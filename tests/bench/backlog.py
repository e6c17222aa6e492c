"""Fill a FORWARD topic with records like members', as fast as Spark's Kafka sink writes."""

from __future__ import annotations

import random
import time

from pyspark.sql import functions as F

from connectors.spark.codec import header
from connectors.spark.sink import SINK_OPTIONS
from ordering.base.records import MESSAGE
from tests.bench.lab import Lab, Place
from tests.bench.plan import Case

_NOISE_BYTES = 1 << 20


def fill(lab: Lab, place: Place, records: int, case: Case) -> float:
    """Write `records` messages of the case's senders, each sender's in order; returns the seconds it took.

    The header is that of our own client. Payloads are slices of random bytes, so that no compression
    makes the ledger look better than it is.
    """
    spark = lab.spark  # columns can be made when there is a session
    noise = bytearray(random.Random(7).randbytes(_NOISE_BYTES))
    number = F.col("id")
    sender = F.concat(F.lit(f"{place.site}/m"), number % case.senders)
    start = F.pmod(F.hash(number), F.lit(_NOISE_BYTES - case.payload_bytes)) + 1
    rows = (
        # One task: a sender's messages must keep their order.
        spark.range(0, records, 1, 1)
        .withColumn("sender", sender)
        .select(
            F.lit(place.forward).alias("topic"),
            F.col("sender").cast("binary").alias("key"),
            F.substring(F.lit(noise), start, F.lit(case.payload_bytes)).alias("value"),
            header(F.lit(MESSAGE), F.lit("1"), F.floor(number / case.senders) + 1).alias("headers"),
        )
    )
    started = time.monotonic()
    rows.write.format("kafka").options(**lab.connection.spark_options(), **SINK_OPTIONS).save()
    return time.monotonic() - started
