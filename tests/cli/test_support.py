"""`abcast support`: the files it writes, with and without a Kafka."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from connectors.kafka.connection.connection import Connection
from jobs.inspection.support import LOG_BYTES
from tests.cli.conftest import unreachable
from tests.cli.here import abcast_here


def lines_of(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_without_a_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files tell it, and the others are whole. No secret is in any of them."""
    for opened in ("consumer", "metadata_client", "admin"):
        monkeypatch.setattr(Connection, opened, unreachable)
    (tmp_path / "run.log").write_bytes(b"x" * LOG_BYTES + b"the end\n")
    variables = {
        "ABCAST_BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "ABCAST_KAFKA_PROTOCOL": "SASL_PLAINTEXT",
        "ABCAST_KAFKA_MECHANISM": "PLAIN",
        "ABCAST_KAFKA_USERNAME": "alice",
        "ABCAST_KAFKA_PASSWORD": "wonderland",
    }
    done = abcast_here("support", "out", "--log", "run.log", cwd=tmp_path, variables=variables)
    assert (done.returncode, done.stderr) == (0, "")
    names = ["versions.jsonl", "configuration.jsonl", "doctor.jsonl", "status.jsonl", "log-1-run.log"]
    assert done.stdout.splitlines() == [f"out/{name}" for name in names]
    assert {"abcast", "Python", "kafka-python"} <= {row["name"] for row in lines_of(tmp_path / "out/versions.jsonl")}
    told = {row["name"]: row["value"] for row in lines_of(tmp_path / "out/configuration.jsonl")}
    assert (told["bootstrap_servers"], told["kafka.username"]) == ("127.0.0.1:1", "alice")
    assert any(row["ok"] is False for row in lines_of(tmp_path / "out/doctor.jsonl"))
    assert lines_of(tmp_path / "out/status.jsonl") == [{"error": "no Kafka broker answers at 127.0.0.1:1."}]
    assert (tmp_path / "out/log-1-run.log").read_bytes().endswith(b"xthe end\n")
    assert (tmp_path / "out/log-1-run.log").stat().st_size == LOG_BYTES
    assert not any(b"wonderland" in file.read_bytes() for file in (tmp_path / "out").iterdir())
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700
    again = abcast_here("support", "out", cwd=tmp_path, variables=variables)
    assert (again.returncode, again.stderr) == (
        2,
        "abcast: out has files: name a directory that is new, or empty.\n",
    )
    (tmp_path / "json").mkdir()
    shown = abcast_here("support", "json", "--json", cwd=tmp_path, variables=variables)
    assert [json.loads(line)["file"] for line in shown.stdout.splitlines()] == [f"json/{name}" for name in names[:4]]
    missing = abcast_here("support", "other", "--log", "no.log", cwd=tmp_path, variables=variables)
    assert missing.stderr == "abcast: no.log can't be read: No such file or directory.\n"
    assert not (tmp_path / "other").exists()
