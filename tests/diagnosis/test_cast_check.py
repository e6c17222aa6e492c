"""The check of casts, on DATA that is written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kafka.structs import TopicPartition

from connectors.diagnosis.casts import check_casts
from connectors.kafka.codec.codec import encode_data
from connectors.kafka.codec.headers import depends_header
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.names import Topic
from ordering.base.records import MESSAGE, SETTINGS, VIEW, Data, Source
from ordering.casts.casts import Depends
from ordering.checker.anomalies import CAUSAL_VIOLATION
from ordering.sequencer.packing import pack_of

DATA = TopicPartition(str(Topic("g", "data", "nyc")), 0)
CAST: dict[str, object] = {"sender": "nyc/a", "incarnation": 7, "local_seqno": 1, "view_id": 1, "order": "fifo"}


def total(seqno: int) -> Data:
    """Return a message that depends on the cast."""
    source, depends = Source("abcast.g.forward.nyc", 0, seqno), depends_header(Depends(1, "1"))
    return Data(MESSAGE, 1, seqno, 1, "nyc/a", 7, seqno, b"m", source, depends, 9)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("late", [3, 4, 5])
def test_each_message_of_a_pack_depends_on_casts(tmp_path: Path, late: int, packed: bool) -> None:
    """A restart gives the same header to all messages that an earlier process may have sent behind its casts."""
    kafka = MemoryConnection()
    kafka.create("g", "nyc")
    members = json.dumps({"members": [["nyc/a", 7]], "flush": 0}).encode()
    totals = [total(seqno) for seqno in (3, 4, 5)]
    view = [Data(SETTINGS, 1, 1, payload=b'{"flush": true}'), Data(VIEW, 1, 2, 1, payload=members)]
    for record in (*view, *([pack_of(totals)] if packed else totals)):
        kafka.topics.append(DATA, *encode_data(record))
    log = tmp_path / "log.jsonl"
    rows: list[dict[str, object]] = [{"seqno": seqno, "view_id": 1} for seqno in (3, 4, 5) if seqno >= late]

    def found(*deliveries: dict[str, object]) -> list[str]:
        log.write_text("".join(f"{json.dumps(row)}\n" for row in deliveries))
        _, anomalies = check_casts("g", {"nyc": kafka}, [log], one_order=True, settled=False)
        return [anomaly.name for anomaly in anomalies]

    assert found(CAST, *rows) == []
    assert found(rows[0], CAST, *rows[1:]) == [CAUSAL_VIOLATION]
