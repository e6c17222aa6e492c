"""One `abcast run` for all tests of the package that need a sequencer and a ledger."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from connectors.kafka.connection import Connection
from connectors.ledger.table import read_table_state
from connectors.local.broker import EmbeddedBroker
from tests import deployment
from tests.cli.process import ABCAST, abcast, background

SITE = "cli"


@dataclass
class Pipeline:
    """A running `abcast run` at a site of its own (others use the broker too), and the directory it writes to."""

    connection: Connection
    directory: Path
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def abcast(self, *arguments: str | Path, text: bytes = b"") -> CompletedProcess[str]:
        """Run a command against this pipeline, as a user who has set the three variables."""
        variables = {
            "ABCAST_BOOTSTRAP_SERVERS": self.connection.bootstrap_servers,
            "ABCAST_DATA": str(self.data),
            "ABCAST_SITE": SITE,
        }
        return abcast(*arguments, cwd=self.directory, text=text, variables=variables)

    def json_lines(self, *arguments: str | Path) -> list[Any]:
        """What a command that must succeed prints with `--json`."""
        done = self.abcast(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def new_group(self, *options: str) -> str:
        """A group whose topics were just created, while the sequencer runs."""
        group = f"cli-{next(self._numbers)}"
        done = self.abcast("topics", "create", "--group", group, "--site", SITE, *options)
        assert done.returncode == 0, done.stderr
        return group

    def await_ledger(self, group: str, seqno: int) -> None:
        """Wait until the ledger has `seqno`."""
        deadline = time.monotonic() + 120
        while read_table_state(self.data / "ledger").last_seqno.get(group, 0) < seqno:
            assert time.monotonic() < deadline, "the ledger is late"
            time.sleep(0.2)


@pytest.fixture(scope="package")
def pipeline(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """The pipeline, as it is deployed. At the end, SIGTERM must stop it with exit code 0."""
    found = Pipeline(Connection(broker.bootstrap_servers), tmp_path_factory.mktemp("cli"))
    options: list[str | Path] = ["--bootstrap-servers", broker.bootstrap_servers, "--site", SITE, "--data", found.data]
    with background(ABCAST, *deployment.command("compose.yaml", "run"), *options, cwd=found.directory) as run:
        run.wait_for("ready")
        yield found
        assert run.terminate() == 0, "".join(run.lines)
        assert "Traceback" not in "".join(run.lines)
