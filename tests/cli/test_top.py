"""`abcast top`, and `abcast status --until-healthy`, of groups on a Kafka in memory."""

from __future__ import annotations

import io
import itertools
import json
import signal
import time
from datetime import datetime
from pathlib import Path

import pytest
from rich.console import Console

from connectors.diagnosis.forward_end import Gap
from connectors.diagnosis.shared_reading import LastReading
from connectors.diagnosis.status import GroupStatus
from connectors.diagnosis.statuses import Statuses
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.codec.epochs import encode_claim
from connectors.kafka.log.liveness import ALIVE, NONE, Liveness
from connectors.kafka.log.sign_of_life import SignsOfLife
from connectors.testing.memory_kafka import MemoryConnection
from jobs.inspection import status
from jobs.inspection.top import Sight, screen_of
from jobs.terminal import interruption
from ordering.base.errors import BrokerUnreachable
from tests.cli.here import abcast_here

WELL = GroupStatus("well", Liveness(ALIVE), 100, 1, 0, 0, 0, lag=0, rate=3.0, duplicates=0, dead_letters=0, relays={})


def reading(*rows: GroupStatus, at_s: float = 0.0, error: str = "") -> LastReading[Statuses]:
    return LastReading(None if error else Statuses(rows), error, at_s, 0.0)


