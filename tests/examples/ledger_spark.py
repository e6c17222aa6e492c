"""The ledger in Spark, in any session with Delta. `python ledger_spark.py abcast-data GROUP`"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def messages(spark: SparkSession, data: str, group: str) -> DataFrame:
    """The group's messages in their order."""
    ledger = spark.read.format("delta").load(f"{data}/ledger")
    mine = ledger.where((F.col("group") == group) & (F.col("kind") == "message"))
    text = F.col("payload").cast("string").alias("text")
    return mine.select("seqno", "sender", text).orderBy("seqno")


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    data, group = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    for row in messages(spark, data, group).collect():
        print(row.seqno, row.sender, row.text)


if __name__ == "__main__":
    main()
