"""The runbooks, executed: a pipeline breaks as an alert says, the commands of the page are done, and all is well again.

The commands are read from docs/runbooks.md. A test looks at the state itself, in the figures that the alert reads:
`abcast status --json`, a job's port, a member's metrics. Where Prometheus is installed, the alert
fires in that state, and no more after the commands.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar
from urllib.error import URLError

import confluent_kafka
import pytest
from kafka.admin import ConfigResource, ConfigResourceType

from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import create_topics
from connectors.kafka.transport.kafka_python import AdminClient, client_settings
from connectors.local.broker import EmbeddedBroker
from tests.cli.here import abcast_here
from tests.cli.process import Background
from tests.cli.test_listening import get, scraped
from tests.monitoring.pipeline import SITE, Pipeline
from tests.monitoring.test_alerts import alerts
from tests.waiting import WAIT, eventually

SITES = ("rb-nyc", "rb-sfo")
EXECUTED: set[str] = set()
"""Alerts whose runbooks tests of this module execute."""
GCC = shutil.which("gcc")

T = TypeVar("T", bound=Callable[..., None])


def executes(*names: str) -> Callable[[T], T]:
    """Mark the test that executes the runbooks of these alerts."""
    EXECUTED.update(names)
    return lambda test: test


@pytest.fixture
def made(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[Callable[..., Pipeline]]:
    pipelines: list[Pipeline] = []

    def make(name: str, *groups: str, **variables: str) -> Pipeline:
        pipelines.append(Pipeline(broker, tmp_path, name, *groups, **variables))
        return pipelines[-1]

    yield make
    for each in pipelines:
        each.end()


pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def answers(job: Background, path: str = "/readyz") -> int:
    """Return the status of a job's port; 0 if it does not answer."""
    try:
        return get(job, path)[0]
    except URLError:
        return 0


@pytest.mark.long
@pytest.mark.broker
@executes("AbcastStuck", "AbcastMemberFull", "AbcastDown", "AbcastTakeovers", "AbcastLedgerBehind")
def test_a_sequencer_is_gone(made: Callable[..., Pipeline]) -> None:
    here = made("gone", "a")
    (group,) = here.groups
    here.watch("ledger", "--data", "of-the-observer")
    with here.member(group) as bob, here.exported(bob):
        receipt = bob.broadcast_many([b"m"] * 9_000)
        assert bob.metrics().pending > 8_000
        here.fires("AbcastMemberFull", group)
        here.arises("AbcastStuck", group, lambda status: status["lag"] >= 9_000)
        assert abcast_here("status", "-g", group, cwd=here.directory, variables=here.variables).returncode == 1
        here.do("AbcastStuck", group)
        receipt.result(WAIT)
        assert bob.metrics().pending == 0
        here.ends("AbcastMemberFull", group)
    (first,) = here.jobs
    assert answers(first) == 200

    first.end()  # kill -9
    assert answers(first) == 0
    here.fires("AbcastDown", group)
    here.do("AbcastDown", group)
    assert answers(here.jobs[-1]) == 200
    here.publish(group)

    while here.status(group)["epoch"] < 5 or not here.is_fired("AbcastTakeovers", group):  # each takes seconds
        here.start("sequence")
    for job in here.jobs[:-1]:
        job.end()
    here.do("AbcastTakeovers", group, says="This process waits")
    epoch = here.status(group)["epoch"]
    here.publish(group, b"x\n" * 1_500)
    assert here.status(group)["epoch"] == epoch

    assert here.status(group)["ledger_lag"] > 1_000
    here.fires("AbcastLedgerBehind", group)
    here.do("AbcastLedgerBehind", group)
    here.eventually("the ledger", group, lambda status: status["ledger_lag"] == 0)


