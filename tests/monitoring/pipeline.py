"""A site whose jobs run, break, and are mended by the commands of docs/runbooks.md; a Prometheus may see it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server

from connectors import Member
from connectors.client.api.collector import MemberCollector
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import create_topics
from connectors.local.broker import EmbeddedBroker
from connectors.local.cluster import HOST
from tests.cli.here import abcast_here
from tests.cli.process import ABCAST, Background
from tests.cli.test_listening import address_of
from tests.monitoring.prometheus import PROMETHEUS, Prometheus
from tests.papers import doc, section
from tests.waiting import eventually

SITE = "runbooks"
JOBS = ("run", "ledger", "sequence", "relay")
"""The commands that go on until they are stopped."""


def commands_of(alert: str) -> list[str]:
    """Return the commands of a runbook, in their order."""
    (do,) = re.findall(r"^- Do: (.*?)^- Undo: ", section(doc("runbooks"), f"## {alert}"), re.DOTALL | re.MULTILINE)
    blocks = re.findall(r"^  ```sh\n(.*?)^  ```$", do, re.DOTALL | re.MULTILINE)
    return [line.strip() for block in blocks for line in block.splitlines()]


class Pipeline:
    """A site on the broker: its groups, its jobs, and the commands given there."""

    def __init__(self, broker: EmbeddedBroker, directory: Path, name: str, *groups: str, **variables: str) -> None:
        self.connection, self.directory = Connection(broker.bootstrap_servers), directory
        self.groups = [f"runbook.{name}.{group}" for group in groups]
        self.variables = {
            "ABCAST_BOOTSTRAP_SERVERS": broker.bootstrap_servers,
            "ABCAST_SITE": SITE,
            "ABCAST_GROUPS": ",".join(self.groups),
            "ABCAST_LISTEN": ":0",
            **{f"ABCAST_{job.upper()}_ENGINE": "process" for job in JOBS},
            **variables,
        }
        self.jobs: list[Background] = []
        self.observers: list[Background] = []
        self.applications: list[str] = []
        self.prometheus: Prometheus | None = None
        for group in self.groups:
            create_topics(self.connection, group, [variables.get("ABCAST_SITE", SITE)])

    def start(self, *words: str, says: str = "ready") -> Background:
        self._start(self.jobs, words, says)
        return self.jobs[-1]

    def _start(self, jobs: list[Background], words: tuple[str, ...], says: str) -> None:
        jobs.append(Background([ABCAST, *words], self.directory, **self.variables))
        jobs[-1].wait_for(says)
        self._scrape()

    def abcast(self, *words: str, text: bytes = b"", without: str = "") -> str:
        variables = {name: value for name, value in self.variables.items() if name != without}
        done = abcast_here(*words, cwd=self.directory, variables=variables, text=text)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def status(self, group: str) -> dict[str, Any]:
        """Return what `abcast status` says, whatever its exit code."""
        done = abcast_here("status", "-g", group, "--json", cwd=self.directory, variables=self.variables)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def eventually(self, what: str, group: str, holds: Callable[[dict[str, Any]], object]) -> None:
        """Wait for a state of the group; each look costs CPU time."""
        seen: list[dict[str, Any]] = []

        def is_so() -> bool:
            seen[:] = [self.status(group)]
            return bool(holds(seen[0]))

        try:
            eventually(is_so, what=what, pause=1.0)
        except AssertionError as error:
            raise AssertionError(f"{error}: {seen}") from error

    def do(self, alert: str, group: str, says: str = "ready", **placeholders: str) -> None:
        """Do the commands of the page; then `abcast status` must find nothing wrong, and the alert must end."""
        lines = commands_of(alert)
        assert lines, alert
        for line in lines:
            values = {"GROUP": group, "SITE": self.variables["ABCAST_SITE"], **placeholders}
            first, *words = [values.get(word, word) for word in shlex.split(line)]
            assert first == "abcast"
            if words[0] in JOBS:
                self.start(*words, says=says)
            else:
                self.abcast(*words, without="ABCAST_SITES")  # the page names the file where a command needs it
        self.heals(group)
        self.ends(alert, group)

    def heals(self, group: str) -> None:
        self.abcast("status", "-g", group, "--until-healthy")
        self.eventually("nothing is wrong", group, lambda status: not status["wrong"])

    def publish(self, group: str, text: bytes = b"one\n") -> None:
        self.abcast("publish", "-g", group, "-m", "alice", text=text)

    def member(self, group: str, **options: Any) -> Member:
        return Member(group, f"{SITE}/bob", connection=self.connection, **options)

    def end(self) -> None:
        for job in (*self.jobs, *self.observers):
            job.end()
        if self.prometheus is not None:
            self.prometheus.end()

    def produce(self, topic: str, key: bytes, value: bytes, headers: list[tuple[str, bytes]]) -> None:
        with closing(self.connection.producer()) as producer:
            producer.send(topic, value, key, headers, 0)

    # --- under a real Prometheus; without one, no alert fires, and none is waited for ---

    def watch(self, *observer: str, **pressed: int) -> None:
        """Let Prometheus look from now on. `observer`: a command that shows the groups while no other job does."""
        if PROMETHEUS is not None:
            self.prometheus = Prometheus(self.directory / "prometheus", **pressed)
            if observer:
                self._start(self.observers, observer, "ready")

    def _scrape(self) -> None:
        """Let Prometheus scrape the processes that live now, until the next call."""
        if self.prometheus is not None:
            living = [job for job in (*self.jobs, *self.observers) if job.process.poll() is None]
            self.prometheus.scrape([*self.applications, *(address_of(job).removeprefix("http://") for job in living)])

    @contextmanager
    def exported(self, member: Member) -> Iterator[None]:
        """Let Prometheus scrape the member, too, as an application has it."""
        registry = CollectorRegistry()
        registry.register(MemberCollector(member))
        server, thread = start_http_server(0, HOST, registry)
        try:
            self.applications.append(f"{HOST}:{server.server_port}")
            self._scrape()
            yield
        finally:
            self.applications.clear()
            server.shutdown()
            server.server_close()
            thread.join()

    def is_fired(self, alert: str, group: str) -> bool:
        """Whether the alert fires for the group, or for a process; True without Prometheus."""
        if self.prometheus is None:
            return True
        firing = self.prometheus.firing()
        return any(each["alertname"] == alert and each.get("group", group) == group for each in firing)

    def fires(self, alert: str, group: str) -> None:
        eventually(lambda: self.is_fired(alert, group), timeout=120, what=f"{alert} fires", pause=0.5)

    def ends(self, alert: str, group: str) -> None:
        def is_over() -> bool:
            return self.prometheus is None or not self.is_fired(alert, group)

        eventually(is_over, timeout=120, what=f"{alert} ends", pause=0.5)

    def arises(self, alert: str, group: str, holds: Callable[[dict[str, Any]], object]) -> None:
        """Wait for the state of an alert, and for the alert."""
        self.eventually(alert, group, holds)
        self.fires(alert, group)

    def is_scraped(self, group: str) -> None:
        """Wait until Prometheus has figures of the group: some alerts tell a change of them."""
        prometheus = self.prometheus
        if prometheus is not None:
            eventually(lambda: prometheus.query(f'abcast_epoch{{group="{group}"}}'), what="figures", pause=0.5)
