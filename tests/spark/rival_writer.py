"""A second ledger job's writer, with a JVM of its own: see `test_two_writers_in_two_jvms`."""

from __future__ import annotations

import sys
from pathlib import Path

from connectors.spark.session import build_session
from tests.spark.kafka_rows import source_frame
from tests.spark.test_ledger import BEGINNING, messages, writer_of


def main(table: Path, group: str, count: int) -> None:
    spark = build_session("abcast rival", cores=1, driver_memory="768m")
    writer = writer_of(table, BEGINNING, group)
    source_frame(spark, messages(group, 1)).collect()
    print("ready", flush=True)
    for seqno in range(1, count + 1):
        writer.write(source_frame(spark, messages(group, seqno)), seqno)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