@pytest.mark.long
@pytest.mark.broker
@executes("AbcastSequencerSilent", "AbcastLeftOut", "AbcastLagGrows", "AbcastOpenTransaction")
def test_a_sequencer_hangs(made: Callable[..., Pipeline]) -> None:
    here = made("hangs", "a", "b")
    a, b = here.groups
    here.watch("ledger", "--data", "of-the-observer")
    hung = here.start("run")
    for group in here.groups:
        here.publish(group)
    client = confluent_kafka.Producer(
        {
            "bootstrap.servers": here.connection.bootstrap_servers,
            "transactional.id": "runbooks",
            "transaction.timeout.ms": 600_000,
            "linger.ms": 0,
        }
    )
    client.init_transactions(WAIT)
    client.begin_transaction()
    topic = f"abcast.{b}.forward.{SITE}"
    client.produce(topic, b"x", f"{SITE}/client".encode(), 0, headers=dict(forward_headers(5, 1)))
    client.flush(WAIT)

    hung.process.send_signal(signal.SIGSTOP)
    with closing(AdminClient(**client_settings(here.connection))) as admin:
        admin.delete_topics([f"abcast.{b}.dead-letter.{SITE}"])
    with here.member(a) as bob:
        receipt = bob.broadcast(b"m")
        here.arises("AbcastSequencerSilent", a, lambda status: status["sequencer"]["state"] == "silent")
        here.do("AbcastSequencerSilent", a)
        receipt.result(WAIT)
    hung.end()

    here.arises("AbcastLeftOut", b, lambda status: status["is_left_out"])
    assert "dead-letter" in here.status(b)["trouble"]
    here.arises("AbcastOpenTransaction", b, lambda status: status["open_transactions"])
    (found,) = here.status(b)["open_transactions"]
    assert (found["topic"], found["partition"]) == (topic, 0)
    client.abort_transaction(WAIT)  # its runbook: end the client
    here.do("AbcastLeftOut", b)
    here.ends("AbcastOpenTransaction", b)
    here.publish(b)

    busy = here.jobs[-1]
    busy.process.send_signal(signal.SIGSTOP)  # its host has no time for it
    with here.member(a) as bob:
        receipt = bob.broadcast_many([b"m"] * 2_000)
        here.arises("AbcastLagGrows", a, lambda status: status["lag"] > 1_000)
        here.do("AbcastLagGrows", a)
        receipt.result(WAIT)
    busy.process.send_signal(signal.SIGCONT)
    here.heals(b)
    here.publish(b)
    assert here.status(a)["sequencer"]["pid"] == here.jobs[-1].process.pid
    assert here.status(b)["sequencer"]["pid"] == busy.process.pid


@pytest.mark.long
@pytest.mark.broker
@executes("AbcastDeadLetters", "AbcastGap", "AbcastStrays")
def test_strange_records(made: Callable[..., Pipeline]) -> None:
    """A refused record, a client that skips a number, a writer in DATA; and a ledger of another history."""
    here = made("strange", "a")
    (group,) = here.groups
    here.watch()
    here.start("run")
    here.publish(group)
    here.is_scraped(group)
    forward, client = f"abcast.{group}.forward.{SITE}", f"{SITE}/client".encode()
    here.produce(forward, client, b"refused", [])
    here.arises("AbcastDeadLetters", group, lambda status: status["dead_letters"] == 1)
    here.do("AbcastDeadLetters", group, NUMBER="0")
    assert here.abcast("deliver", "-g", group, "-m", "bob", "--count", "2").splitlines()[1].endswith("refused")

    for number in (1, 3):
        here.produce(forward, client, b"%d" % number, forward_headers(10**17, number))
    here.arises("AbcastGap", group, lambda status: status["gaps"])
    assert here.status(group)["gaps"][0]["missing"] == 2
    for number in (2, 3):  # its runbook: send the missing record again, and those behind it
        here.produce(forward, client, b"%d" % number, forward_headers(10**17, number))
    here.heals(group)
    here.ends("AbcastGap", group)

    here.produce(f"abcast.{group}.data.{SITE}", client, b"stray", [])
    here.arises("AbcastStrays", group, lambda status: status["strays"] == 1)
    with here.member(group) as bob:
        for _ in range(2):
            bob.broadcast_many([b"m"] * 9_000).result(WAIT)  # so many that a snapshot is due
        bob.broadcast(b"m").result(WAIT)
    here.do("AbcastStrays", group)
    here.eventually("the ledger", group, lambda status: status["ledger_lag"] == 0)
    for job in here.jobs:
        job.end()

    with closing(AdminClient(**client_settings(here.connection))) as admin:
        admin.delete_topics([f"abcast.{group}.{role}.{SITE}" for role in ("data", "epoch", "forward")])
    create_topics(here.connection, group, [SITE])
    job = here.start("run", says="listening at ")
    here.eventually("its reason", group, lambda status: status["other_history"])
    job.terminate()
    here.variables["ABCAST_DATA"] = "anew"
    here.start("run")
    here.heals(group)


