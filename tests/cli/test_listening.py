"""`--listen` of running jobs, over HTTP, compared with `abcast status --json`."""

from __future__ import annotations

import json
import socket
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from prometheus_client.parser import text_string_to_metric_families

from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import create_topics
from connectors.local.broker import EmbeddedBroker
from ordering.base.errors import UsageError
from tests.cli.here import abcast_here
from tests.cli.process import ABCAST, Background, background
from tests.diagnosis.test_page import BROWSER, rows_in, seen
from tests.waiting import WAIT, eventually

pytestmark = [pytest.mark.broker, pytest.mark.timeout(200)]

SITE = "listened"


def address_of(running: Background) -> str:
    [url] = [line.split()[-1] for line in running.lines if line.startswith("listening at ")]
    return url


def get(running: Background, path: str) -> tuple[int, str]:
    """Return the answer of the process."""
    try:
        with urllib.request.urlopen(f"{address_of(running)}{path}", timeout=WAIT) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refused:
        return refused.code, refused.read().decode()


def scraped(running: Background) -> dict[tuple[str, ...], float]:
    status, text = get(running, "/metrics")
    assert status == 200
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(each.name, *each.labels.values()): each.value for each in samples}


def variables_of(broker: EmbeddedBroker, group: str) -> dict[str, str]:
    """Create a group; return the variables of its jobs and commands."""
    create_topics(Connection(broker.bootstrap_servers), group, [SITE])
    return {"ABCAST_BOOTSTRAP_SERVERS": broker.bootstrap_servers, "ABCAST_SITE": SITE, "ABCAST_GROUPS": group}


