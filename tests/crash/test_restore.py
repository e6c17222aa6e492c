"""The drill: a Kafka is wiped while a group lives, and `abcast restore` brings the group back from its ledger."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import delete_topics, find_topics
from connectors.ledger.table_state import read_table_state
from connectors.local.broker import EmbeddedBroker
from jobs.cli import app
from ordering.base.errors import HistoryRestored, PositionLost
from tests.crash.processes import ABCAST, Process
from tests.waiting import eventually

pytestmark = [pytest.mark.long, pytest.mark.crash, pytest.mark.broker, pytest.mark.timeout(300)]

GROUP, LEAP = "drill", 1000


class Site:
    """A Kafka of its own, with the jobs' tables beside it."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.data = directory, directory / "data"
        self.broker = EmbeddedBroker(directory / "kafka", port=0, progress=lambda _: None)
        self.started = 0

    def abcast(self, *arguments: object, said: str = "") -> str:
        """Run a command to its end; return what it printed. Raises its AbcastError."""
        options = ["--group", GROUP, "--bootstrap-servers", self.broker.bootstrap_servers, *arguments[1:]]
        words = [*str(arguments[0]).split(), *map(str, options)]
        done = CliRunner().invoke(app, words, input=said, catch_exceptions=False, standalone_mode=False)
        return done.stdout

    def publish(self, count: int, *more: object) -> int:
        lines = "".join(f"{number}\n" for number in range(count))
        told = json.loads(self.abcast("publish", "--member", "alice", "--json", *more, said=lines))
        return int(told["last_seqno"])

    @contextmanager
    def job(self, command: str) -> Iterator[None]:
        """Run a job of the process engine; kill it at the end."""
        self.started += 1
        options = ["--engine", "process", "--bootstrap-servers", self.broker.bootstrap_servers]
        job = Process(f"{command}-{self.started}", [ABCAST, command, *options, "--data", self.data], self.directory)
        try:
            job.wait_ready()
            yield
        finally:
            print(job.tail())
            job.kill()

    def is_in_ledger(self, seqno: int) -> bool:
        ledger = self.data / "ledger"
        return ledger.exists() and read_table_state(ledger).last_seqno.get(GROUP, 0) >= seqno


@pytest.mark.parametrize("how", ["wiped", pytest.param("deleted", marks=pytest.mark.soak)])
def test_a_kafka_that_is_gone(tmp_path: Path, how: str) -> None:
    """`wiped`: its directory is gone. `deleted`: only the topics are, by hand."""
    site = Site(tmp_path)
    outbox = "--outbox", tmp_path / "alice.outbox"
    site.broker.start()
    try:
        site.abcast("topics create")
        with site.job("run"):
            last = site.publish(300, *outbox)
            assert len(site.abcast("deliver", "--member", "bob", "--count", 10).splitlines()) == 10
            eventually(lambda: site.is_in_ledger(last), what="the ledger has it")
        with site.job("sequence"):
            seen = site.publish(40, *outbox)
            got = site.abcast("deliver", "--member", "olga", "--until-end", "--json").splitlines()
        assert [json.loads(line)["seqno"] for line in got][-1] == seen == last + 40
        if how == "wiped":
            site.broker.kill()
            shutil.rmtree(site.broker.directory)
            site.broker = EmbeddedBroker(tmp_path / "kafka", port=0, progress=lambda _: None)
            site.broker.start()
        else:
            connection = Connection(site.broker.bootstrap_servers)
            delete_topics(connection, find_topics(connection))
            eventually(lambda: not find_topics(connection), what="the topics are gone")

        options = "--data", site.data, "--leap", LEAP
        assert "topics are made anew" in site.abcast("restore", *options, "--dry-run")
        done = json.loads(site.abcast("restore", *options, "--json"))
        assert (done["last"], done["lost"]) == (last, {"first": last + 1, "last": last + LEAP})
        with site.job("run"):
            assert site.publish(50, *outbox) == last + LEAP + 50
            with pytest.raises(HistoryRestored, match=f"seqnos {last + 1} to {seen}"):
                site.abcast("deliver", "--member", "olga", "--from-seqno", seen + 1, "--remember")
            with pytest.raises(PositionLost, match=f"up to seqno {last}"):
                site.abcast("deliver", "--member", "bob", "--until-end")
            rest = site.abcast("deliver", "--member", "bob", "--from-seqno", 11, "--remember", "--until-end", "--json")
            eventually(lambda: site.is_in_ledger(last + LEAP + 50), what="the ledger has it")
        assert [json.loads(line)["seqno"] for line in rest.splitlines()] == [
            *range(11, last + 1),
            *range(last + LEAP + 1, last + LEAP + 51),
        ]
        logs = tmp_path / "bob.jsonl"
        logs.write_text(rest, encoding="utf-8")
        assert site.abcast("check", "--data", site.data, "--deliveries", logs).endswith("every promise holds\n")
        assert "was restored up to seqno" in site.abcast("restore", *options)
    finally:
        site.broker.stop()
