"""The embedded broker: its stored data, its errors at the start, and the end of its processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from connectors.local.broker import EmbeddedBroker
from connectors.local.class_archive import class_archive
from connectors.local.node import Node, failure_reason
from ordering.base.errors import EnvironmentProblem, UsageError
from tests.leftovers import assert_nothing_is_left

ROOT = Path(__file__).parents[2]
TOPIC = "numbers"


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """Yield a broker of the test's own, not started; remove it afterwards."""
    broker = EmbeddedBroker(tmp_path / "broker", port=0)
    yield broker
    broker.stop()


@pytest.mark.slow
def test_a_node_that_is_up_and_silent_uses_up_neither_threads_nor_files(tmp_path: Path) -> None:
    """The node is asked again and again while it starts."""
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def ask() -> None:
            assert not Node(tmp_path, 1).answers(f"127.0.0.1:{silent.getsockname()[1]}", {}, timeout_s=0.1)

        assert_nothing_is_left(ask, times=5)


def test_a_directory_that_kafka_can_not_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes no line feed"):
        EmbeddedBroker(tmp_path / "a\nb")


def create_topic(broker: EmbeddedBroker, copies: int = 1) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.create_topics([NewTopic(TOPIC, num_partitions=1, replication_factor=copies)])
    admin.close()


def write(broker: EmbeddedBroker, *values: bytes) -> None:
    """Write `values` and return when they are acknowledged."""
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, acks="all", enable_idempotence=True)
    for value in values:
        producer.send(TOPIC, value).get(timeout=30)
    producer.close()


def read(broker: EmbeddedBroker) -> list[bytes]:
    """Return all values of the topic."""
    partition = TopicPartition(TOPIC, 0)
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest")
    consumer.assign([partition])
    end = consumer.end_offsets([partition])[partition]
    values: list[bytes] = []
    deadline = time.monotonic() + 30
    while len(values) < end and time.monotonic() < deadline:
        for records in consumer.poll(timeout_ms=500).values():
            values += [record.value for record in records]
    consumer.close()
    return values


