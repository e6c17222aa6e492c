"""Another history under the same `--data`: each command says so, and no group stops another one."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog
from connectors.local.broker import EmbeddedBroker
from ordering.base.records import MESSAGE
from tests.cli.here import abcast_here
from tests.cli.process import ABCAST, background
from tests.ledger.test_ledger_reading import SCHEMA
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

SITE = "history"


def write_ledger(connection: Connection, group: str, path: Path) -> None:
    """Write the rows that the ledger's job would have written by now."""
    with DataLog(connection, group, SITE) as log:
        rows = [
            {
                **{name: getattr(stored.data, name) for name in ("kind", "sender", "seqno", "epoch")},
                "incarnation": stored.data.incarnation,
                "local_seqno": stored.data.local_seqno,
                "group_name": group,
                "view_id": stored.data.view,
                "data_offset": stored.offset,
                "payload": stored.data.payload,
                "headers": None,
                "sequenced_at": stored.timestamp_ms * 1000,
            }
            for stored in log.records(0, log.end())
            if stored.data.kind == MESSAGE
        ]
    schema = SCHEMA.append(pa.field("sequenced_at", pa.timestamp("us", "UTC")))
    write_deltalake(path, pa.Table.from_pylist(rows, schema=schema), partition_by=["group_name"])


@pytest.mark.long
def test_a_group_that_is_deleted_and_made_anew(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """A sequencer runs, beside another group. Each reader of the ledger names the group, and the remedy."""
    variables = {
        "ABCAST_BOOTSTRAP_SERVERS": broker.bootstrap_servers,
        "ABCAST_SITE": SITE,
        "ABCAST_DATA": str(tmp_path / "data"),
    }

    def run(*arguments: str, text: bytes = b"") -> tuple[int, str]:
        done = abcast_here(*arguments, cwd=tmp_path, variables=variables, text=text)
        assert "Traceback" not in done.stdout + done.stderr
        return done.returncode, done.stdout + done.stderr

    def publish(group: str, count: int) -> None:
        code, said = run("publish", "-g", group, "-m", "alice", "--timeout", "60", text=b"text\n" * count)
        assert code == 0, said

    remedy = "take another --data"
    other = f"has another history of history.anew, up to seqno 10: {remedy}, or another name."
    for group in ("history.stays", "history.anew"):
        assert run("topics", "create", "--group", group, "--site", SITE)[0] == 0
    with background(ABCAST, "sequence", "--engine", "process", cwd=tmp_path, **variables) as sequencer:
        sequencer.wait_for("ready")
        publish("history.stays", 3)
        publish("history.anew", 10)
        write_ledger(Connection(broker.bootstrap_servers), "history.anew", tmp_path / "data" / "ledger")
        assert "another history" not in run("doctor", "-g", "history.anew")[1]
        code, intact = run("check", "-g", "history.anew", "--site", SITE)
        assert code == 0, intact

        assert run("topics", "delete", "-g", "history.anew", "--yes")[0] == 0
        code, created = run("topics", "create", "--group", "history.anew", "--site", SITE)
        assert code == 0
        assert "has another history of history.anew, up to seqno 10: the ledger job skips the group" in created
        for count, said in (0, remedy), (12, other):  # before anything is ordered, and with more than the ledger has
            if count:
                publish("history.anew", count)
            doctor, status = (run(name, "-g", "history.anew") for name in ("doctor", "status"))
            checked = run("check", "-g", "history.anew", "--site", SITE)
            assert (doctor[0], checked[0]) == (1, 3), doctor[1] + checked[1]
            assert said in doctor[1].replace("\n", " ")
            assert said in status[1]
            assert " -10" not in status[1]  # behind a space: a folder may be called pytest-10
            assert "every promise holds" not in checked[1]
        publish("history.stays", 3)
        eventually(lambda: run("status", "-g", "history.stays")[0] == 0, 20)
        assert sequencer.terminate() == 0
    with background(ABCAST, "sequence", "--engine", "process", cwd=tmp_path, **variables) as again:
        again.wait_for("ready")
        publish("history.anew", 1)
        publish("history.stays", 1)
        assert again.terminate() == 0
    assert run("check", "-g", "history.stays", "--site", SITE)[0] == 0
