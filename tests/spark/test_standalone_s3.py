"""A worker, with tables on S3: it needs only the jars that `abcast package` packs."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors import Member
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import create_topics
from connectors.ledger.table import read_table_state
from connectors.local.broker import EmbeddedBroker
from tests.spark.standalone import master, submit_line, submitted, worker
from tests.storage.s3_server import s3_server
from tests.waiting import eventually

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(400)]

GROUP, SITE = "standalone-s3", "cluster"


def test_executors_write_to_s3(broker: EmbeddedBroker, tmp_path: Path) -> None:
    connection = Connection(broker.bootstrap_servers)
    create_topics(connection, GROUP, [SITE])
    options = ("--bootstrap-servers", broker.bootstrap_servers, "--site", SITE, "--work-dir", "work")
    with s3_server(tmp_path) as server, master(tmp_path) as where, worker(where):
        data = server.place("cluster")
        line = submit_line(where, "--data", str(data))
        with submitted(where, line, *options, variables=server.variables) as job:
            job.wait_for("ready;")
            with Member(GROUP, f"{SITE}/alice", connection=connection) as alice:
                receipts = [alice.broadcast(b"x") for _ in range(20)]
                assert [receipt.result(timeout=120) for receipt in receipts] == list(range(1, 21))
            eventually(
                lambda: read_table_state(data / "ledger").last_seqno.get(GROUP) == 20, what="all on S3", pause=0.5
            )
            assert job.terminate() == 0, "".join(job.lines)
    assert "Traceback" not in "".join(job.lines)
    shipped = {jar.name for jar in (tmp_path / "shipped" / "jars").glob("*.jar")}
    assert "abcast-log-store.jar" in shipped
