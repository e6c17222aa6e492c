"""`abcast isis` as a user runs it: its output, its end, and its answers to mistakes."""

from __future__ import annotations

import json
import re
import signal
import socket
from pathlib import Path

import pytest

from tests.cli.here import abcast_here
from tests.cli.process import ABCAST, background
from tests.isis.processes import free_ports
from tests.waiting import WAIT

LINE = re.compile(r"0: Processed message (\d+) from sender 0 with seq \((\d+), 0\)\n")


def hostfile(directory: Path, *lines: str) -> Path:
    path = directory / "hosts"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.slow
def test_a_process_prints_its_deliveries_and_stays_until_ctrl_c(tmp_path: Path) -> None:
    """With the short forms; the process stays operational after its last message."""
    (port,) = free_ports(1)
    hosts = hostfile(tmp_path, "127.0.0.1")
    with background(ABCAST, "isis", "-f", hosts, "-i", "0", "-c", "3", "-p", str(port), "-d", cwd=tmp_path) as run:
        run.wait_for("Processed message 3")
        assert run.process.poll() is None
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(timeout=WAIT) == 0
        assert [LINE.fullmatch(line).groups() for line in run.lines] == [("1", "1"), ("2", "2"), ("3", "3")]  # type: ignore[union-attr]


@pytest.mark.slow
def test_deliveries_as_json(tmp_path: Path) -> None:
    [port] = free_ports(1)
    hosts = hostfile(tmp_path, "127.0.0.1")
    with background(ABCAST, "isis", "-f", hosts, "-i", "0", "-c", "1", "-p", str(port), "--json", cwd=tmp_path) as run:
        run.wait_for('"number"')
        row = json.loads(run.lines[0])
    assert row == {"process": 0, "number": 1, "sender": 0, "seq": [row["seq"][0], 0]}


def test_help_teaches(tmp_path: Path) -> None:
    said = abcast_here("isis", "--help", cwd=tmp_path).stdout
    for word in (
        "--hostfile",
        "-f",
        "-h",
        "--id",
        "-i",
        "--count",
        "-c",
        "--delays",
        "-d",
        "--verbose",
        "-v",
        "Example",
    ):
        assert word in said


@pytest.mark.parametrize(
    ("lines", "options", "code", "said"),
    [
        (["127.0.0.1:7001"], ["--id", "1"], 2, "there is no process 1: the hostfile has 0 to 0"),
        (["127.0.0.1"], ["--id", "0"], 2, "line 1 of hosts has no port, and there is no --port"),
        (["127.0.0.1:port"], ["--id", "0"], 2, "line 1 of hosts has a port that is not 1 to 65535"),
        (
            ["nowhere.invalid:7001"],
            ["--id", "0"],
            1,
            "the host 'nowhere.invalid' of the hostfile is not known",
        ),
    ],
    ids=["id", "no port", "bad port", "unknown host"],
)
def test_mistakes(tmp_path: Path, lines: list[str], options: list[str], code: int, said: str) -> None:
    """Each mistake is told in one sentence, without a stack trace."""
    hostfile(tmp_path, *lines)
    done = abcast_here("isis", "--hostfile", "hosts", "--count", "1", *options, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"abcast: {said}")
    assert done.stderr.count("\n") == 1


def test_a_hostfile_that_is_not_there(tmp_path: Path) -> None:
    done = abcast_here("isis", "-f", "nowhere", "-i", "0", "-c", "1", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("abcast: the hostfile nowhere can't be read")


@pytest.mark.slow
def test_processes_with_different_hostfiles_say_so(tmp_path: Path) -> None:
    """The processes never agree: each drops the other's messages."""
    ports = free_ports(3)
    lines = [f"127.0.0.1:{port}" for port in ports]
    other = tmp_path / "other"
    other.mkdir()
    options = ["--hostfile", "hosts", "--count", "1", "--id"]
    hostfile(tmp_path, *lines[:2])
    hostfile(other, *lines)
    with (
        background(ABCAST, "isis", *options, "0", cwd=tmp_path) as one,
        background(ABCAST, "isis", *options, "1", cwd=other),
    ):
        one.wait_for("0: dropping datagrams of another hostfile (said once)")
        assert not [line for line in one.lines if "Processed" in line]


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        hosts = hostfile(tmp_path, f"127.0.0.1:{taken.getsockname()[1]}")
        done = abcast_here("isis", "-f", hosts, "-i", "0", "-c", "1", cwd=tmp_path)
    assert done.returncode == 1
    assert "is in use" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("options", [[], ["--count", "-1"], ["--count", "1", "--drop", "1.5"]], ids=" ".join)
def test_wrong_usage(tmp_path: Path, options: list[str]) -> None:
    done = abcast_here("isis", "--hostfile", "hosts", "--id", "0", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert "Usage: abcast isis" in done.stderr
