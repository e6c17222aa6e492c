"""`abcast bench` on a broker: its figures, and nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import find_topics
from connectors.local.broker import EmbeddedBroker
from jobs.member.bench import MeasuredWay
from jobs.terminal.interruption import EXIT_INTERRUPTED
from ordering.base.errors import NotOrderedInTime
from tests.cli.here import abcast_here
from tests.cli.process import ABCAST, background
from tests.waiting import WAIT, eventually

SITE = "benched"


def bench_topics(broker: EmbeddedBroker) -> list[str]:
    topics = find_topics(Connection(broker.bootstrap_servers))
    return [str(topic) for topic in topics if topic.group.startswith("bench-")]


@pytest.fixture
def kafka(broker: EmbeddedBroker) -> dict[str, str]:
    return {"ABCAST_BOOTSTRAP_SERVERS": broker.bootstrap_servers, "ABCAST_SITE": SITE}


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.timeout(400)
def test_figures(broker: EmbeddedBroker, kafka: dict[str, str], tmp_path: Path) -> None:
    """Both ways carry all messages; the ratio is theirs."""
    line = ("bench", "--rate", "100", "--size", "64", "--for", "2s", "--json")
    done = abcast_here(*line, cwd=tmp_path, variables=kafka)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert (row["sequencer"], row["replication_factor"], row["seconds"]) == ("process", 1, 2.0)
    for way in ("kafka", "abcast"):
        assert 100 <= row[way]["messages"] <= 200
        assert 0 < row[way]["p50_ms"] <= row[way]["p99_ms"] <= row[way]["max_ms"]
    assert row["ratio"]["p50_ms"] == row["abcast"]["p50_ms"] / row["kafka"]["p50_ms"]
    assert bench_topics(broker) == []


@pytest.mark.broker
@pytest.mark.timeout(400)
def test_ctrl_c_at_the_start(broker: EmbeddedBroker, kafka: dict[str, str], tmp_path: Path) -> None:
    """Its processes are starting. A terminal sends the signal to them, too."""
    with background(ABCAST, "bench", cwd=tmp_path, **kafka) as bench:
        bench.wait_for("removed at the end")
        eventually(lambda: len(bench_topics(broker)) == 14)
        os.killpg(bench.process.pid, signal.SIGINT)
        assert bench.process.wait(timeout=WAIT) == EXIT_INTERRUPTED
        assert "Traceback" not in "".join(bench.lines)
    assert bench_topics(broker) == []


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.timeout(400)
def test_ctrl_c_removes_the_group(broker: EmbeddedBroker, kafka: dict[str, str], tmp_path: Path) -> None:
    """The sequencer is one that serves the site, and goes on."""
    sequence = (ABCAST, "sequence", "--engine", "process", "--groups", "bench-*", "--data", tmp_path / "data")
    line = (ABCAST, "bench", "--existing", "--for", "1d")
    with background(*sequence, cwd=tmp_path, **kafka) as sequencer:
        sequencer.wait_for("ready")
        with background(*line, cwd=tmp_path, **kafka) as bench:
            bench.wait_for("removed at the end")
            eventually(lambda: len(bench_topics(broker)) == 14)
            time.sleep(3.0)  # it is anywhere: before, or amid the first messages
            bench.process.send_signal(signal.SIGINT)
            assert bench.process.wait(timeout=WAIT) == EXIT_INTERRUPTED
            assert "Traceback" not in "".join(bench.lines)
        assert bench_topics(broker) == []
        assert sequencer.terminate() == 0


@pytest.mark.slow
def test_a_message_is_late_from_when_it_was_due() -> None:
    """A sender that is held up does not hide the delay. The receiver has all that was sent."""
    passed = list[bytes]()

    def hold_up(payload: bytes) -> None:
        if not passed:
            time.sleep(0.2)
        passed.append(payload)

    def receive() -> Iterator[bytes]:
        at = 0
        while at < 40:
            time.sleep(0.001)
            news = passed[at:]
            yield from news
            at += len(news)

    window = MeasuredWay("test", hold_up, receive()).measure(100, 16, 0.4)
    assert len(window.latencies) == len(passed)
    assert {len(payload) for payload in passed} == {16}
    assert max(window.latencies) >= 190
    assert sum(each > 20 for each in window.latencies) >= 15  # the next ones were due while the first was held up
    assert window.behind_s >= 0.18


def test_messages_that_do_not_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.member.bench.PATIENCE_S", 0.1)
    with pytest.raises(NotOrderedInTime, match="test: 0 of 5 messages arrived, then none"):
        MeasuredWay("test", lambda _: None, iter(())).measure(50, 8, 0.1)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--for", "soon"], "--for is 'soon': give a number and s, m, h or d, such as 1h, and 1s or more."),
        (["--size", "7"], "Invalid value for '--size'"),
        (["--rate", "-1"], "Invalid value for '--rate'"),
        (["--rate", "inf"], "--rate is inf: give a number."),
    ],
)
def test_a_mistake(tmp_path: Path, line: list[str], said: str) -> None:
    done = abcast_here("bench", *line, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.split())
