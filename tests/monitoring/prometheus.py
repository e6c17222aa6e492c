"""A real Prometheus with our alerts, pressed to seconds. Most machines have none: tests go on without it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from connectors.local.cluster import HOST, free_ports
from tests.monitoring.test_alerts import RULES
from tests.waiting import WAIT

PROMETHEUS = shutil.which("prometheus")
WHY_NOT_FIRED = "no Prometheus is installed (Debian's package prometheus): no test fires an alert"


def pressed(rules: str, wait_s: int, range_s: int) -> str:
    """Return the rules with `wait_s` seconds for a minute of waiting or silence, and `range_s` for one of a range."""
    rules = re.sub(r"(?<=for: )(\d+)m", lambda found: f"{int(found[1]) * wait_s}s", rules)
    rules = re.sub(r"(?<=\[)(\d+)m", lambda found: f"{int(found[1]) * range_s}s", rules)
    return re.sub(r"(?<=_seconds\) > )60$", str(wait_s), rules, flags=re.MULTILINE)


class Prometheus:
    """A Prometheus that scrapes ports of jobs every `scrape_s` seconds, with the rules `pressed` to seconds."""

    def __init__(self, directory: Path, wait_s: int = 1, range_s: int = 6, scrape_s: int = 2) -> None:
        directory.mkdir()
        self._targets = directory / "targets.json"
        self.scrape([])
        rules = pressed(RULES.read_text(encoding="utf-8"), wait_s, range_s)
        (directory / RULES.name).write_text(rules, encoding="utf-8")
        found = {"file_sd_configs": [{"files": [self._targets.name], "refresh_interval": "1s"}]}
        # A job renews its figures more often while somebody looks at its page: the second one looks.
        jobs = [{"job_name": "abcast", **found}, {"job_name": "page", "metrics_path": "/api/status", **found}]
        configuration = {
            "global": {"scrape_interval": f"{scrape_s}s", "evaluation_interval": "1s"},
            "rule_files": [RULES.name],
            "scrape_configs": jobs,
        }
        (directory / "prometheus.yml").write_text(json.dumps(configuration), encoding="utf-8")  # JSON is YAML
        [port] = free_ports(HOST, 1)
        self._address = f"http://{HOST}:{port}/api/v1"
        command = [str(PROMETHEUS), "--config.file=prometheus.yml", f"--web.listen-address={HOST}:{port}"]
        with (directory / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--storage.tsdb.path=data"], cwd=directory, stdout=log, stderr=log
            )

    def scrape(self, places: Iterable[str]) -> None:
        """Scrape these places from now on; Prometheus takes some seconds to begin."""
        written = self._targets.with_suffix(".new")
        written.write_text(json.dumps([{"targets": list(places)}]), encoding="utf-8")
        written.replace(self._targets)

    def query(self, expr: str) -> list[dict[str, str]]:
        """Return the labels of each series that the expression has now."""
        found: list[dict[str, Any]] = self._get(f"query?{urllib.parse.urlencode({'query': expr})}").get("result", [])
        return [each["metric"] for each in found]

    def firing(self) -> list[dict[str, str]]:
        """Return the labels of the alerts that fire."""
        return [each["labels"] for each in self._get("alerts").get("alerts", []) if each["state"] == "firing"]

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=WAIT)

    def _get(self, what: str) -> dict[str, Any]:
        """Return the data of an answer; {} while it starts."""
        try:
            with urllib.request.urlopen(f"{self._address}/{what}", timeout=30) as answer:
                data: dict[str, Any] = json.load(answer)["data"]
        except OSError:
            return {}
        return data
