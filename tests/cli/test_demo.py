"""The demo's own care: what it deletes, and what it leaves behind when it is interrupted."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from jobs.demo import MARKER, _empty_directory
from jobs.demo_processes import Started
from ordering.errors import EnvironmentProblem, UsageError
from tests.cli.process import ABCAST, background
from tests.waiting import eventually


def test_only_a_demos_directory_is_deleted(tmp_path: Path) -> None:
    mine = tmp_path / "demo"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="not made by a demo, so it stays"):
        _empty_directory(tmp_path)
    assert (mine / "thesis.txt").read_text() == "years of work"
    with pytest.raises(UsageError, match="can't be written"):
        _empty_directory(mine / "thesis.txt")
    (mine / MARKER).touch()
    assert [path.name for path in _empty_directory(tmp_path).iterdir()] == [MARKER]


def test_a_job_that_does_not_start(tmp_path: Path) -> None:
    """Its last line is told."""
    job = Started("abcast", ["run", "--bootstrap-servers", "foo:bar"], tmp_path / "run.log")
    with pytest.raises(EnvironmentProblem, match=r"'foo:bar' is no Kafka server"):
        job.await_ready(60)
    job.stop()


def running(text: str) -> list[str]:
    """The processes whose command lines have that text."""
    shown = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True).stdout.splitlines()
    return [line for line in shown if text in line]


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_interrupted(tmp_path: Path, how: signal.Signals) -> None:
    """Nothing is left running, and no traceback is shown, also if it is killed."""
    with background(ABCAST, "demo", "--data", tmp_path, cwd=tmp_path) as demo:
        demo.wait_for("members join")
        demo.process.send_signal(how)
        demo.process.wait(timeout=100)
        said = "".join(demo.lines)
        assert "Traceback" not in said
        assert ("stopping" in said) is (how is signal.SIGINT)
        eventually(lambda: not running(str(tmp_path / "demo")), what="nothing runs there")
