"""A message of another site of a mesh is delivered as its sender sent it, from Kafka and from the ledger."""

from __future__ import annotations

import itertools
from pathlib import Path

from connectors import Delivery, Member
from connectors.client.memory.ledger_reader import read_ledger
from connectors.kafka.codec.codec import encode_data
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.names import Topic
from ordering.base.records import MESSAGE, Data
from tests.ledger.ledger_of import decided, effective, write_ledger


def delivery(record: Data) -> Delivery:
    message_id = (record.sender, record.incarnation, record.local_seqno)
    return Delivery(
        record.seqno, *message_id, record.payload, record.headers, record.view, record.epoch, record.forwarded_at_ms
    )


def test_what_a_link_says_is_no_header_of_the_application(tmp_path: Path) -> None:
    log = decided(linked=True)
    wanted = [delivery(record) for record in log if record.kind == MESSAGE]
    assert {each.headers for each in wanted if each.sender == "lax/c"} == {(), (("trace", b"\xff"),)}
    kafka = MemoryConnection()
    kafka.create("g", "nyc")
    for record in log:
        key, value, headers = encode_data(record)
        kafka.producer().send(str(Topic("g", "data", "nyc")), value, key, headers, 0)
    with Member("g", "nyc/reader", connection=kafka) as reader:
        got = itertools.islice(reader.deliveries(from_seqno=1, timeout=5), len(wanted))
        assert [each._replace(sequenced_at_ms=0) for each in got] == wanted
    places = itertools.chain.from_iterable(read_ledger(write_ledger(tmp_path / "ledger", effective(log)), "g", 1))
    assert [what for _, _, what in places if what is not None] == wanted