def sites_file(broker: EmbeddedBroker, directory: Path, head: str) -> str:
    """Write a file of two sites on one Kafka; return its path."""
    tables = "".join(f'[sites.{name}]\nbootstrap_servers = "{broker.bootstrap_servers}"\n' for name in SITES)
    (directory / "sites.toml").write_text(head + tables, encoding="utf-8")
    return str(directory / "sites.toml")


@pytest.mark.long
@pytest.mark.broker
@executes("AbcastAgreementWaits")
def test_a_site_is_gone(broker: EmbeddedBroker, made: Callable[..., Pipeline], tmp_path: Path) -> None:
    """Two sites on one Kafka: the other one comes back, or is excluded; then it joins again."""
    file = sites_file(broker, tmp_path, 'mode = "isis"\nsuspect_after_ms = 3000\n')
    nyc, sfo = (
        made("agree", "g", ABCAST_SITE=name, ABCAST_SITES=file, ABCAST_DATA=str(tmp_path / name)) for name in SITES
    )
    (group,) = nyc.groups
    nyc.watch()
    for each in (nyc, sfo):
        each.start("sequence")
    nyc.heals(group)
    placeholders = {"GONE": "rb-sfo", "FILE": file}
    for undo in (lambda: sfo.start("sequence"), lambda: nyc.do("AbcastAgreementWaits", group, **placeholders)):
        sfo.end()
        nyc.arises("AbcastAgreementWaits", group, lambda status: status["agreement"]["waits"])
        undo()
        nyc.heals(group)
        nyc.ends("AbcastAgreementWaits", group)
        nyc.publish(group)
    sfo.start("sequence")
    nyc.eventually("the undo", group, lambda status: len(status["agreement"]["sites"]) == 2)


@pytest.mark.long  # a relay takes Spark
@pytest.mark.broker
@executes("AbcastRelaySilent")
def test_a_relay_has_never_begun(broker: EmbeddedBroker, made: Callable[..., Pipeline], tmp_path: Path) -> None:
    """In a mesh, the relay begins."""
    nyc, sfo = SITES
    here = made("mesh", "g", ABCAST_SITE=nyc, ABCAST_SITES=sites_file(broker, tmp_path, 'mode = "mesh"\n'))
    (group,) = here.groups
    here.watch()
    create_topics(here.connection, group, [sfo])
    job = here.start("sequence")
    here.arises("AbcastRelaySilent", group, lambda status: status["relays"] == {sfo: None})
    here.do("AbcastRelaySilent", group, OTHER=sfo)
    silent_s = ("abcast_relay_silent_seconds", sfo, group, nyc)  # labels by their names: from, group, site
    eventually(lambda: scraped(job).get(silent_s, 60.0) < 60.0, what="the figure of the alert")


@pytest.mark.long
@pytest.mark.broker
@executes("AbcastNotReady")
def test_a_ledger_hangs_as_it_starts(made: Callable[..., Pipeline]) -> None:
    """Stop the process of the ledger before it works."""
    here = made("starts", "a")
    (group,) = here.groups
    here.watch()
    job = here.start("run", says="listening at ")

    def children() -> list[int]:
        threads = Path(f"/proc/{job.process.pid}/task").glob("*/children")
        found = [child for each in threads for child in each.read_text().split()]
        return [int(child) for child in found if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]

    eventually(children, what="the process of the ledger")
    for child in children():
        os.kill(child, signal.SIGSTOP)
    assert (answers(job, "/healthz"), answers(job)) == (200, 503)
    here.fires("AbcastNotReady", group)
    job.end()
    here.do("AbcastNotReady", group)
    assert answers(here.jobs[-1]) == 200


