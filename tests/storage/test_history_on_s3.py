"""Messages that retention dropped from DATA are read from tables on S3: by a member, and for a new site."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path

import pytest

from connectors import Member
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.topics.topics import create_topics
from connectors.local.broker import EmbeddedBroker
from connectors.storage.location import RemotePath
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import HistoryUnavailable
from tests.cli.here import abcast_here
from tests.ledger.ledger_of import effective, write_ledger
from tests.storage.s3_server import S3Server
from tests.waiting import WAIT

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PAYLOADS = [b"%d" % number for number in range(1, 31)]


def old_group(connection: Connection, group: str, site: str, ledger: RemotePath) -> None:
    """Let two sequencers in turn order PAYLOADS; the table has all, DATA the last of them."""
    create_topics(connection, group, [site])
    for payloads in (PAYLOADS[:20], PAYLOADS[20:]):
        with (
            SequencerThread(connection, group, site),
            Member(group, f"{site}/alice", connection=connection) as alice,
        ):
            for payload in payloads:
                alice.broadcast(payload)
            alice.wait_ordered(WAIT)
    with DataLog(connection, group, site) as data:
        log = [stored.data for stored in data.records(0, data.end())]
        last_claimed = max(stored.offset for stored in data.records(0, data.end()) if stored.data.kind == "epoch")
        write_ledger(ledger, effective(log), group)
        with connection.admin() as admin:
            admin.delete_records({data.partition: last_claimed})


@pytest.mark.long
def test_a_member_begins_at_seqno_1(broker: EmbeddedBroker, server: S3Server) -> None:
    """The path is a URL, and the login comes from the environment."""
    connection, ledger = Connection(broker.bootstrap_servers), server.place("old") / "ledger"
    old_group(connection, "old", "nyc", ledger)
    with (
        Member("old", "nyc/bob", connection=connection) as bob,
        pytest.raises(HistoryUnavailable, match=re.escape("Member(ledger=DIR)")),
    ):
        next(iter(bob.deliveries(from_seqno=1, timeout=WAIT)))
    with Member("old", "nyc/bob", connection=connection, ledger=str(ledger)) as bob:
        found = list(islice(bob.deliveries(from_seqno=1, timeout=WAIT), len(PAYLOADS)))
    assert [delivery.payload for delivery in found] == PAYLOADS
    assert [delivery.seqno for delivery in found] == list(range(1, 31))


@pytest.mark.long
def test_a_new_site_gets_the_history(broker: EmbeddedBroker, server: S3Server, tmp_path: Path) -> None:
    connection, ledger = Connection(broker.bootstrap_servers), server.place("added") / "ledger"
    old_group(connection, "added", "nyc", ledger)
    sites = tmp_path / "sites.toml"
    tables = (f'[sites.{site}]\nbootstrap_servers = "{broker.bootstrap_servers}"\n' for site in ("nyc", "sfo"))
    sites.write_text('home = "nyc"\n' + "".join(tables))
    add = ("site", "add", "sfo", "--group", "added", "--sites", sites, "--ledger", str(ledger))
    done = abcast_here(*add, cwd=tmp_path, variables=server.variables)
    assert (done.returncode, "with the history up to seqno 30 of nyc" in done.stdout) == (0, True), done.stderr
    told = json.loads(abcast_here(*add, "--json", cwd=tmp_path, variables=server.variables).stdout)
    assert told == {"group": "added", "site": "sfo", "created": [], "last_seqno_of_ledger": 30}
    with Member("added", "sfo/bob", connection=connection) as bob:
        found = list(islice(bob.deliveries(from_seqno=1, timeout=WAIT), len(PAYLOADS)))
    assert [delivery.payload for delivery in found] == PAYLOADS
    wrong = {**server.variables, "ABCAST_STORAGE_SECRET_ACCESS_KEY": "wrong"}
    refused = abcast_here(*add, cwd=tmp_path, variables=wrong)
    assert (refused.returncode, "does not let us in" in refused.stderr) == (2, True), refused.stderr
