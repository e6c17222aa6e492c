"""The demo deletes its earlier data, and leaves no process behind when it is interrupted."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError, URLError
from xml.etree import ElementTree

import pytest

from connectors.diagnosis import check
from connectors.testing import MemoryConnection, SequencerThread
from jobs.demo import demo
from jobs.demo.cast import DemoProcesses
from jobs.demo.demo import MARKER, _empty_directory
from jobs.demo.processes import Started
from jobs.demo.sites import _page
from ordering.base.errors import EnvironmentProblem, UsageError
from tests.cli.process import ABCAST, background
from tests.waiting import WAIT, eventually


def test_only_a_demos_directory_is_deleted(tmp_path: Path) -> None:
    mine = tmp_path / "demo"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="not from a demo, and is not deleted"):
        _empty_directory(tmp_path)
    assert (mine / "thesis.txt").read_text() == "years of work"
    with pytest.raises(UsageError, match="can't be written"):
        _empty_directory(mine / "thesis.txt")
    (mine / MARKER).touch()
    assert [path.name for path in _empty_directory(tmp_path).iterdir()] == [MARKER]


@pytest.mark.slow
def test_a_job_that_does_not_start(tmp_path: Path) -> None:
    """The error shows the job's last line."""
    job = Started("abcast", ["run", "--bootstrap-servers", "foo:bar"], tmp_path / "run.log")
    with pytest.raises(EnvironmentProblem, match=r"'foo:bar' is no Kafka server"):
        job.await_ready(60)
    job.stop()


@pytest.mark.slow
def test_the_page_of_several_sites(capsys: pytest.CaptureFixture[str]) -> None:
    """The page answers while the demo runs, for each site."""
    sites: Any = SimpleNamespace(
        connections={"nyc": MemoryConnection(), "sfo": MemoryConnection()}, heard_at=lambda _: ()
    )
    with _page(sites):
        address = capsys.readouterr().err.split()[-1]
        with urllib.request.urlopen(f"{address}/healthz", timeout=WAIT) as answer:
            assert answer.read() == b"starting\n"
        with pytest.raises(HTTPError) as refused:
            urllib.request.urlopen(f"{address}/api/order?group=demo&site=lon", timeout=WAIT)
        assert refused.value.code == 404
    with pytest.raises(URLError):
        urllib.request.urlopen(f"{address}/healthz", timeout=WAIT)


class Jobs:
    """The demo's jobs in memory: one sequencer after another."""

    def __init__(self, connection: MemoryConnection, cleanup: ExitStack) -> None:
        self._connection, self._cleanup = connection, cleanup
        self._start()

    def _start(self) -> None:
        self._sequencer = SequencerThread(self._connection, "demo", "local").__enter__()
        self._cleanup.push(self._sequencer)

    def kill_the_sequencer(self) -> None:
        self._sequencer.__exit__(None, None, None)
        self._start()

    def start_the_ledger(self) -> None: ...

    def check(self) -> None: ...


@pytest.mark.slow
def test_the_play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The demo without its processes: the turns of the speakers, a takeover as shown, the picture and the verdict."""
    monkeypatch.setattr(demo, "SPEAKING_SECONDS", 2.0)
    monkeypatch.setattr(check, "check_ledger", lambda *_: None)
    monkeypatch.setattr(demo, "_query", lambda *_, **__: None)
    connection = MemoryConnection()
    connection.create("demo", "local")
    lines = {f"local/m{number}": [b"%d" % count for count in range(40 + number)] for number in range(4)}
    with ExitStack() as cleanup:
        jobs = Jobs(connection, cleanup)
        cast = DemoProcesses(connection, "demo", "local", lines, tmp_path / "member.log")
        cast.mortal = None  # it would be a process
        with cast:
            survived, last = demo._perform(cast, jobs)  # type: ignore[arg-type]
        assert not demo._conclude(connection, tmp_path, cast, survived, last, is_feed=False)
    shown = capsys.readouterr().out
    assert "every promise holds" in shown
    assert re.search(r"in epoch \d after 1", shown)
    assert len(set(re.findall(r"observer-\d: 166 deliveries, digest (\w+)", shown))) == 1
    ElementTree.parse(tmp_path / "order.svg")
    # They speak at the same time: each has begun before any of them has ended.
    senders = [delivery.sender for delivery in cast.observers["observer-1"].taken]
    ends = [len(senders) - 1 - senders[::-1].index(name) for name in lines]
    assert max(map(senders.index, lines)) < min(ends)


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_stays(tmp_path: Path) -> None:
    """Its page answers, with payloads, after the verdict, until Ctrl-C; then nothing runs there."""
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"line {number}\n" for number in range(40)))
    options = ("--engine", "process", "--members", "2", "--stay")
    with background(ABCAST, "demo", "--data", tmp_path, "--input", file, *options, cwd=tmp_path) as shown:
        shown.wait_for("stays, until Ctrl-C", 200)
        said = "".join(shown.lines)
        assert "every promise holds" in said
        [address] = re.findall(r"the order as it comes: (http://localhost:\d+)\n", said)
        with urllib.request.urlopen(f"{address}/api/order?group=demo&site=local", timeout=WAIT) as answer:
            payloads = {each["payload"] for each in json.load(answer)["records"] if each["kind"] == "message"}
        assert "line 0" in payloads
        shown.process.send_signal(signal.SIGINT)
        assert shown.process.wait(timeout=100) == 0
        assert "everything is stopped" in "".join(shown.lines)
        assert "Traceback" not in "".join(shown.lines)
        eventually(lambda: not running(str(tmp_path / "demo")), what="nothing runs there")


def running(text: str) -> list[str]:
    """Return the processes whose command lines have that text."""
    shown = subprocess.run(["ps", "-ww", "-eo", "pid,args"], capture_output=True, text=True).stdout.splitlines()
    return [line for line in shown if text in line]


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("how", "engine"), [(signal.SIGINT, "process"), (signal.SIGKILL, "spark")])
def test_interrupted(tmp_path: Path, how: signal.Signals, engine: str) -> None:
    """The demo leaves no process running and shows no traceback, also if it is killed with a JVM below it."""
    with background(ABCAST, "demo", "--data", tmp_path, "--engine", engine, cwd=tmp_path) as shown:
        shown.wait_for("members join")
        shown.process.send_signal(how)
        shown.process.wait(timeout=100)
        said = "".join(shown.lines)
        assert "Traceback" not in said
        assert ("stopping" in said) is (how is signal.SIGINT)
        eventually(lambda: not running(str(tmp_path / "demo")), what="nothing runs there")