@pytest.mark.long
def test_what_is_scraped_is_the_status(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Sequencer and ledger; a stalled client is there all the time. The process ends as ever."""
    group = "cli.listened"
    variables = variables_of(broker, group)

    def status() -> Any:
        done = abcast_here("status", "--json", cwd=tmp_path, variables=variables)
        return json.loads(done.stdout)

    command = [ABCAST, "run", "--engine", "process", "--listen", ":0"]
    with background(*command, cwd=tmp_path, **variables) as run:
        run.wait_for("listening at http://127.0.0.1:")
        assert get(run, "/healthz")[0] == 200  # in the middle of the start
        eventually(lambda: get(run, "/readyz") == (200, "ready\n"), what="ready")
        with socket.create_connection(("127.0.0.1", int(run.lines[0].rpartition(":")[2]))) as stalled:
            stalled.sendall(b"GET /me")
            lines = "".join(f"{number}\n" for number in range(500)).encode()
            sent = abcast_here("publish", "-g", group, "-m", "alice", cwd=tmp_path, variables=variables, text=lines)
            assert sent.returncode == 0, sent.stderr
            eventually(lambda: status()["ledger_lag"] == 0, what="the ledger")
            code, text = get(run, f"/api/order?group={group}&site={SITE}")
            newest = json.loads(text)["records"][-1]
            assert (code, newest["seqno"], newest["sender"], newest["bytes"]) == (200, 500, f"{SITE}/alice", 3)
            assert "payload" not in newest
            assert get(run, f"/api/order?group={group}&site={SITE}&after=x")[0] == 400
            assert get(run, "/api/order?group=unknown&site=elsewhere")[0] == 404
            assert set(json.loads(get(run, "/api/status")[1])["sites"][0]["latencies"]) == {group}
            code, text = get(run, "/api/status")
            [of_site] = json.loads(text)["sites"]
            assert (code, of_site["site"], of_site["errors"]) == (200, SITE, {})
            changing = {"rate"}
            [told], said = of_site["groups"], status()
            assert {key: value for key, value in told.items() if key not in changing} == {
                key: value for key, value in said.items() if key not in changing
            }
            # Metrics may share an older reading, to cost little.
            eventually(lambda: scraped(run)["abcast_ledger_lag_records", group, SITE] == 0, what="the figures")
            figures = scraped(run)
            for name, field in (
                ("abcast_seqno", "last_seqno"),
                ("abcast_epoch", "epoch"),
                ("abcast_forward_lag_records", "lag"),
                ("abcast_senders", "senders"),
                ("abcast_dead_letters", "dead_letters"),
                ("abcast_ledger_lag_records", "ledger_lag"),
            ):
                assert figures[name, group, SITE] == said[field], name
            if BROWSER is not None:
                [shown] = rows_in(seen(address_of(run), tmp_path), "groups")
                assert shown[:3] == [group, SITE, "alive"]
                told = [said[name] for name in ("lag", "last_seqno", "members", "dead_letters", "ledger_lag")]
                assert [shown[column] for column in (3, 6, 7, 8, 9)] == [f"{number:,}" for number in told]
            assert figures["abcast_sequencer_alive", group, SITE] == 1
            assert figures["abcast_job_ready", "ledger"] == figures["abcast_job_ready", "sequence"] == 1
            assert run.terminate() == 0
    assert "Traceback" not in "".join(run.lines)


@pytest.mark.long
def test_a_ledger_that_fails_again_and_again(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """The order goes on, and the process is not ready until the ledger works again."""
    group = "cli.unwritable"
    variables = variables_of(broker, group)
    command = [ABCAST, "run", "--engine", "process", "--listen", "localhost:0"]
    lock = tmp_path / "abcast-data" / "ledger.lock"
    lock.mkdir(parents=True)
    with background(*command, cwd=tmp_path, **variables) as run:
        run.wait_for("ready;")
        code, said = get(run, "/readyz")
        assert (code, said.partition(":")[0]) == (503, "ledger has ended")
        assert (scraped(run)["abcast_job_ready", "ledger"], scraped(run)["abcast_job_ready", "sequence"]) == (0, 1)
        sent = abcast_here("publish", "-g", group, "-m", "alice", cwd=tmp_path, variables=variables, text=b"1\n")
        assert sent.returncode == 0, sent.stderr
        told = "status tells that the ledger has ended"  # the next sign of life carries it
        eventually(
            lambda: "ledger has ended" in abcast_here("status", cwd=tmp_path, variables=variables).stdout, what=told
        )
        lock.rmdir()
        eventually(lambda: get(run, "/readyz") == (200, "ready\n"), 180, "the ledger works")
        assert scraped(run)["abcast_job_ready", "ledger"] == 1
        assert run.terminate() == 0


def test_a_ledger_tells_that_there_is_no_sequencer(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """The ledger works nevertheless. No other job gets its port."""
    group = "cli.unsequenced"
    variables = variables_of(broker, group)
    command = [ABCAST, "ledger", "--engine", "process", "--listen", "localhost:0"]
    with background(*command, cwd=tmp_path, **variables) as ledger:
        ledger.wait_for("ready")
        assert get(ledger, "/readyz") == (200, "ready\n")
        figures = scraped(ledger)
        assert figures["abcast_sequencer_alive", group, SITE] == 0
        assert ("abcast_sign_age_seconds", group, SITE) not in figures
        port = ledger.lines[0].rpartition(":")[2].strip()
        second = abcast_here(
            "sequence", "--engine", "process", "--listen", f"localhost:{port}", cwd=tmp_path, variables=variables
        )
        assert (second.returncode, second.stderr) == (
            1,
            f"abcast: can't listen at localhost:{port}: another process has port {port}; take another one.\n",
        )
        assert ledger.terminate() == 0


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("192.0.2.1:9464", "can't listen at 192.0.2.1:9464: 192.0.2.1 is no name or address of this machine."),
        ("here", "'here' is no place to listen at: write HOST:PORT, such as 127.0.0.1:9464."),
    ],
)
def test_bad_places(place: str, said: str, tmp_path: Path) -> None:
    """Tell them before Kafka is asked."""
    nowhere = {"ABCAST_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    for job in ("run", "sequence", "ledger"):
        done = abcast_here(job, "--listen", place, cwd=tmp_path, variables=nowhere)
        assert (done.returncode, done.stderr) == (2, f"abcast: {said}\n")


def test_payloads_without_a_port(tmp_path: Path) -> None:
    done = abcast_here("sequence", "--listen-payloads", cwd=tmp_path, variables={})
    assert (done.returncode, done.stderr) == (
        2,
        "abcast: --listen-payloads is for the page of --listen: add --listen HOST:PORT.\n",
    )


def test_a_ledger_knows_its_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its port can tell a relay without a first heartbeat."""
    places = "".join(f'[sites.{site}]\nbootstrap_servers = "{site}:1"\n' for site in "ab")
    (tmp_path / "sites.toml").write_text(f'mode = "mesh"\n{places}')

    def told(*arguments: Any, **_: object) -> None:
        raise UsageError(f"neighbours: {arguments[4].heard_at('a')}")

    monkeypatch.setattr("jobs.ledger.listening", told)
    done = abcast_here("ledger", "--listen", ":0", "--sites", "sites.toml", "--site", "a", cwd=tmp_path, variables={})
    assert done.stderr == "abcast: neighbours: ['b']\n"
