"""Three clusters, as companies run them, with members that have connected; everything is killed in turn.

Then a bridge is cut for a minute: relays look for the Kafka of sfo where there is none.

In a mesh each site has all its jobs in one process. Where sites agree, each has a plain process, and one process has
all relays.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path

import pytest

from connectors import Member
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.topics.topics import create_topics
from connectors.local.broker import EmbeddedBroker
from ordering.base.errors import Excluded
from ordering.base.reader import Reader, Verdict
from tests.cli.here import abcast_here
from tests.crash.processes import ABCAST, Process
from tests.waiting import eventually

pytestmark = [
    pytest.mark.broker,
    pytest.mark.crash,
    pytest.mark.timeout(1500),
    # Six JVMs and more: on two cores for many minutes.
    pytest.mark.soak,
]

GROUP = "mesh"
SITES = ("nyc", "sfo", "lax")
PATIENCE_S = 240.0
CUT_S = 60.0
RELAYS = "relays"


class Talker:
    """A member that has connected, and broadcasts a little all the time, also while it is suspected."""

    def __init__(self, site: str, connection: Connection, outbox: Path) -> None:
        self.member = Member(GROUP, f"{site}/talker", connection=connection, outbox=outbox)
        self.member.connect(timeout=PATIENCE_S)
        self.sent = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._talk, daemon=True)
        self._thread.start()

    def _talk(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(Excluded):  # it joins again by itself, and has not taken the message
                self.member.broadcast(b"%d" % self.sent, timeout=PATIENCE_S)
                self.sent += 1
            time.sleep(0.02)

    def finish(self) -> None:
        """Wait until each message is ordered at its own site."""
        self._stop.set()
        self._thread.join(PATIENCE_S)
        self.member.wait_ordered(PATIENCE_S)
        self.member.close(timeout=PATIENCE_S)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[dict[str, EmbeddedBroker]]:
    """Yield a cluster for each site."""
    with contextlib.ExitStack() as running:
        yield {site: running.enter_context(EmbeddedBroker(tmp_path / site / "broker", 0)) for site in SITES}


@pytest.fixture(params=["mesh", "isis"])
def mode(request: pytest.FixtureRequest) -> str:
    """Return the mode; in both, every site has a link to every other."""
    return str(request.param)


def write_file(path: Path, mode: str, servers: Mapping[str, str]) -> Path:
    """Write a sites' file."""
    tables = (f'[sites.{site}]\nbootstrap_servers = "{where}"\n' for site, where in servers.items())
    head = f'mode = "{mode}"\n' + ("suspect_after_ms = 20000\n" if mode == "isis" else "")
    path.write_text(head + "".join(tables), encoding="utf-8")
    return path


def digest(connection: Connection, site: str) -> tuple[int, str]:
    """Count the valid DATA records at a site, with a digest of the part that sites of one order share."""
    reader, said, count = Reader(), blake2b(digest_size=16), 0
    with DataLog(connection, GROUP, site) as log:
        for data in (stored.data for stored in log.records(log.beginning(), log.end())):
            if reader.accept(data.kind, data.epoch, data.seqno) is Verdict.TAKE:
                said.update(repr((data.kind, data.seqno, data.view, data.id, data.payload, data.source)).encode())
                count += 1
    return count, said.hexdigest()


def test_everything_is_killed_and_nothing_is_lost(
    brokers: dict[str, EmbeddedBroker], mode: str, tmp_path: Path
) -> None:
    """kill -9 of each site's jobs and relays, then of each broker, and a bridge that is cut, under load: every site has
    every message of the others once, and in their order.
    """
    servers = {site: broker.bootstrap_servers for site, broker in brokers.items()}
    file = write_file(tmp_path / "sites.toml", mode, servers)
    cut = write_file(tmp_path / "cut.toml", mode, {**servers, "sfo": "127.0.0.1:1"})
    connections = {site: Connection(broker.bootstrap_servers) for site, broker in brokers.items()}
    for site, connection in connections.items():
        create_topics(connection, GROUP, [site])
    numbers = itertools.count(1)

    def start(name: str, file: Path = file) -> Process:
        job = ("run", "--site", name) if mode == "mesh" else ("sequence", "--site", name, "--engine", "process")
        command = ("relay",) if name == RELAYS else job
        arguments = (ABCAST, *command, "--sites", file, "--data", tmp_path / name / "data")
        return Process(f"{name}-{next(numbers)}", arguments, tmp_path / "logs")

    names = SITES if mode == "mesh" else (*SITES, RELAYS)
    running = {name: start(name) for name in names}
    try:
        for process in running.values():
            process.wait_ready(PATIENCE_S)
        talkers = [Talker(site, connection, tmp_path / f"{site}.outbox") for site, connection in connections.items()]
        for name in names:
            running[name].kill()
            time.sleep(1.0)
            running[name] = start(name)
            running[name].wait_ready(PATIENCE_S)
        bridge = "nyc" if mode == "mesh" else RELAYS
        running[bridge].kill()
        running[bridge] = start(bridge, cut)
        time.sleep(CUT_S)
        running[bridge].kill()
        running[bridge] = start(bridge)
        running[bridge].wait_ready(PATIENCE_S)
        for broker in brokers.values():
            broker.kill()
            time.sleep(2.0)
            broker.start()
        for talker in talkers:
            talker.finish()
        assert all(talker.sent > 100 for talker in talkers)
        check = ("check", "--group", GROUP, "--sites", file, "--data", tmp_path / "none", "--json")
        found: dict[str, object] = {}

        def is_settled() -> bool:
            found.update(json.loads(abcast_here(*check, "--settled", cwd=tmp_path).stdout))
            return not found["lacking"]

        eventually(is_settled, PATIENCE_S, "every site has what the others have", 2.0)
        assert found["anomalies"] == []
        total = sum(talker.sent for talker in talkers)
        orders: list[list[int]] = []
        for site, connection in connections.items():
            with Member(GROUP, f"{site}/reader", connection=connection) as reader:
                taken = list(itertools.islice(reader.deliveries(from_seqno=1, timeout=5), total + 1))
            orders.append([delivery.seqno for delivery in taken])
            of_sender: dict[str, list[bytes]] = {}
            for delivery in taken:
                of_sender.setdefault(delivery.sender, []).append(delivery.payload)
            expected = {talker.member.address: talker.sent for talker in talkers}
            assert of_sender == {str(name): [b"%d" % n for n in range(sent)] for name, sent in expected.items()}, site
        if mode == "isis":
            assert orders[1:] == orders[:1] * 2
            assert len({digest(connection, site) for site, connection in connections.items()}) == 1
    finally:
        for process in running.values():
            process.kill()
