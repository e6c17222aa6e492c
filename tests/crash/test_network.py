"""Faults of a network between real brokers, the job and members: cuts, delay, loss. Each prints the longest silence."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.client.tail.cast_reader import CastReader, CastTopics
from connectors.kafka.log.same_log_consumer import SameLogConsumer
from ordering.base.errors import HistoryChanged
from ordering.base.names import Topic
from tests.crash.conftest import MakeScenario
from tests.crash.network import HERE, Network, NetworkCluster, broker, lack
from tests.crash.scenario import Load, Observer, Scenario
from tests.crash.test_brokers import in_sync, longest_silence_ms, roles_of_nodes
from tests.waiting import eventually

pytestmark = [pytest.mark.crash, pytest.mark.broker, pytest.mark.soak]

JOB = "job"
"""The host of the job and of senders that are processes of their own."""
BROKERS = [broker(number) for number in range(3)]
CUT_S = 15
MAX_SILENCE_MS = 60_000
"""Some 20 s, on a machine that is idle."""
HEALTHY = 100
"""Messages that are ordered before a fault, and after it."""


@pytest.fixture
def network() -> Iterator[Network]:
    if why := lack():
        pytest.skip(f"needs Linux, root, /dev/net/tun, and the commands ip, nsenter and unshare: {why}")
    with Network([*BROKERS, JOB]) as network:
        yield network


@pytest.fixture
def scenario(network: Network, tmp_path: Path, make_scenario: MakeScenario) -> Iterator[Scenario]:
    """Yield a group with three copies on three brokers, each on a host of its own; the processes run on JOB."""
    with NetworkCluster(tmp_path / "cluster", network) as cluster:
        scenario = make_scenario(cluster.bootstrap_servers, copies=3)
        scenario.engine, scenario.runner = "process", network.run_on(JOB)
        yield scenario
        network.heal()
        scenario.close()


CONNECT = """
import socket, sys, time
began = time.monotonic()
try:
    socket.create_connection((sys.argv[1], 7000), timeout=2).close()
    print(round((time.monotonic() - began) * 1000))
except TimeoutError:
    print("cut")
"""
SERVE = """
import socket
server = socket.create_server(("", 7000))
print(flush=True)
while True:
    server.accept()[0].close()
