"""Ledger jobs with tables on S3: a killed one, two at once, lost answers; and readers of their rows."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from connectors.local.broker import EmbeddedBroker
from connectors.storage.location import RemotePath
from connectors.testing.sequencer_thread import SequencerThread
from tests.cli.here import abcast_here
from tests.crash.conftest import MakeScenario, make_scenario, temporary_files
from tests.crash.processes import Process
from tests.crash.scenario import Scenario, ledger_seqno
from tests.storage.s3_server import S3Server
from tests.waiting import eventually

pytestmark = [pytest.mark.crash, pytest.mark.broker]

__all__ = ["make_scenario", "temporary_files"]


@pytest.fixture
def scenario(broker: EmbeddedBroker, server: S3Server, make_scenario: MakeScenario) -> Scenario:
    """Return a group at a site of its own, with a login for the store."""
    return make_scenario(broker.bootstrap_servers)


class Answers:
    """Withholds one answer to a commit of the ledger."""

    def __init__(self, server: S3Server) -> None:
        self.lost = threading.Event()
        self._armed = threading.Event()
        server.on_put = self._lose

    def lose_one(self) -> None:
        """Lose the next answer."""
        self.lost.clear()
        self._armed.set()

    def _lose(self, path: str) -> bool:
        if not self._armed.is_set() or "/ledger/_delta_log/" not in path or not path.endswith(".json"):
            return False
        self._armed.clear()
        self.lost.set()
        return True


def start(scenario: Scenario, data: RemotePath, *, ready: bool = True) -> Process:
    work = scenario.directory / f"work-{len(scenario.processes)}"
    return scenario.job("ledger", data, "--work-dir", work, ready=ready)


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_each_seqno_once(scenario: Scenario, server: S3Server, tmp_path: Path) -> None:
    """The job is killed between its commit and the answer to it; then two run at once, and one gets no answer."""
    data = server.place("story")
    ledger, answers = data / "ledger", Answers(server)
    with SequencerThread(scenario.connection, scenario.group, scenario.site):
        load = scenario.load("alice")
        first = start(scenario, data)
        answers.lose_one()
        assert answers.lost.wait(60)
        first.kill()
        assert ledger_seqno(ledger, scenario.group) > 0
        rivals = [start(scenario, data, ready=False) for _ in range(2)]
        for rival in rivals:
            rival.wait_ready()
        before = ledger_seqno(ledger, scenario.group)
        answers.lose_one()
        assert answers.lost.wait(60)
        eventually(lambda: ledger_seqno(ledger, scenario.group) > before + 100, 90, "two at work")
        assert all(rival.running() for rival in rivals)
        rivals[0].kill()
        sent = load.finish()
        assert scenario.verify(sent, ledger=ledger) == len(sent)
        for rival in rivals[1:]:
            rival.stop()
    where = {**server.variables, "ABCAST_BOOTSTRAP_SERVERS": scenario.connection.bootstrap_servers}
    where |= {"ABCAST_DATA": str(data), "ABCAST_SITE": scenario.site}
    for command, said in (
        (("check", "--group", scenario.group, "--site", scenario.site), f"ledger: {len(sent)} messages"),
        (("query", "SELECT count(DISTINCT seqno) AS n FROM messages WHERE text(payload) IS NOT NULL"), f"{len(sent)}"),
    ):
        done = abcast_here(*command, cwd=tmp_path, variables=where)
        assert (done.returncode, said in done.stdout) == (0, True), f"{done.stdout}{done.stderr}"