def shown(sight: Sight, height: int = 40) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(screen_of(sight, ["the ledger is away\x1b[2J"], height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_growth_of_two_readings() -> None:
    """A group that was made anew, and one that is new, have none yet. An outage changes no figure."""
    anew, new = WELL._replace(group="anew"), WELL._replace(group="new")
    first = Sight("nyc", reading(WELL, anew, at_s=10))
    assert first.per_s(WELL) == (None, None)
    later = WELL._replace(last_seqno=130, lag=8)
    sight = first.next(reading(later, anew._replace(last_seqno=7), new, at_s=14))
    assert sight.per_s(later) == (7.5, 2.0)
    assert [sight.per_s(row) for row in sight.statuses.rows[1:]] == [(None, None)] * 2
    for same in (reading(later, at_s=14), None):
        silent = sight.next(same)
        assert silent.newest == sight.newest
        assert silent.error.startswith("Kafka has not answered for ")
    assert silent.next(reading(later, at_s=16)).error == ""
    now = Sight("nyc", reading(later, at_s=time.monotonic()))
    assert now.next(now.newest) is now  # there may be a newer one soon
    away = sight.next(reading(error="no broker answers."))
    assert (away.error, away.per_s(later)) == ("no broker answers.", (7.5, 2.0))
    assert away.next(reading(later, at_s=16)).error == ""


def test_the_wrong_ones_are_first() -> None:
    """Stuck ones, then those with a sentence, then the busiest; the sentences are the ones of `abcast status`."""
    gap = WELL._replace(group="gap", gaps=[Gap("nyc/a", 1, 3, 2)])
    stuck = WELL._replace(group="stuck", sequencer=Liveness(NONE), lag=5)
    busy = WELL._replace(group="busy", rate=9.0)
    text = shown(Sight("nyc", reading(WELL, gap, busy, stuck)))
    lines = text.splitlines()
    assert lines[0].startswith("4 groups at site nyc, ")
    assert lines[0].endswith(": 3 to look at")
    assert lines[1].startswith("stuck: the group never had a sequencer: start `abcast run`")
    assert "gap: nyc/a sent 2 records behind a gap, dropped until it sends local seqno 3" in text
    assert "the ledger is away\\x1b[2J" in text
    rows = [line.split()[:2] for line in lines if "alive" in line or " none " in line]
    assert rows == [["!", "stuck"], ["!", "gap"], ["busy", "alive"], ["well", "alive"]]
    assert "2 more: see `abcast status`" in shown(Sight("nyc", reading(gap, stuck)), height=4)


@pytest.fixture
def deserted(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> MemoryConnection:
    """Return a Kafka with a message that no sequencer orders. Commands find no other."""
    kafka.producer().send("abcast.g.forward.nyc", b"x", b"nyc/a", forward_headers(1, 1))
    monkeypatch.setattr("connectors.diagnosis.statuses.find_groups", lambda *_: ["g"])
    monkeypatch.setattr(
        "connectors.diagnosis.status.find_topics",
        lambda _: kafka.topics_of("g", "forward") + kafka.topics_of("g", "data"),
    )
    monkeypatch.setattr("connectors.diagnosis.status.wrong_in_logs", lambda *_: {})
    monkeypatch.setattr(status, "connection_to", lambda *_: kafka)
    monkeypatch.setattr("jobs.inspection.top.connection_to", lambda *_: kafka)
    return kafka


def test_a_reading_is_a_line(deserted: MemoryConnection, tmp_path: Path) -> None:
    """Without a terminal: what `status --json` says, and the growth from the second line on."""
    done = abcast_here("top", "--site", "nyc", "--count", "2", "--every-s", "0.1", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    said = json.loads(abcast_here("status", "--site", "nyc", "--json", cwd=tmp_path).stdout)
    [row], [then] = first["groups"], second["groups"]
    assert (row.pop("ordered_per_s"), row.pop("lag_per_s")) == (None, None)
    assert (then["ordered_per_s"], then["lag_per_s"], first["site"]) == (0.0, 0.0, "nyc")
    assert row == said
    assert row["wrong"][0].startswith("the group never had a sequencer")
    assert first["at"] < second["at"]


def test_until_healthy(deserted: MemoryConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for Kafka, then for a sequencer. The table is shown once."""
    looks: list[int] = []

    def look() -> str:
        looks.append(len(looks))
        if len(looks) == 1:
            raise BrokerUnreachable("nobody answers.")
        if len(looks) == 4:
            value, headers = encode_claim(0)
            deserted.producer().send("abcast.g.epoch.nyc", value=value, headers=headers)
            SignsOfLife(deserted, "nyc", "spark").give({"g": 1}, {}, now=0)
        return "g" if len(looks) > 2 else "other"

    monkeypatch.setattr("connectors.diagnosis.statuses.find_groups", lambda *_: [look()])
    monkeypatch.setattr(status, "WATCH_S", 0.01)
    done = abcast_here("status", "--site", "nyc", "-g", "g", "--until-healthy", cwd=tmp_path)
    none_yet = "abcast: there is no group 'g' at site nyc: `abcast topics list` shows all.\n"
    assert (done.returncode, done.stderr, len(looks)) == (0, f"abcast: nobody answers.\n{none_yet}", 4)
    assert done.stdout.count("alive") == 1


@pytest.mark.parametrize("groups", [["g"], []])
@pytest.mark.usefixtures("deserted")
def test_an_interrupted_wait_is_no_success(groups: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there is no group: no group is healthy then."""
    monkeypatch.setattr(interruption, "_now", interruption._Now())  # the signals of this process
    looks: list[int] = []

    def look(*_: object) -> list[str]:
        looks.append(len(looks))
        if len(looks) == 2:
            signal.raise_signal(signal.SIGTERM)
        return groups

    monkeypatch.setattr("connectors.diagnosis.statuses.find_groups", look)
    monkeypatch.setattr(status, "WATCH_S", 0.01)
    done = abcast_here("status", "--site", "nyc", "--until-healthy", cwd=tmp_path)
    assert (done.returncode, done.stderr, len(looks)) == (130, "Aborted.\n", 2)


@pytest.mark.slow
@pytest.mark.usefixtures("deserted")
def test_no_line_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With slow readings there are fewer lines."""

    def slow(*_: object) -> list[str]:
        time.sleep(0.3)
        return ["g"]

    monkeypatch.setattr("connectors.diagnosis.statuses.find_groups", slow)
    done = abcast_here("top", "--site", "nyc", "--count", "3", "--every-s", "0.1", cwd=tmp_path)
    times = [datetime.fromisoformat(json.loads(line)["at"]) for line in done.stdout.splitlines()]
    assert all((late - early).total_seconds() > 0.2 for early, late in itertools.pairwise(times))


@pytest.mark.usefixtures("deserted")
def test_ctrl_c_ends_the_first_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruption, "_now", interruption._Now())
    monkeypatch.setattr("connectors.diagnosis.statuses.find_groups", lambda *_: signal.raise_signal(signal.SIGINT))
    done = abcast_here("top", "--site", "nyc", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("seconds", ["inf", "1e10", "nan", "0"])
@pytest.mark.usefixtures("deserted")
def test_a_time_that_is_none(seconds: str, tmp_path: Path) -> None:
    done = abcast_here("top", "--site", "nyc", "--count", "2", "--every-s", seconds, cwd=tmp_path)
    assert done.returncode == 2
    assert "--every-s" in done.stderr
