"""Makes what a version of abcast leaves behind: logs, an outbox, a ledger. Later versions have to read it.

    git worktree add /tmp/old VERSION
    PYTHONPATH=/tmp/old:/tmp/old/conf python tests/formats/make.py tests/formats/VERSION

It uses no more of the code than each version has, and runs with the code of the version, not with ours.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from kafka.structs import TopicPartition

from connectors import Member
from connectors.kafka.topics.settings import change_settings
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from tests.engine.test_agreeing import SITES, all_have, running, send

GROUP, SITE = "g", "nyc"


def group_log() -> MemoryConnection:
    """Yield the log of a group with members, views in a flush, settings, headers, two takeovers."""
    kafka = MemoryConnection()
    kafka.create(GROUP, SITE)
    with SequencerThread(kafka, GROUP, SITE):
        assert change_settings(kafka, GROUP, SITE, flush=True, suspect_after_ms=60_000)
        with Member(GROUP, "nyc/alice", connection=kafka) as alice, Member(GROUP, "nyc/bob", connection=kafka) as bob:
            alice.connect(timeout=10)
            bob.connect(timeout=10)
            receipts = [member.broadcast(b"%d" % n, {"n": b"1"}.items()) for n in range(5) for member in (alice, bob)]
            assert all(receipt.result(10) for receipt in receipts)
    with SequencerThread(kafka, GROUP, SITE), Member(GROUP, "nyc/carol", connection=kafka) as carol:
        assert carol.broadcast(b"after a takeover").result(10)
    return kafka


def agreeing_log() -> MemoryConnection:
    """Yield the logs of three sites that agree and share a Kafka here."""
    kafka = MemoryConnection()
    for site in SITES:
        kafka.create(GROUP, site)
    with running(kafka, *SITES):
        for site in SITES:
            send(kafka, site, range(1, 6))
        all_have(kafka, 15)
    return kafka


def outbox(directory: Path) -> None:
    """Leave the outbox of two members without an ordered message: a message each, and a cast."""
    kafka = MemoryConnection()
    kafka.create(GROUP, SITE)
    member = Member(GROUP, "nyc/alice", connection=kafka, outbox=directory / "outbox.db")
    member.broadcast(b"kept", [("n", b"1")])
    member.broadcast(b"kept, too")
    time.sleep(0.5)
    member.close(timeout=0)


def lines(kafka: MemoryConnection) -> Iterable[str]:
    """Yield the records of all topics, one on each line."""
    for place, log in sorted(kafka.topics.partitions.items()):
        yield json.dumps({"topic": place.topic, "partition": place.partition})
        for record in log:
            key, value = (None if raw is None else base64.b64encode(raw).decode() for raw in (record.key, record.value))
            headers = [[name, base64.b64encode(raw).decode()] for name, raw in record.headers]
            yield json.dumps({"at_ms": record.timestamp, "key": key, "value": value, "headers": headers})


def kafka_of(path: Path) -> MemoryConnection:
    """Inverse of `lines`."""
    kafka = MemoryConnection()
    place = TopicPartition("", 0)
    for line in path.read_text(encoding="ascii").splitlines():
        said = json.loads(line)
        if "topic" in said:
            place = TopicPartition(said["topic"], said["partition"])
            kafka.topics.partitions[place] = []
            continue
        key, value = (None if said[name] is None else base64.b64decode(said[name]) for name in ("key", "value"))
        headers = [(name, base64.b64decode(raw)) for name, raw in said["headers"]]
        kafka.topics.append(place, key, value, headers)
        log = kafka.topics.partitions[place]
        log[-1] = log[-1]._replace(timestamp=said["at_ms"])
    return kafka


def ledger(directory: Path, kafka: MemoryConnection) -> None:
    """Write the tables of the group's DATA."""
    from connectors.kafka.log.data_log import Start
    from connectors.ledger.table import LedgerWriter, create_tables
    from connectors.spark.session import build_session
    from connectors.storage.location import Location
    from ordering.base.reader import Reader
    from tests.spark.kafka_rows import Row, source_frame

    data = f"abcast.{GROUP}.data.{SITE}"
    log = kafka.topics.partitions[TopicPartition(data, 0)]
    rows = [Row(data, 0, each.offset, each.key, each.value, each.headers, each.timestamp) for each in log]
    spark = build_session("make", cores=1)
    try:
        create_tables(spark, Location.parse(str(directory)) if hasattr(Location, "parse") else directory)
        path = directory / "ledger"
        writer = LedgerWriter(path, {GROUP: Start(0, Reader())}, lambda _: 0)
        writer.write(source_frame(spark, rows), 0)
        writer.check()
    finally:
        spark.stop()


def main(directory: Path) -> None:
    """Write all files below that directory."""
    directory.mkdir(parents=True)
    kafka = group_log()
    for name, logs in (("group", kafka), ("agreeing", agreeing_log())):
        (directory / f"{name}.jsonl").write_text("\n".join([*lines(logs), ""]), encoding="ascii")
    outbox(directory)
    ledger(directory / "tables", kafka)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
