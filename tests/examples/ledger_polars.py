"""The ledger in polars: no JVM, no abcast. `python ledger_polars.py abcast-data GROUP`"""

from __future__ import annotations

import sys

import polars as pl


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    data, group = sys.argv[1:]
    messages = (
        pl.scan_delta(f"{data}/ledger")
        .filter(pl.col("group_name") == group, pl.col("kind") == "message")
        .select("seqno", "sender", pl.col("payload").cast(pl.String).alias("text"))
        .sort("seqno")
        .collect()
    )
    for seqno, sender, text in messages.iter_rows():
        print(seqno, sender, text)


if __name__ == "__main__":
    main()
