"""The rows of a restore's mark, which the restore itself appends to the ledger that it reads.

Invariant: no message behind a mark is ordered before the ledger has the mark. So a second restore, from the same
ledger, begins behind it, and its own mark passes over other seqnos. A ledger's job makes the same rows of the mark, and
leaves them out.
"""

from __future__ import annotations

from pathlib import Path

from connectors.kafka.codec.codec import encode_data
from connectors.kafka.log.effective import Effective
from connectors.kafka.log.stored_record import StoredRecord
from connectors.ledger.append_only import MAX_ATTEMPTS
from connectors.ledger.process.rows import ledger_rows
from connectors.ledger.process.table import ProcessSeqnoTable, create_table
from connectors.ledger.seqno_table import LEDGER
from connectors.ledger.table_lock import ProcessLock
from connectors.ledger.table_state import read_table_state
from connectors.storage.location import Location


def append_mark(path: Location, group: str, mark: StoredRecord) -> bool:
    """Append the mark's rows right behind the group's last row, unless the ledger at `path` ends with that many.

    Return False if the ledger ends anywhere else. Raises LedgerContended, LedgerDamaged, LedgerReplaced,
    LedgerUnreadable; EnvironmentProblem for a table that can't be written.
    """
    data = mark.data
    last = data.seqno + data.count - 1
    key, value, headers = encode_data(data)
    numbers = data.incarnation, data.local_seqno, data.epoch, data.view, data.forwarded_at_ms
    record = Effective(last, mark.offset, data.kind, key or None, *numbers, (), value, mark.timestamp_ms)
    with ProcessLock(path.parent / "ledger.lock" if isinstance(path, Path) else None).held():
        create_table(path, LEDGER)
        table = ProcessSeqnoTable(path, read_table_state)
        for _ in range(MAX_ATTEMPTS):
            table.look_again()
            if (ends := table.state.last_seqno.get(group, 0)) != data.seqno - 1:
                return ends == last
            if table.append_once(ledger_rows(group, ends, [record], {mark.offset: headers})):
                return True
        raise table.contended()
