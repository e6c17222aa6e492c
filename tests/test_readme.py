"""What the README shows is run as it stands: quickstart, Python examples; what it lists is what the code has."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from connectors.kafka import codec
from connectors.kafka.sites import read_sites
from connectors.ledger.table import read_table_state
from jobs.options import load_config
from ordering.membership import MAX_LEFT, NOT_A_MEMBER
from ordering.sequencer import BAD_ADDRESS, FORGOTTEN
from tests.cli.process import ABCAST, ROOT, abcast, background, environment

README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", README, re.DOTALL | re.MULTILINE))


def fences(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def shown_commands() -> list[tuple[str, list[str]]]:
    """The quickstart's commands with the output shown below each."""
    shown: list[tuple[str, list[str]]] = []
    for line in "".join(fences(SECTIONS["Quickstart"], "console")).splitlines():
        if line.startswith("$ "):
            shown.append((line.removeprefix("$ "), []))
        else:
            shown[-1][1].append(line)
    return shown


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_quickstart_and_examples(tmp_path: Path) -> None:
    """Every command of the quickstart works and prints what is shown; so do the Python examples."""
    commands = shown_commands()
    job, before, behind = "abcast run", commands[:2], commands[3:-1]
    assert (commands[2][0], commands[-1][0]) == (job, "abcast broker stop")
    port = free_port()
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
            said = [run_example(code, port, tmp_path) for code in fences(README, "python")]
            assert said == ["1001 local/alice b'buy 100'\n", ""]
            run(
                "abcast deliver --group orders --member dave --from-seqno 1003 --count 1",
                ["1003\tlocal/carol\tsell 60"],
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
    done = subprocess.run([sys.executable, "-c", here], capture_output=True, text=True, cwd=cwd, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_demo(tmp_path: Path) -> None:
    """`make demo`, on a small file: the same digest for all observers, no anomaly, a query on the table."""
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"line {number}\n" for number in range(90)))
    done = abcast("demo", "--input", lines, "--members", "3", "--data", "data", cwd=tmp_path, timeout=200)
    assert done.returncode == 0, done.stderr
    digests = re.findall(r"observer-\d: 90 deliveries, digest (\w+)", done.stdout)
    assert len(digests) == 3
    assert len(set(digests)) == 1
    assert "every promise holds" in done.stdout
    assert abcast("broker", "status", "--dir", "data/demo/broker", cwd=tmp_path).returncode == 1


def test_make_targets() -> None:
    """The targets it names are there."""
    named = set(re.findall(r"(?<![\w-])make ([a-z-]+)(?=[ `\n])", "\n".join(fences(README, "sh"))))
    assert {"demo", "test", "setup", "lint"} <= named
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


def test_reasons() -> None:
    """The reasons for a dead letter are the codec's, and in its order."""
    listed = re.findall(r"^\| `([^`]+)` \|", SECTIONS["FORWARD: how to send from any language"], re.MULTILINE)
    reasons = [
        listed[number]
        for number in range(len(listed))
        if not listed[number].startswith("abcast-") or " " in listed[number]
    ]
    assert reasons == [
        codec.REPEATED_HEADER,
        codec.RESERVED_HEADER,
        codec.NOT_RELAYED,
        codec.HEADERS_TOO_LARGE,
        codec.WRONG_VERSION,
        codec.WRONG_KIND,
        codec.NO_SENDER,
        codec.KEY_IS_NOT_SENDER,
        codec.WRONG_INCARNATION,
        codec.WRONG_LOCAL_SEQNO,
        codec.FUTURE_INCARNATION,
        codec.WRONG_LINK,
        codec.WRONG_SITE,
        codec.NOT_THE_RELAY,
        codec.NO_PAYLOAD,
        codec.PAYLOAD_TOO_LARGE,
        BAD_ADDRESS,
        NOT_A_MEMBER,
        FORGOTTEN,
    ]


def test_limits() -> None:
    """The limits it lists are those in the code."""
    from connectors.client.forwarder import MAX_RESEND_S
    from connectors.client.lives import SendingLimits
    from connectors.kafka.backlog import BATCH_BYTES
    from connectors.kafka.connection import Connection
    from connectors.ledger.job import TRIGGER_S
    from connectors.spark.job import JobOptions
    from ordering import names, records, sequencer

    sending, mebibyte = SendingLimits(), 1024 * 1024
    job = {name: field.default for name, field in JobOptions.__dataclass_fields__.items()}
    assert TRIGGER_S == 1
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", SECTIONS["Limits"], re.MULTILINE))
    assert rows == rows | {
        "group name": f"{names.MAX_GROUP_LENGTH} characters",
        "site name, member name": f"{names.MAX_SITE_LENGTH}, {names.MAX_MEMBER_NAME_LENGTH} characters",
        "payload": f"{records.MAX_PAYLOAD_BYTES:,} bytes",
        "application headers of a message": f"{records.MAX_HEADERS_BYTES:,} bytes",
        "incarnation, local seqno": f"{len(str(records.MAX_NUMBER))} digits",
        "a FORWARD record": f"{records.MAX_RECORD_BYTES // 2 // mebibyte} MiB",
        "a DATA record, a snapshot": f"{records.MAX_RECORD_BYTES // mebibyte} MiB",
        "forward table (`max_pending_records`, `max_pending_bytes`)": (
            f"{sending.max_pending_records:,} messages, {sending.max_pending_bytes // mebibyte} MiB"
        ),
        "first answer of a broker (`connect_timeout`)": f"{Connection().timeout:g} s",
        "resend (`resend_after`)": (
            f"after {sending.resend_after:g} s without progress, doubling to {MAX_RESEND_S:g} s"
        ),
        "a micro-batch (`--max-batch-records`)": f"{job['max_batch_records']:,} records, all groups together",
        "a micro-batch of large records": (
            f"{BATCH_BYTES // mebibyte} MiB, by the average size of the records in their partitions"
        ),
        "groups decided at once (`--parallelism`)": f"{job['parallelism']}, at most 64",
        "members that left, remembered": f"{MAX_LEFT:,}",
        "records between two snapshots": (
            f"{sequencer.SNAPSHOT_EVERY_RECORDS:,}, or {sequencer.SNAPSHOT_RECORDS_PER_SENDER} a sender if that is more"
        ),
    }


def test_configuration(tmp_path: Path) -> None:
    """The examples of a configuration file and of a sites' file are what they say."""
    from jobs.cli import command

    file = tmp_path / "abcast.toml"
    described, configured = fences(README, "toml")
    file.write_text(described, encoding="utf-8")
    assert read_sites(file).home == "nyc"
    file.write_text(configured, encoding="utf-8")
    defaults = load_config(command(), file)
    assert defaults["topics"]["create"] == {
        "bootstrap_servers": "kafka-1:9092,kafka-2:9092",
        "replication_factor": 3,
    }
    assert defaults["publish"] == {"bootstrap_servers": "kafka-1:9092,kafka-2:9092"}


def test_commands_exist() -> None:
    """Each command of the table answers to --help, and the table has them all."""
    from jobs.cli import command

    table = re.findall(r"^\| (`abcast .+?) \|", SECTIONS["Operations"].replace("\\|", "/"), re.MULTILINE)
    named = set(re.findall(r"`abcast ([a-z]+)", " ".join(table)))
    assert named == set(command().commands) - {"demo"}
    assert Path(ABCAST).exists()
