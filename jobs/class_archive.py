"""`python -m jobs.class_archive`: record the classes that Spark and Kafka load, so that later starts take less time.

Most of a Spark start is the JVM reading and checking some twenty thousand classes. Java can keep them in an archive
("class data sharing", JEP 350). `make setup` runs the real jobs once, on a broker of their own, and makes an archive
for Spark and one for the broker. Without an archive, or with another Java than it was made by, everything works, more
slowly.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from connectors import Member
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import create_topics
from connectors.ledger.table import read_table_state
from connectors.local.broker import EmbeddedBroker
from connectors.local.class_archive import class_archive
from connectors.local.jars import say
from connectors.spark.job import JobOptions
from connectors.spark.jvm import end_jvm
from connectors.spark.session import build_session
from jobs.terminal.streaming import job_classes, running

_GROUP, _SITE = "training", "local"
_MESSAGES = 3
_PATIENCE_S = 120.0


def record() -> None:
    """Make both archives, in the place of older ones. Raises AbcastError, or OSError if a JVM has written none."""
    archive, of_broker = class_archive("spark"), class_archive("broker")
    with tempfile.TemporaryDirectory(dir=archive.parent) as name:
        directory = Path(name)
        broker_partial = directory / of_broker.name
        with EmbeddedBroker(directory / "broker", port=0, progress=lambda _: None, archive_to=broker_partial) as broker:
            connection = Connection(broker.bootstrap_servers)
            create_topics(connection, _GROUP, [_SITE])
            partial = directory / archive.name
            spark = build_session("abcast training", archive_to=partial)
            try:
                options = JobOptions(connection, _SITE, directory)
                with running(job_classes(["sequence", "ledger"]), spark, options):
                    _exercise(connection, directory / "ledger")
            finally:
                spark.stop()
                end_jvm(_PATIENCE_S)
            partial.replace(archive)
        broker_partial.replace(of_broker)


def _exercise(connection: Connection, ledger: Path) -> None:
    with Member(_GROUP, f"{_SITE}/trainer", connection=connection) as member:
        for _ in range(_MESSAGES):
            member.broadcast(b"x", headers=[("name", b"value")]).result(_PATIENCE_S)
        deadline = time.monotonic() + _PATIENCE_S
        while read_table_state(ledger).last_seqno.get(_GROUP, 0) < _MESSAGES and time.monotonic() < deadline:
            time.sleep(0.1)


if __name__ == "__main__":
    say("Recording the classes of Spark and Kafka, so that they start faster from now on (about a minute).")
    try:
        record()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as problem:  # noqa: BLE001 - whatever it is, all works without the archive
        sys.stderr.write(f"That failed, so Spark or Kafka will take some seconds more to start: {problem}\n")
