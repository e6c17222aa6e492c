"""The pages' commands and programs run as shown: the README's quickstart, the Python examples, the demo."""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from connectors.ledger.table import read_table_state
from connectors.local.cluster import HOST, free_ports
from tests.cli.process import abcast, background, environment
from tests.papers import README, doc, fences, section


def shown_commands() -> list[tuple[str, list[str]]]:
    """The quickstart's commands with the output shown below each."""
    shown: list[tuple[str, list[str]]] = []
    for line in "".join(fences(section(README, "## Quickstart"), "console")).splitlines():
        if line.startswith("$ "):
            shown.append((line.removeprefix("$ "), []))
        else:
            shown[-1][1].append(line)
    return shown


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_quickstart_and_examples(tmp_path: Path) -> None:
    """Each command of the quickstart works and prints the output shown; so does each Python example."""
    commands = shown_commands()
    job, before, behind = "abcast run", commands[:2], commands[3:-1]
    assert (commands[2][0], commands[-1][0]) == (job, "abcast broker stop")
    [port] = free_ports(HOST, 1)
    variables = {
        "ABCAST_BROKER_START_PORT": str(port),
        "ABCAST_BOOTSTRAP_SERVERS": f"127.0.0.1:{port}",
    }

    def run(command: str, shown: list[str]) -> None:
        done = subprocess.run(
            command, shell=True, capture_output=True, text=True, cwd=tmp_path, env=environment(**variables), timeout=200
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        missing = [line for line in shown if line not in done.stdout.splitlines()]
        assert not missing, f"{command}\n{done.stdout}"

    try:
        for command, shown in before:
            run(command, shown)
        with background(*job.split(), cwd=tmp_path, **variables) as running:
            running.wait_for("ready")
            for command, shown in behind:
                if "query" in command:
                    await_ledger(tmp_path / "abcast-data" / "ledger", 1000)
                run(command, shown)
            examples = [*fences(README, "python"), *fences(doc("records"), "python")]
            said = [run_example(code, port, tmp_path) for code in examples]
            assert said == ["1001 local/alice b'buy 100'\n", "", ""]
            run(
                "abcast deliver --group orders --member dave --from-seqno 1003 --count 1",
                ["1003\tlocal/carol\tsell 60"],
            )
            run(
                "abcast deliver --group orders --member erin --from-seqno 1003 --casts --count 3",
                ["1003\tlocal/carol\tsell 60", "0\tlocal/ticker\tprice 42", "0\tlocal/ticker\tprice 43"],
            )
            running.process.send_signal(signal.SIGINT)
            assert running.process.wait(timeout=60) == 0
    finally:
        run(*commands[-1])


def await_ledger(table: Path, seqno: int) -> None:
    deadline = time.monotonic() + 120
    while read_table_state(table).last_seqno.get("orders", 0) < seqno:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def run_example(code: str, port: int, cwd: Path) -> str:
    """Run a Python example against the broker on this port; return what it prints."""
    assert "127.0.0.1:9092" in code
    here = code.replace("127.0.0.1:9092", f"127.0.0.1:{port}")
    if importlib.util.find_spec("abcast") is None:
        here = here.replace("from abcast import", "from connectors import")
    done = subprocess.run([sys.executable, "-c", here], capture_output=True, text=True, cwd=cwd, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("engine", ["spark", pytest.param("process", marks=pytest.mark.soak)])
def test_demo(tmp_path: Path, engine: str) -> None:
    """`make demo`, on a small file: one order for all observers, a killed sequencer and a killed member survived."""
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"line {number}\n" for number in range(90)))
    options = ("--input", lines, "--members", "3", "--data", "data", "--engine", engine)
    done = abcast("demo", *options, cwd=tmp_path, timeout=200)
    assert done.returncode == 0, done.stderr
    digests = re.findall(r"observer-\d: \d+ deliveries, digest (\w+)", done.stdout)
    assert len(digests) == 3
    assert len(set(digests)) == 1
    assert "every promise holds" in done.stdout
    assert re.search(r"kill -9 of the sequencer: .* in epoch \d+ after 1", done.stdout)
    assert re.search(r"kill -9 of the member local/member-2: view \d+ without it came", done.stdout)
    picture = ElementTree.parse(tmp_path / "data" / "demo" / "order.svg").getroot()
    assert "One order of" in "".join(picture.itertext())
    assert abcast("broker", "status", "--dir", "data/demo/broker", cwd=tmp_path).returncode == 1
