"""`abcast deliver --since`: from the first message that is that young, in Kafka, in the ledger, and in packs."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from connectors import Member
from connectors.client.deliveries.since import seqno_since
from connectors.kafka.topics.upgrade import upgrade
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from jobs.terminal.times import time_ms
from ordering.base.errors import HistoryUnavailable, UsageError
from tests.cli.here import abcast_here
from tests.ledger.test_process_ledger import has_all, writing
from tests.waiting import WAIT

SITE = "nyc"
HOURS_AGO = [5, 3, 1]
"""The age of each message of `alice`: seqnos 1 to 3, 4 to 6 and 7 to 9."""


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> MemoryConnection:
    """Return a Kafka with three messages of each age, in packs; `abcast deliver` finds it."""
    connection = MemoryConnection()
    connection.create("g", SITE)
    upgrade(connection, "g", SITE)
    monkeypatch.setattr("jobs.deliver.connection_to", lambda *_: connection)
    for hours in HOURS_AGO:
        connection.topics.ahead_ms = -hours * 3_600_000
        with SequencerThread(connection, "g", SITE), Member("g", f"{SITE}/alice", connection=connection) as alice:
            alice.broadcast_many([b"%d" % hours] * 3).result(WAIT)
    connection.topics.ahead_ms = 0
    return connection


def first(cwd: Path, since: str, *options: str) -> int | None:
    """Return the first seqno that the command prints; None without one."""
    line = ("deliver", "-g", "g", "-m", f"{SITE}/bob", "--since", since, "--until-end", "--json", *options)
    done = abcast_here(*line, cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    seqnos = [json.loads(row)["seqno"] for row in done.stdout.splitlines()]
    if not seqnos:
        return None
    assert "--count" in options or seqnos[-1] == 9
    assert seqnos == list(range(seqnos[0], seqnos[0] + len(seqnos)))
    return int(seqnos[0])


@pytest.mark.usefixtures("kafka")
def test_from_the_first_message_that_is_that_young(tmp_path: Path) -> None:
    """A pack has one time."""
    assert [first(tmp_path, since) for since in ("7d", "4h", "7200s", "10m")] == [1, 4, 7, None]
    at = datetime.fromtimestamp(time.time() - 4 * 3600, timezone.utc)
    assert first(tmp_path, at.isoformat()) == 4
    assert first(tmp_path, f"{at:%Y-%m-%dT%H:%M:%SZ}") == 4
    assert first(tmp_path, "2100-01-01") is None


@pytest.mark.usefixtures("kafka")
def test_the_position_stays(tmp_path: Path) -> None:
    """Unless the run is to be remembered."""
    rest = ("deliver", "-g", "g", "-m", f"{SITE}/bob", "--until-end")
    assert first(tmp_path, "2h") == 7
    assert len(abcast_here(*rest, "--count", "2", cwd=tmp_path).stdout.splitlines()) == 2
    assert first(tmp_path, "2h", "--remember", "--count", "1") == 7
    assert abcast_here(*rest, cwd=tmp_path).stdout.split("\t")[0] == "8"


@pytest.mark.slow
def test_messages_that_kafka_has_dropped(kafka: MemoryConnection, tmp_path: Path) -> None:
    """The ledger has their times. Without it, it is not known which of them are young enough."""
    with writing(kafka, tmp_path):
        has_all(tmp_path, 9)
    kafka.topics.drop(f"abcast.g.data.{SITE}", kafka_offset(kafka, 6))
    ledger = ("--ledger", str(tmp_path / "ledger"))
    assert [first(tmp_path, since, *ledger) for since in ("7d", "4h", "2h", "10m")] == [1, 4, 7, None]
    assert first(tmp_path, "10m") is None
    line = ("deliver", "-g", "g", "-m", f"{SITE}/bob", "--since", "4h", "--until-end")
    done = abcast_here(*line, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "give the group's ledger, or a later time." in done.stderr


def kafka_offset(kafka: MemoryConnection, behind_seqno: int) -> int:
    """Return the offset of the next sequencer's first record behind a seqno: Kafka may drop all below."""
    at_ms = round(time.time() * 1000) - 2 * 3_600_000
    assert seqno_since(kafka, "g", SITE, at_ms) == behind_seqno + 1
    log = next(log for place, log in kafka.topics.partitions.items() if place.topic == f"abcast.g.data.{SITE}")
    return next(record.offset for record in log if record.timestamp >= at_ms)


def test_an_empty_ledger_has_no_time(kafka: MemoryConnection, tmp_path: Path) -> None:
    kafka.topics.drop(f"abcast.g.data.{SITE}", kafka_offset(kafka, 6))
    at_ms = round(time.time() * 1000) - 4 * 3_600_000
    with pytest.raises(HistoryUnavailable):
        seqno_since(kafka, "g", SITE, at_ms)
    with pytest.raises(UsageError, match="there is no ledger in"):
        seqno_since(kafka, "g", SITE, at_ms, tmp_path / "none")


@pytest.mark.parametrize("text", ["99999d", "0001-01-01"])
def test_before_the_epoch(text: str) -> None:
    """Kafka takes negative times for something else."""
    assert time_ms(text, "--since") == 0


@pytest.mark.parametrize("text", ["", "10", "m", "0s", "yesterday", "10 m", "2026-13-01", "9999999d"])
def test_no_time(text: str) -> None:
    with pytest.raises(UsageError, match="--since is"):
        time_ms(text, "--since")


def test_two_beginnings(tmp_path: Path) -> None:
    done = abcast_here("deliver", "-g", "g", "-m", "a", "--since", "1h", "--from-seqno", "3", cwd=tmp_path)
    assert (done.returncode, "give one of them" in done.stderr) == (2, True)