def wait_until_gone(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes():
            return True
        time.sleep(0.1)
    return False


@pytest.mark.long
@pytest.mark.broker
def test_a_stopped_broker_goes_on_with_its_data_and_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of any name holds the files, whatever the terminal can show."""
    monkeypatch.setenv("LC_ALL", "C")
    directory = tmp_path / r"bü 🐍 \u0041=#:! "
    with EmbeddedBroker(directory, port=0) as broker:
        create_topic(broker)
        write(broker, b"1", b"2")
        address = broker.bootstrap_servers
    assert not broker.status().running

    with EmbeddedBroker(directory) as again:
        assert address == again.bootstrap_servers
        write(again, b"3")
        assert read(again) == [b"1", b"2", b"3"]
    assert [path.name for path in tmp_path.iterdir()] == [directory.name]


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.crash
def test_what_was_acknowledged_survives_kill_9(own_broker: EmbeddedBroker) -> None:
    own_broker.start()
    create_topic(own_broker)
    write(own_broker, b"1", b"2")
    own_broker.kill()
    assert own_broker.status().nodes[0].pid is None

    own_broker.start()
    write(own_broker, b"3")
    assert read(own_broker) == [b"1", b"2", b"3"]


@pytest.mark.broker
def test_status_is_seen_from_elsewhere_and_start_is_idempotent(broker: EmbeddedBroker) -> None:
    other = EmbeddedBroker(broker.directory)

    assert other.status() == broker.status()
    assert other.status().running
    assert not other.start()
    with other:
        pass
    assert broker.status().running, "leaving a with block must not stop what it did not start"


@pytest.mark.broker
def test_java_takes_the_archive_of_classes(broker: EmbeddedBroker) -> None:
    maps = Path(f"/proc/{broker.status().nodes[0].pid}/maps")
    if not class_archive("broker").exists() or not maps.exists():
        pytest.skip("`make setup` has not recorded it, or there is no /proc")
    assert str(class_archive("broker")) in maps.read_text(encoding="utf-8")


@pytest.mark.broker
def test_a_running_broker_does_not_move_to_another_port(broker: EmbeddedBroker) -> None:
    with pytest.raises(UsageError, match="runs already, on port"):
        EmbeddedBroker(broker.directory, port=19999).start()


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EnvironmentProblem, match=rf"Port {port} is taken .*--port"):
            EmbeddedBroker(tmp_path, port=port, progress=lambda _sentence: None).start()


@pytest.mark.broker
@pytest.mark.crash
@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_a_broker_ends_with_the_process_that_started_it(tmp_path: Path, how: signal.Signals) -> None:
    script = (
        "import sys, time; from pathlib import Path; from connectors.local.broker import EmbeddedBroker;"
        "EmbeddedBroker(Path(sys.argv[1]), port=0).start(); print('up', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        pid = EmbeddedBroker(tmp_path).status().nodes[0].pid
        assert pid is not None
        parent.send_signal(how)

    assert wait_until_gone(pid, 15)


@pytest.mark.broker
@pytest.mark.crash
def test_a_detached_broker_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from connectors.local.broker import EmbeddedBroker;"
        "EmbeddedBroker(Path(sys.argv[1]), port=0).start(detached=True)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, check=True)
    broker = EmbeddedBroker(tmp_path)
    try:
        create_topic(broker)
        assert broker.status().running
    finally:
        broker.stop()
    assert not broker.status().running


@pytest.mark.long
@pytest.mark.broker
def test_a_cluster_id_may_begin_with_a_hyphen(own_broker: EmbeddedBroker) -> None:
    own_broker.directory.mkdir()
    (own_broker.directory / "cluster.json").write_text(
        '{"cluster_id": "-JmN9xQnSlWSyZ5nTZ4Fqg", "ports": []}', encoding="ascii"
    )
    assert own_broker.start()


@pytest.mark.broker
@pytest.mark.soak
@pytest.mark.timeout(240)
def test_three_nodes_take_a_rolling_restart_and_lose_nothing(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, port=0, nodes=3) as cluster:
        create_topic(cluster, copies=3)
        for node in range(3):
            cluster.kill(node, signal.SIGTERM)
            write(cluster, f"without {node}".encode())
            cluster.start()
        cluster.kill(1)
        write(cluster, b"after kill")
        assert read(cluster) == [b"without 0", b"without 1", b"without 2", b"after kill"]


def test_a_reused_process_id_is_not_taken_for_the_broker(tmp_path: Path) -> None:
    """The pid file of a node that died names a process that is now something else: this test."""
    (tmp_path / "node-0").mkdir()
    (tmp_path / "node-0" / "pid").write_text(str(os.getpid()), encoding="ascii")
    broker = EmbeddedBroker(tmp_path)

    assert broker.status().nodes[0].pid is None
    broker.stop()  # and stop leaves this process alone


def test_a_broker_that_cannot_start_gives_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java that only fails replaces a broken installation."""
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        '#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "17.0.1"\'; exit; fi\n'
        "echo Error: no such option; exit 1\n",
        encoding="ascii",
    )
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))

    with pytest.raises(EnvironmentProblem, match=r"Error: no such option\. The whole log is .*log") as caught:
        EmbeddedBroker(tmp_path / "broker", port=0, progress=lambda _sentence: None).start()
    assert "\n" not in str(caught.value)


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=0))

    assert "is full: free space and start again" in str(Node(tmp_path, 0).failure("stopped while starting", 9092))


def test_a_directory_keeps_its_number_of_nodes(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(
        '{"cluster_id": "x", "ports": [{"broker": 9092, "controller": 9093}]}', encoding="ascii"
    )
    assert EmbeddedBroker(tmp_path).bootstrap_servers == "127.0.0.1:9092"
    with pytest.raises(UsageError, match="holds a cluster of 1 node, not 3"):
        EmbeddedBroker(tmp_path, nodes=3)


def test_the_address_of_a_cluster_does_not_change(tmp_path: Path) -> None:
    """A secure cluster has the address of its certificate."""
    new = EmbeddedBroker(tmp_path, host="127.0.0.2")
    assert new.host == "127.0.0.2"
    (tmp_path / "cluster.json").write_text('{"cluster_id": "x", "ports": [], "host": "127.0.0.2"}', encoding="utf-8")
    assert EmbeddedBroker(tmp_path).host == "127.0.0.2"
    with pytest.raises(UsageError, match=r"no other address than 127\.0\.0\.2"):
        EmbeddedBroker(tmp_path, host="127.0.0.1")
    with pytest.raises(UsageError, match=r"no other address than 127\.0\.0\.1"):
        EmbeddedBroker(tmp_path / "secure", secure=True, host="127.0.0.2")


def test_an_address_before_the_first_start_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="was never started"):
        _ = EmbeddedBroker(tmp_path).bootstrap_servers


def test_a_damaged_cluster_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{", encoding="ascii")
    with pytest.raises(EnvironmentProblem, match=r"cluster\.json can't be read"):
        EmbeddedBroker(tmp_path)


def test_failure_reason_prefers_the_error_to_the_last_line() -> None:
    log = "2026-01-01 INFO start\n2026-01-01 ERROR KafkaServer: bad setting\n2026-01-01 INFO shut down\n"

    assert failure_reason(log) == "2026-01-01 ERROR KafkaServer: bad setting."
    assert failure_reason("") == "nothing was logged."
