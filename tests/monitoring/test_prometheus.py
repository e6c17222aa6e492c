"""An alert under a real Prometheus: a pipeline breaks, and the alert's runbook ends it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from connectors.local.broker import EmbeddedBroker
from connectors.local.cluster import HOST, free_ports
from tests.cli.here import abcast_here
from tests.cli.process import ABCAST, background
from tests.cli.test_listening import variables_of
from tests.monitoring.test_alerts import RULES
from tests.waiting import WAIT, eventually

PROMETHEUS = shutil.which("prometheus")


@contextmanager
def prometheus(directory: Path, target: str) -> Iterator[str]:
    """Run a Prometheus with our alerts, pressed to seconds, that scrapes the target; yield its address."""
    rules = re.sub(r"for: \d+m", "for: 1s", RULES.read_text(encoding="utf-8"))
    (directory / RULES.name).write_text(rules, encoding="utf-8")
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [RULES.name],
        "scrape_configs": [{"job_name": "abcast", "static_configs": [{"targets": [target]}]}],
    }
    (directory / "prometheus.yml").write_text(json.dumps(configuration), encoding="utf-8")  # JSON is YAML
    [port] = free_ports(HOST, 1)
    command = [str(PROMETHEUS), "--config.file=prometheus.yml", f"--web.listen-address={HOST}:{port}"]
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*command, "--storage.tsdb.path=data"], cwd=directory, stdout=log, stderr=log)
    try:
        yield f"http://{HOST}:{port}"
    finally:
        process.terminate()
        process.wait(timeout=WAIT)


def firing(address: str) -> set[str]:
    """Return the names of the alerts that fire."""
    try:
        with urllib.request.urlopen(f"{address}/api/v1/alerts", timeout=30) as answer:
            alerts = json.load(answer)["data"]["alerts"]
    except OSError:  # it is starting
        return set()
    return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.timeout(400)
@pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus is installed (Debian's package prometheus)")
def test_its_runbook_ends_an_alert(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """AbcastStuck, as no sequencer runs: start one, and wait for health."""
    group = "monitoring.stuck"
    variables = variables_of(broker, group)
    observer = [ABCAST, "ledger", "--engine", "process", "--listen", ":0"]
    with background(*observer, cwd=tmp_path, **variables) as ledger:
        ledger.wait_for("ready")
        target = ledger.lines[0].split("//")[1].strip()
        with prometheus(tmp_path, target) as address:
            sent = ("publish", "-g", group, "-m", "alice", "--timeout", "1")
            assert abcast_here(*sent, cwd=tmp_path, variables=variables, text=b"one\n").returncode == 1
            eventually(lambda: firing(address) == {"AbcastStuck"}, timeout=120, what="the alert", pause=0.5)
            with background(ABCAST, "sequence", "--engine", "process", cwd=tmp_path, **variables):
                done = abcast_here("status", "--until-healthy", cwd=tmp_path, variables=variables)
                assert done.returncode == 0
                eventually(lambda: firing(address) == set(), timeout=120, what="the end of the alert", pause=0.5)
        assert ledger.terminate() == 0
