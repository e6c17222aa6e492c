"""The ledger in DuckDB: no JVM, no abcast. `python ledger_duckdb.py abcast-data GROUP`"""

from __future__ import annotations

import sys

import duckdb
from deltalake import DeltaTable


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    data, group = sys.argv[1:]
    ledger = DeltaTable(f"{data}/ledger").to_pyarrow_dataset()
    session = duckdb.connect()
    session.register("ledger", ledger)
    rows = session.execute(
        # decode() makes the text of a payload; casting it to VARCHAR would show its bytes.
        """SELECT seqno, sender, decode(payload) FROM ledger
           WHERE group_name = ? AND kind = 'message' ORDER BY seqno""",
        [group],
    )
    for seqno, sender, text in rows.fetchall():
        print(seqno, sender, text)


if __name__ == "__main__":
    main()
