"""Log lines as text and as JSON, and warnings that repeat."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import create_topics
from connectors.local.broker import EmbeddedBroker
from jobs.terminal import logs
from jobs.terminal.logs import JsonLines, Repetitions
from tests.cli.process import ABCAST, abcast, background

ENGINE = "connectors.engine.group_supervisor"


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the fields that commands in this process have added to each line."""
    monkeypatch.setattr(logs, "_known", {})


def record(name: str, text: str, *values: object, level: int = logging.WARNING, **more: Any) -> logging.LogRecord:
    return logging.getLogger(name).makeRecord(name, level, "f.py", 1, text, values, None, extra=more)


def line_of(made: logging.LogRecord) -> dict[str, Any]:
    written = JsonLines().format(made)
    assert "\n" not in written
    line: dict[str, Any] = json.loads(written)
    return line


@pytest.mark.parametrize(
    ("name", "text", "values", "fields"),
    [
        (
            "connectors.takeover.notices",
            "group %s: epoch %d begins after seqno %d",
            ("orders", 3, 7),
            {"job": "sequence", "group": "orders", "epoch": 3, "seqno": 7},
        ),
        (
            "connectors.spark.running_query",
            "%s: batch=%d groups=%s records=%d ms=%d",
            ("ledger", 4, "a,b", 9, 20),
            {"job": "ledger", "batch": 4, "groups": "a,b", "records": 9, "ms": 20},
        ),
        ("connectors.kafka.groups.retrying", "%s: %s in %g s.", ("sequence-2", "no", 1.0), {"job": "sequence-2"}),
        ("connectors.kafka.log.same_log", "%s\n100 %%", ("a",), {}),
        ("elsewhere", "nothing", (), {}),
    ],
)
def test_fields(name: str, text: str, values: tuple[object, ...], fields: dict[str, Any]) -> None:
    line = line_of(record(name, text, *values))
    assert {key: line[key] for key in ("level", "logger", "message")} == {
        "level": "WARNING",
        "logger": name,
        "message": text % values,
    }
    assert line["time"].endswith("+00:00")
    assert {key: value for key, value in line.items() if key not in ("time", "level", "logger", "message")} == fields


def test_a_given_group_and_a_trace() -> None:
    assert line_of(record(ENGINE, "it is left out", group="g")) | {"time": ""} == {
        "time": "",
        "level": "WARNING",
        "logger": ENGINE,
        "message": "it is left out",
        "job": "sequence",
        "group": "g",
    }
    made = record(ENGINE, "failed")
    try:
        raise ValueError("a bug")
    except ValueError:
        made.exc_info = sys.exc_info()
    assert line_of(made)["trace"].endswith("ValueError: a bug")


def test_warnings_that_repeat_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other texts and notes pass. The next line says how many were left out."""
    now = 100.0
    monkeypatch.setattr(logs, "time", type("Clock", (), {"monotonic": staticmethod(lambda: now)}))
    passes, seen = Repetitions(), []

    def log(text: str, *values: object, level: int = logging.WARNING) -> None:
        made = record("a", text, *values, level=level)
        if passes.filter(made):
            seen.append(made.getMessage())

    for _ in range(4):
        log("%s is away", "g")
    log("%s is away", "h")
    log("note", level=logging.INFO)
    log("note", level=logging.INFO)
    assert seen == ["g is away", "h is away", "note", "note"]
    now += logs.REPEATED_S
    log("%s is away", "g")
    log("%s is away", "h")
    assert seen[4:] == ["g is away (3 more like it were left out)", "h is away"]
    for number in range(3 * logs._MOST_TEXTS):
        log("%d", number)
    assert len(passes._written) == logs._MOST_TEXTS


def test_other_traces_do_not_repeat() -> None:
    passes = Repetitions()
    for reason, is_written in (("a", True), ("a", False), ("b", True)):
        made = record(ENGINE, "failed")
        made.exc_info = (ValueError, ValueError(reason), None)
        assert passes.filter(made) == is_written


def test_arguments_that_do_not_fit_end_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Python's logging tells of them, and goes on."""
    handler = logs._ToStandardError()
    handler.handle(record(ENGINE, "%d groups", "many"))
    assert "Logging error" in capsys.readouterr().err


@pytest.mark.broker
@pytest.mark.timeout(200)
def test_a_job_in_json(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Sequencer and ledger, which is a child. Only the answer to the signal is no JSON."""
    create_topics(Connection(broker.bootstrap_servers), "cli.logged", ["logged"])
    variables = {"ABCAST_SITE": "logged", "ABCAST_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
    command = [ABCAST, "--log-format", "json", "run", "--engine", "process"]
    with background(*command, cwd=tmp_path, **variables) as run:
        run.wait_for("ready; Ctrl-C")
        assert run.terminate() == 0
    assert run.lines[-1] == "stopping …\n"
    lines = [json.loads(line) for line in run.lines[:-1]]
    [begun] = [line for line in lines if "begins after" in line["message"]]
    expected = {"job": "sequence", "site": "logged", "group": "cli.logged", "epoch": 1, "seqno": 0, "level": "INFO"}
    assert expected.items() <= begun.items()
    assert all({"time", "level", "message", "site"} <= line.keys() for line in lines)


@pytest.mark.slow
def test_errors_in_json(tmp_path: Path) -> None:
    """The sentence that ends a command is a line, too; a bad format is told in text."""
    nowhere = {"ABCAST_BOOTSTRAP_SERVERS": "127.0.0.1:1", "ABCAST_LOG_FORMAT": "json"}
    done = abcast("topics", "list", cwd=tmp_path, variables=nowhere)
    line = json.loads(done.stderr)
    assert (done.returncode, line["level"]) == (1, "ERROR")
    assert "127.0.0.1:1" in line["message"]
    done = abcast("--log-format", "xml", "topics", "list", cwd=tmp_path)
    said = "abcast: ABCAST_LOG_FORMAT (--log-format) is one of text, json, not 'xml'.\n"
    assert (done.returncode, done.stderr) == (2, said)