"""


@pytest.mark.timeout(120)
def test_the_faults_are_real(network: Network) -> None:
    def connect(host: str) -> str:
        command = network.run_on(host, sys.executable, "-c", CONNECT, network.addresses[JOB])
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    serve = network.run_on(JOB, sys.executable, "-c", SERVE)
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            server.stdout.readline()
            assert all(connect(host) != "cut" for host in (*BROKERS, HERE))
            network.cut(JOB, BROKERS[0])
            assert [connect(host) == "cut" for host in (*BROKERS, HERE)] == [True, False, False, False]
            network.heal()
            network.delay(JOB, 150)
            assert int(connect(BROKERS[0])) >= 300
            network.heal()
            network.loss(JOB, 100)
            assert connect(HERE) == "cut"
        finally:
            server.kill()


@pytest.mark.parametrize("engine", ["process", "spark"])
@pytest.mark.timeout(900)
def test_one_broker_is_cut_off(scenario: Scenario, network: Network, engine: str) -> None:
    """The leader of DATA loses the two others for CUT_S, and its clients still reach it: one order, nobody lost."""
    scenario.engine = engine
    process = scenario.sequencer()
    loads = [scenario.load("alice"), scenario.load("bob", threads=2)]
    observer = scenario.observer("olga")
    observer.wait(HEALTHY, 120)
    old = roles_of_nodes(scenario)["leader of DATA"]
    network.cut(broker(old), *(host for number, host in enumerate(BROKERS) if number != old))
    time.sleep(CUT_S)
    network.heal()
    eventually(lambda: in_sync(scenario), 120, "all replicas are in sync again", 0.3)
    observer.wait(observer.taken[-1].seqno + HEALTHY, 180)
    assert process.running()
    silence_ms = verified(scenario, loads, observer)
    print(json.dumps({"cut_s": CUT_S, "silence_ms": silence_ms}))
    assert silence_ms < MAX_SILENCE_MS


@pytest.mark.timeout(900)
def test_a_slow_and_lossy_way_to_the_job(scenario: Scenario, network: Network) -> None:
    """Each packet between the job and the brokers takes 100 ms, and 5 % are lost: the order goes on, at some rate."""
    process = scenario.sequencer()
    loads = [scenario.load("alice", 0.1), scenario.load("bob", 0.1)]
    observer = scenario.observer("olga")
    observer.wait(HEALTHY, 120)
    network.delay(JOB, 100)
    network.loss(JOB, 5)
    first, began = observer.taken[-1].seqno, time.monotonic()
    observer.wait(first + 2 * HEALTHY, 240)
    rate = (observer.taken[-1].seqno - first) / (time.monotonic() - began)
    assert process.running()
    network.heal()
    silence_ms = verified(scenario, loads, observer)
    print(json.dumps({"delay_ms": 100, "loss": 5, "ordered_per_s": round(rate, 1), "silence_ms": silence_ms}))
    assert silence_ms < MAX_SILENCE_MS


def verified(scenario: Scenario, loads: Sequence[Load], observer: Observer) -> int:
    """Check order and completeness, also with `abcast check`. Return the longest silence of the order, in ms."""
    sent = [message for load in loads for message in load.finish(180)]
    taken = observer.wait(len(sent), 120)
    assert scenario.verify(sent, {"olga": taken}) == len(sent)
    assert scenario.abcast("check", "--site", scenario.site).wait_exit(120) == 0
    return longest_silence_ms(taken)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("transport", ["kafka-python", "confluent"])
@pytest.mark.timeout(900)
def test_a_deposed_leader_is_not_believed(scenario: Scenario, network: Network, transport: str, alone: bool) -> None:
    """A reader that asks a former leader, which is cut off, does not take the log for changed.

    It waits if it reaches that broker `alone`. Otherwise kafka-python finds the new leader; librdkafka, which asks the
    brokers that it is connected with, may wait.
    """
    place = TopicPartition(str(Topic(scenario.group, "data", scenario.site)), 0)
    everyone = scenario.connection.bootstrap_servers.split(",")
    append(scenario, place, everyone)
    old = roles_of_nodes(scenario)["leader of DATA"]
    others = [host for number, host in enumerate(BROKERS) if number != old]
    network.cut(broker(old), *others, JOB)
    append(scenario, place, everyone[:old] + everyone[old + 1 :])
    if alone:
        network.cut(HERE, *others)
    former = replace(scenario.connection, bootstrap_servers=everyone[old], transport=transport)
    with closing(former.consumer()) as consumer:
        log = SameLogConsumer(consumer, lambda place, what: HistoryChanged(f"{place} {what}"))
        log.read({place: 15})
        read: list[int] = []

        def has_read() -> bool:
            with suppress(KafkaError):
                read.extend(record.offset for record in log.poll(1).get(place, ()))
            return read == [15, 16, 17, 18, 19]

        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not has_read():
            assert not (alone and read)
        if alone or transport == "confluent":
            network.heal()
        eventually(has_read, 120, "the reader is past the end that the former leader knows")


@pytest.mark.timeout(900)
def test_a_deposed_leader_tells_no_end_of_casts(scenario: Scenario, network: Network) -> None:
    """A reader of casts that knows a former leader is at the end only when it has read what the new one has.

    Otherwise the senders of the casts behind that end would be blamed for wrong clocks (CastMissing).
    """
    place = TopicPartition(str(Topic(scenario.group, "cast", scenario.site)), 0)
    everyone = scenario.connection.bootstrap_servers.split(",")
    append(scenario, place, everyone)
    with scenario.connection.admin() as admin:
        [found] = admin.describe_topics([place.topic])
    old = found["partitions"][0]["leader_id"]
    network.cut(broker(old), *(host for number, host in enumerate(BROKERS) if number != old), JOB)
    append(scenario, place, everyone[:old] + everyone[old + 1 :])
    former = replace(scenario.connection, bootstrap_servers=everyone[old])
    with closing(former.metadata_client()) as metadata:
        topics = CastTopics(former, metadata, scenario.group, scenario.site)
        with closing(CastReader(topics, {place: 0}, lambda: None)) as reader:
            reader.buffer.ask_for_end()

            def is_at_end() -> bool:
                reader.buffer.take()
                return reader.buffer.has_taken_all

            eventually(is_at_end, 120, "the reader is at the end")
            assert reader._read_up_to == {place: 20}


APPEND = """
import sys
from connectors.kafka.connection.connection import Connection
servers, topic = sys.argv[1:]
producer = Connection(servers, timeout=60).producer()
for sent in [producer.send(topic, b"%d" % number, partition=0) for number in range(10)]:
    sent.get(120)
"""


def append(scenario: Scenario, place: TopicPartition, servers: Sequence[str]) -> None:
    """Append ten records by a process on JOB."""
    assert scenario.start("append", sys.executable, "-c", APPEND, ",".join(servers), place.topic).wait_exit(120) == 0
