"""Share one `abcast run` among all tests that need a sequencer and a ledger. Commands run in this process."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, NoReturn

import pytest

from connectors.kafka.connection.connection import Connection
from connectors.ledger.table import read_table_state
from connectors.local.broker import EmbeddedBroker
from ordering.base.errors import BrokerUnreachable, EnvironmentProblem
from tests import deployment
from tests.cli.here import abcast_here
from tests.cli.process import ABCAST, background
from tests.ledger.test_sql import write_tables

SITE = "cli"


@dataclass
class Pipeline:
    """An `abcast run` at a site of its own (others use the broker, too), and its data directory."""

    connection: Connection
    directory: Path
    engine: str
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def abcast(self, *arguments: str | Path, text: bytes = b"") -> CompletedProcess[str]:
        """Run a command against this pipeline, as with the three variables in a user's environment."""
        variables = {
            "ABCAST_BOOTSTRAP_SERVERS": self.connection.bootstrap_servers,
            "ABCAST_DATA": str(self.data),
            "ABCAST_SITE": SITE,
        }
        return abcast_here(*arguments, cwd=self.directory, text=text, variables=variables)

    def json_lines(self, *arguments: str | Path) -> list[Any]:
        """Return the output of a command with `--json`. It must succeed."""
        done = self.abcast(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def new_group(self, *options: str) -> str:
        """Create a group's topics while the sequencer runs. No earlier pipeline had the group."""
        group = f"{self.directory.name}-{next(self._numbers)}"
        done = self.abcast("topics", "create", "--group", group, "--site", SITE, *options)
        assert done.returncode == 0, done.stderr
        return group

    def await_ledger(self, group: str, seqno: int) -> None:
        """Wait until the ledger has `seqno`."""
        deadline = time.monotonic() + 120
        while read_table_state(self.data / "ledger").last_seqno.get(group, 0) < seqno:
            assert time.monotonic() < deadline, "the ledger is late"
            time.sleep(0.2)


@pytest.fixture(scope="package", params=["process", pytest.param("spark", marks=pytest.mark.long)])
def pipeline(
    request: pytest.FixtureRequest, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    """Yield the pipeline, on Spark as it is deployed. At the end, SIGTERM must stop it with exit code 0.

    The deployed command maintains the tables. The process engine would start Spark for that: 20 s of CPU time.
    """
    found = Pipeline(Connection(broker.bootstrap_servers), tmp_path_factory.mktemp("cli"), request.param)
    options: list[str | Path] = ["--bootstrap-servers", broker.bootstrap_servers, "--site", SITE, "--data", found.data]
    options += ["--engine", found.engine]
    command = deployment.command("compose.yaml", "run") if found.engine == "spark" else ["run"]
    with background(ABCAST, *command, *options, cwd=found.directory) as run:
        run.wait_for("ready")
        yield found
        assert run.terminate() == 0, "".join(run.lines)
        assert "Traceback" not in "".join(run.lines)


def unreachable(self: Connection, *_: Any, **__: Any) -> NoReturn:
    raise BrokerUnreachable(f"no Kafka broker answers at {self.bootstrap_servers}.")


def not_started(*_: Any, **__: Any) -> NoReturn:
    raise EnvironmentProblem("it would have been started.")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], str]:
    """Run a command line here, where no broker answers and none is started; return its output."""
    write_tables(tmp_path / "abcast-data")
    (tmp_path / "sites.toml").write_text('[sites.nyc]\nbootstrap_servers = "127.0.0.1:1"\n')
    monkeypatch.chdir(tmp_path)
    for opened in ("consumer", "producer", "metadata_client", "admin"):
        monkeypatch.setattr(Connection, opened, unreachable)
    for started in ("start", "stop"):
        monkeypatch.setattr(EmbeddedBroker, started, not_started)
    monkeypatch.setattr("jobs.terminal.streaming.session_of_command", not_started)

    def run(arguments: list[str]) -> str:
        done = abcast_here(*arguments, cwd=tmp_path, text=b"one\ntwo\n")
        said = done.stdout + done.stderr
        assert done.returncode in (0, 1, 2, 3)
        assert "Traceback" not in said
        return said

    return run
