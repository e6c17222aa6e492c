"""The ledger in Spark, in any session with Delta. `python ledger_spark.py abcast-data GROUP`

It needs `pip install delta-spark`. The first run fetches Delta's jars (87 MB) into Ivy's cache.
"""

from __future__ import annotations

import sys

from delta import configure_spark_with_delta_pip
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def messages(spark: SparkSession, data: str, group: str) -> DataFrame:
    """The group's messages in their order."""
    ledger = spark.read.format("delta").load(f"{data}/ledger")
    mine = ledger.where((F.col("group_name") == group) & (F.col("kind") == "message"))
    text = F.col("payload").cast("string").alias("text")
    return mine.select("seqno", "sender", text).orderBy("seqno")


def session() -> SparkSession:
    """Return a local session that has Delta."""
    builder = SparkSession.builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    catalog = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    return configure_spark_with_delta_pip(builder.config("spark.sql.catalog.spark_catalog", catalog)).getOrCreate()


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    data, group = sys.argv[1:]
    for row in messages(session(), data, group).collect():
        print(row.seqno, row.sender, row.text)


if __name__ == "__main__":
    main()