@pytest.mark.long  # two looks at the clocks are half a minute apart
@pytest.mark.skipif(GCC is None, reason="no gcc is installed: no broker gets another clock than this machine")
@executes("AbcastClocksDiffer")
def test_a_clock_is_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker's, until the broker starts with the machine's."""
    shim = tmp_path / "ahead.so"
    source = Path(__file__).with_name("ahead.c")
    subprocess.run([str(GCC), "-shared", "-fPIC", "-DAHEAD_S=30", "-o", str(shim), str(source)], check=True)
    with monkeypatch.context() as ahead:
        ahead.setenv("LD_PRELOAD", str(shim))
        broker = EmbeddedBroker(tmp_path / "broker", port=0)
        broker.start()
    with broker:
        here = Pipeline(broker, tmp_path, "clocks", "a")
        (group,) = here.groups
        here.watch(scrape_s=2)
        job = here.start("sequence")

        def difference_s() -> float:
            here.publish(group)  # only a record tells its broker's time
            return scraped(job).get(("abcast_clock_difference_seconds", SITE), -1.0)

        try:
            eventually(lambda: 10 < difference_s() <= 31, timeout=200, what="AbcastClocksDiffer", pause=3.0)
            [of_site] = json.loads(get(job, "/api/status")[1])["sites"]
            assert (of_site["clocks"]["ahead"], of_site["clocks"]["behind"]) == ("broker 0", "this machine")
            assert "set both by NTP" in of_site["wrong"][0]
            here.fires("AbcastClocksDiffer", group)
            broker.kill()
            broker.start()
            eventually(lambda: 0 <= difference_s() < 10, timeout=200, what="the same clock", pause=3.0)
            here.ends("AbcastClocksDiffer", group)
        finally:
            here.end()


@pytest.mark.soak  # a cluster of three nodes, and a minute without any
@executes("AbcastReplicasBehind", "AbcastWritesRefused", "AbcastUnreadable", "AbcastStatusUnknown")
def test_brokers_are_gone(tmp_path: Path) -> None:
    """Kill a node of three, then all. Each runbook says: bring the brokers back."""
    with EmbeddedBroker(tmp_path / "cluster", port=0, nodes=3) as cluster:
        connection, a = Connection(cluster.bootstrap_servers), "runbook.nodes.a"
        create_topics(connection, a, [SITE], replication_factor=3)
        here = Pipeline(cluster, tmp_path, "nodes", "a", "b")
        _, b = here.groups
        here.watch(scrape_s=10)  # without brokers a job answers after 8 s
        with connection.admin() as admin:
            needs_all = {"min.insync.replicas": "3"}
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, f"abcast.{a}.data.{SITE}", needs_all)])
        job = here.start("run")
        for group in here.groups:
            here.publish(group)
            here.heals(group)

        def figure(name: str, *labels: str) -> float:
            return scraped(job).get((name, *labels), -1)

        try:
            with connection.admin() as admin:
                [topic] = admin.describe_topics([f"abcast.{b}.data.{SITE}"])
            cluster.kill(topic["partitions"][0]["leader_id"])
            for what, name, group, least, most in (
                ("AbcastReplicasBehind", "abcast_under_replicated_partitions", a, 1, 100),
                ("AbcastWritesRefused", "abcast_under_min_isr_partitions", a, 1, 100),
                ("AbcastUnreadable", "abcast_group_readable", b, 0, 0),
            ):
                eventually(lambda: least <= figure(name, group, SITE) <= most, what=what, pause=1.0)  # noqa: B023
                here.fires(what, group)
            with here.member(a) as bob:
                receipt = bob.broadcast(b"while writes are refused")
                cluster.start()
                receipt.result(WAIT)
            for group in here.groups:
                here.heals(group)
                here.publish(group)
            for what, group in (("AbcastReplicasBehind", a), ("AbcastWritesRefused", a), ("AbcastUnreadable", b)):
                here.ends(what, group)

            for node in range(3):
                cluster.kill(node)
            eventually(lambda: figure("abcast_status_ok") == 0, timeout=120, what="AbcastStatusUnknown", pause=1.0)
            here.fires("AbcastStatusUnknown", a)
            cluster.start()
            for group in here.groups:
                here.heals(group)
                here.publish(group)
            eventually(lambda: figure("abcast_status_ok") == 1, what="figures again", pause=1.0)
            here.ends("AbcastStatusUnknown", a)
        finally:
            here.end()


def test_each_runbook_is_executed() -> None:
    assert alerts().keys() == EXECUTED
