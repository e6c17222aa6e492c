"""The embedded broker: a real Kafka (KRaft, no ZooKeeper) on this machine, for demos and tests.

One directory is one cluster. It remembers its identity, its ports and its data, so a later `EmbeddedBroker(directory)`
goes on where the last one stopped. Each node is a JVM that is both broker and controller, bound to 127.0.0.1 (unless an
address is given: see `EmbeddedBroker`):

    cluster.json          cluster id, address, and per node the broker's and the controller's port
    node-N/server.properties
    node-N/data           Kafka's log
    node-N/pid            the process, while one runs
    node-N/tmp            its native libraries; emptied at each start
    node-N/server.log     Kafka's own log, rolling
    node-N/console.log    what the JVM printed since the last start
    secure/               keys and users, if it is a secure one (`connectors.local.secure_cluster`)

A node lives in its own process group, so a Ctrl-C in the terminal reaches only our process, which then stops the node
in order. When our process dies in any other way, a watchdog stops it, except after `start(detached=True)`.
"""

from __future__ import annotations

import base64
import fcntl
import json
import logging
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from kafka.errors import KafkaError

from connectors.kafka.transport.kafka_python import AdminClient
from connectors.local.configuration import configuration_file
from connectors.local.jars import Progress, broker_jars, say
from connectors.local.java import require_java
from connectors.local.secure_cluster import LISTENER, SecureCluster, argument_file
from ordering.errors import AbcastError, EnvironmentProblem, UsageError, in_short
from ordering.records import MAX_RECORD_BYTES

DEFAULT_PORT = 9092
HOST = "127.0.0.1"
_HIGHEST_PORT = 65_535

STOP_TIMEOUT_S = 20.0
"""How long a node may take to stop in order before it is killed. Nothing is lost then; its next start is slower."""

# Outside the range from which systems take the ports of outgoing connections (32768 and up on Linux), so that a
# remembered port isn't in use by accident when a node comes back.
_CHOSEN_PORTS = range(20000, 32000)

_TOO_LITTLE_SPACE = 1024 * 1024
"""Bytes. With less free, a node that did not start is taken to have failed for that reason."""

_MAIN_CLASS = "kafka.Kafka"

# Stops node $1 when standard input ends, that is, when our process is gone. It looks at the command line first,
# because the node may have died long ago and its process id may belong to someone else by now.
_WATCHDOG = f"""
read -r _
command_line() {{ cat "/proc/$1/cmdline" 2>/dev/null || ps -o command= -p "$1"; }}
case "$(command_line "$1")" in *{_MAIN_CLASS}*) kill -TERM "$1" ;; *) exit ;; esac
for _ in 1 2 3 4 5 6 7 8 9 10; do sleep 1; kill -0 "$1" || exit; done
kill -KILL "$1"
"""

_SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    # abcast makes its topics itself, with the settings its promises need; a typing error must not make one.
    "auto.create.topics.enable": "false",
    # abcast's timeouts count the broker's time, not the senders'.
    "log.message.timestamp.type": "LogAppendTime",
    "message.max.bytes": str(MAX_RECORD_BYTES),
    "replica.fetch.max.bytes": str(MAX_RECORD_BYTES),
    # A member that was away for months goes on where it stopped.
    "offsets.retention.minutes": str(365 * 24 * 60),
    # The rest makes a small cluster start fast and stay small.
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "broker.heartbeat.interval.ms": "500",
    # A killed node may come back only when its old session has ended: 9 s by default.
    "broker.session.timeout.ms": "4000",
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    "num.network.threads": "2",
    "num.io.threads": "4",
}


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node: its process, or None when it does not run; its address; the log to look into."""

    node: int
    pid: int | None
    address: str
    log: Path


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A cluster as its directory and the processes of this machine show it. `running`: all nodes have a process."""

    directory: Path
    bootstrap_servers: str
    nodes: tuple[NodeStatus, ...]

    @property
    def running(self) -> bool:
        """Whether every node has a process."""
        return all(node.pid is not None for node in self.nodes)


@dataclass(frozen=True, slots=True)
class _Ports:
    broker: int
    controller: int


@dataclass(frozen=True, slots=True)
class _Cluster:
    """What `cluster.json` remembers."""

    cluster_id: str
    ports: tuple[_Ports, ...]
    secure: bool = False
    host: str = HOST

    @staticmethod
    def load(directory: Path) -> _Cluster | None:
        try:
            found = json.loads((directory / "cluster.json").read_text(encoding="utf-8"))
            ports = tuple(_Ports(**each) for each in found["ports"])
            return _Cluster(found["cluster_id"], ports, bool(found.get("secure", False)), found.get("host", HOST))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise EnvironmentProblem(
                f"{directory / 'cluster.json'} can't be read ({in_short(error)}): restore it, or use another directory."
            ) from error

    def save(self, directory: Path) -> None:
        new = directory / "cluster.json.new"
        new.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        new.replace(directory / "cluster.json")


class EmbeddedBroker:
    """One Kafka cluster in one directory.

    Args:
        directory: where everything lies; made if it is not there.
        port: the first node's port, the others take the next ones. 0: free ports. None: the remembered ones, or 9092
            in a new directory. In a directory that has ports already, 0 means those.
        nodes: 1, or 3 for a cluster that survives the loss of one. None: as the directory has it, or 1.
        progress: is told what a slow step waits for.
        secure: with TLS, users and rights (`connectors.local.secure_cluster`). None: as the directory has it, or open.
        host: the address of a new cluster; a later start keeps it. None: 127.0.0.1, the only one of a secure cluster,
            whose certificate names it.

    Guarantees: `start` returns when every node answers Kafka requests. What a producer with acks=all was told is
    written survives `kill` of any node (the operating system, not the JVM, holds the written pages).

    Raises:
        UsageError: the directory holds a cluster of another size, kind or address, or its name has a comma.
    """

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        nodes: int | None = None,
        progress: Progress = say,
        secure: bool | None = None,
        host: str | None = None,
    ) -> None:
        self.directory = Path(directory).expanduser().resolve()
        if "," in str(self.directory):
            raise UsageError(f"Kafka takes no comma in {self.directory}: choose another directory.")
        if nodes is not None and nodes < 1:
            raise UsageError(f"A cluster has at least one node, not {nodes}.")
        self._port = port
        self._progress = progress
        self._cluster = _Cluster.load(self.directory)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._watchdogs: dict[int, subprocess.Popen[bytes]] = {}
        self._started_here = False
        has = self._cluster.secure if self._cluster else bool(secure)
        if secure not in (None, has):
            raise UsageError(
                f"{self.directory} holds a cluster {'with' if has else 'without'} users and passwords, which it keeps: "
                "choose another directory."
            )
        self.secure = SecureCluster(self.directory) if has else None
        self._new_host = host or HOST
        its_own = HOST if has else self.host
        if host not in (None, its_own):
            raise UsageError(f"The cluster in {self.directory} has no other address than {its_own}.")
        if self._cluster is None:
            self.nodes = nodes or 1
        elif nodes is None or nodes == len(self._cluster.ports):
            self.nodes = len(self._cluster.ports)
        else:
            held = len(self._cluster.ports)
            raise UsageError(
                f"{self.directory} holds a cluster of {held} node{'s' if held > 1 else ''}, not {nodes}: "
                "choose another directory."
            )

    # --- what others ask -------------------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The address of all nodes."""
        return self._cluster.host if self._cluster else self._new_host

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of every node, comma-separated.

        Raises:
            UsageError: the cluster was never started, so that it has no ports yet.
        """
        if self._cluster is None:
            raise UsageError(f"The broker in {self.directory} was never started: start it first.")
        return ",".join(f"{self._cluster.host}:{ports.broker}" for ports in self._cluster.ports)

    def status(self) -> BrokerStatus:
        """The cluster as it is now. Asks no broker; needs no Java and no network."""
        addresses = self.bootstrap_servers.split(",") if self._cluster else [""] * self.nodes
        nodes = tuple(
            NodeStatus(node, self._pid(node), address, self._log(node)) for node, address in enumerate(addresses)
        )
        return BrokerStatus(self.directory, ",".join(filter(None, addresses)), nodes)

    def __enter__(self) -> EmbeddedBroker:
        """Start, unless it runs already."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop what `__enter__` started; a broker that ran before goes on."""
        if self._started_here:
            self.stop()

    # --- start, stop, kill -----------------------------------------------------------------------------------------

    def start(self, timeout: float = 60.0, detached: bool = False) -> bool:
        """Start every node that does not run and wait until all answer.

        Args:
            timeout: seconds until giving up.
            detached: let the nodes outlive this process; `stop` of any process ends them.

        Returns:
            False if all nodes ran already.

        Raises:
            EnvironmentProblem: no Java, no jars, a port is taken, the disk is full, or it did not come up in time.
            UsageError: it runs already, on another port than the one asked for.
        """
        java, jars = require_java(), broker_jars(self._progress)
        with self._locked():
            running = {node for node in range(self.nodes) if self._pid(node) is not None}
            before = self._cluster
            self._cluster = self._choose_ports(anything_runs=bool(running))
            missing = [node for node in range(self.nodes) if node not in running]
            try:
                if missing:
                    self._start_nodes(missing, java, jars, detached, timeout)
            except BaseException:
                if before is None and not any(map(self._is_formatted, range(self.nodes))):
                    # Nothing was begun, so the next start is free to choose ports and size.
                    self._cluster = None
                    (self.directory / "cluster.json").unlink(missing_ok=True)
                raise
        return bool(missing)

    def start_node(self, node: int = 0, timeout: float = 60.0, detached: bool = False) -> None:
        """Start one node again and wait until it answers. Raises as `start` does."""
        self._existing(node)
        java, jars = require_java(), broker_jars(self._progress)
        with self._locked():
            if self._pid(node) is None:
                self._start_nodes([node], java, jars, detached, timeout)

    def stop(self, timeout: float = STOP_TIMEOUT_S) -> None:
        """Stop every node, also those another process started; kill what has not stopped after `timeout` seconds."""
        self._end(range(self.nodes), signal.SIGTERM, timeout)
        self._started_here = False

    def stop_node(self, node: int = 0, timeout: float = STOP_TIMEOUT_S) -> None:
        """Stop one node in order, as a rolling restart does."""
        self._existing(node)
        self._end([node], signal.SIGTERM, timeout)

    def kill(self, node: int = 0) -> None:
        """End one node at once (SIGKILL), as a crash would."""
        self._existing(node)
        self._end([node], signal.SIGKILL, STOP_TIMEOUT_S)

    # --- inside ----------------------------------------------------------------------------------------------------

    def _node_directory(self, node: int) -> Path:
        return self.directory / f"node-{node}"

    def _log(self, node: int) -> Path:
        return self._node_directory(node) / "server.log"

    def _properties(self, node: int) -> Path:
        return self._node_directory(node) / "server.properties"

    def _existing(self, node: int) -> None:
        if not 0 <= node < self.nodes:
            raise UsageError(f"There is no node {node}: this cluster has nodes 0 to {self.nodes - 1}.")

    def _pid(self, node: int) -> int | None:
        """The node's process, if it lives and really is this node and not a later process with the same id."""
        process = self._processes.get(node)
        if process is not None:
            if process.poll() is None:  # a child of ours: no doubt about it
                return process.pid
            del self._processes[node]
        try:
            pid = int((self._node_directory(node) / "pid").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        command = _command_line(pid)
        return pid if _MAIN_CLASS in command and str(self._properties(node)) in command else None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one process at a time start nodes here, and say plainly when the directory can't be written."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with (self.directory / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                # Another process may have chosen the ports while we waited.
                self._cluster = _Cluster.load(self.directory) or self._cluster
                yield
        except OSError as error:
            raise EnvironmentProblem(
                f"The broker can't write to {self.directory} ({error.strerror or error}): "
                "free disk space, or choose another directory."
            ) from error

    def _choose_ports(self, anything_runs: bool) -> _Cluster:
        known = self._cluster
        if known is None:
            cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
            known = _Cluster(cluster_id, (), self.secure is not None, self.host)
        first = self._port if self._port is not None else DEFAULT_PORT
        brokers = [ports.broker for ports in known.ports]
        if self._port and brokers and brokers[0] != self._port:
            if anything_runs:
                raise UsageError(
                    f"The broker in {self.directory} runs already, on port {brokers[0]}: use that, or stop it first."
                )
            brokers = []
        if not brokers:
            if first + self.nodes - 1 > _HIGHEST_PORT:
                raise UsageError(f"There are no {self.nodes} ports from {first} on: the highest is {_HIGHEST_PORT}.")
            brokers = [first + node for node in range(self.nodes)] if first else _free_ports(self.host, self.nodes, ())
        controllers = [ports.controller for ports in known.ports]
        # Only this cluster uses the controllers' ports, so a taken one is no reason to fail.
        if not anything_runs and not (controllers and all(_is_free(self.host, port) for port in controllers)):
            controllers = _free_ports(self.host, self.nodes, brokers)
        cluster = _Cluster(known.cluster_id, tuple(map(_Ports, brokers, controllers)), known.secure, known.host)
        if cluster != self._cluster:
            cluster.save(self.directory)
        return cluster

    def _start_nodes(
        self, nodes: Sequence[int], java: Path, jars: Sequence[Path], detached: bool, timeout: float
    ) -> None:
        assert self._cluster is not None, "ports are chosen before nodes start"
        deadline = time.monotonic() + timeout
        addresses = ", ".join(str(self._cluster.ports[node].broker) for node in nodes)
        self._progress(f"Starting Kafka on port {addresses} of {self.host}.")
        for node in nodes:
            port = self._cluster.ports[node].broker
            if not _is_free(self.host, port):
                raise EnvironmentProblem(
                    f"Port {port} is taken by another process: stop that, or choose another port with --port."
                )
        if self.secure is not None:
            self.secure.prepare(java)
            self.secure.say_where(self.bootstrap_servers)
        for node in nodes:
            self._write_properties(node)
        class_path = os.pathsep.join(map(str, jars))
        try:
            self._format([node for node in nodes if not self._is_formatted(node)], java, class_path, deadline)
            for node in nodes:
                self._launch(node, java, class_path, detached)
            self._started_here = True
            self._await_ready(nodes, deadline, timeout)
        except BaseException:
            # Also on Ctrl-C: no half-started cluster stays behind.
            self._end(nodes, signal.SIGKILL, STOP_TIMEOUT_S)
            raise

    def _write_properties(self, node: int) -> None:
        assert self._cluster is not None, "ports are chosen before nodes start"
        copies = min(self.nodes, 3)
        in_sync = 2 if copies == 3 else 1
        ports = self._cluster.ports[node]
        voters = (f"{other}@{self.host}:{each.controller}" for other, each in enumerate(self._cluster.ports))
        security = self.secure.server_settings() if self.secure else {}
        listener = LISTENER if self.secure else "PLAINTEXT"
        settings = _SETTINGS | {
            "node.id": str(node),
            "listeners": f"{listener}://{self.host}:{ports.broker},CONTROLLER://{self.host}:{ports.controller}",
            "controller.quorum.voters": ",".join(voters),
            "log.dirs": str(self._node_directory(node) / "data"),
            "default.replication.factor": str(copies),
            "offsets.topic.replication.factor": str(copies),
            "transaction.state.log.replication.factor": str(copies),
            "share.coordinator.state.topic.replication.factor": str(copies),
            "min.insync.replicas": str(in_sync),
            "transaction.state.log.min.isr": str(in_sync),
            "share.coordinator.state.topic.min.isr": str(in_sync),
        }
        settings |= security
        lines = ["# Written anew at each start."]
        lines += [f"{name}={value}".replace("\\", "\\\\") for name, value in settings.items()]
        # What stands there is worth as much as the passwords.
        self._node_directory(node).mkdir(mode=0o700 if self.secure else 0o777, exist_ok=True)
        self._properties(node).write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _is_formatted(self, node: int) -> bool:
        return (self._node_directory(node) / "data" / "meta.properties").exists()

    def _format(self, nodes: Sequence[int], java: Path, class_path: str, deadline: float) -> None:
        """Give new nodes their identity: `kafka-storage format`, all at once."""
        assert self._cluster is not None, "ports are chosen before nodes start"
        running = {}
        for node in nodes:
            command = [str(java), "-XX:TieredStopAtLevel=1", *_logging_options(self._log(node)), "-cp", class_path]
            command += ["kafka.tools.StorageTool", "format", "-c", str(self._properties(node))]
            # In one word: an id that begins with a hyphen (one in 64) would be taken for an option.
            command += [f"--cluster-id={self._cluster.cluster_id}"]
            if self.secure is not None:
                file = self._node_directory(node) / "format.arguments"
                command = [str(java), argument_file(file, [*command[1:], *self.secure.first_users()])]
            with (self._node_directory(node) / "console.log").open("wb") as console:
                running[node] = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True
                )
        try:
            for node, process in running.items():
                if process.wait(max(deadline - time.monotonic(), 1)) != 0:
                    raise self._failure(node, "could not prepare its directory")
        except subprocess.TimeoutExpired:
            raise self._failure(nodes[0], "did not prepare its directory in time") from None
        finally:
            for node, process in running.items():
                process.kill()
                process.wait()
                (self._node_directory(node) / "format.arguments").unlink(missing_ok=True)

    def _launch(self, node: int, java: Path, class_path: str, detached: bool) -> None:
        temporary_files = self._node_directory(node) / "tmp"
        shutil.rmtree(temporary_files, ignore_errors=True)
        temporary_files.mkdir(exist_ok=True)
        command = [
            str(java),
            *("-Xms256m", "-Xmx512m", "-XX:+UseG1GC", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true"),
            f"-Djava.io.tmpdir={temporary_files}",
            *_logging_options(self._log(node)),
            *("-cp", class_path, _MAIN_CLASS, str(self._properties(node))),
        ]
        self._log(node).unlink(missing_ok=True)  # so that a failure's reason is from this start
        with (self._node_directory(node) / "console.log").open("wb") as console:
            # A session of its own: see the module's docstring.
            process = subprocess.Popen(
                command,
                cwd=self._node_directory(node),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        self._processes[node] = process
        (self._node_directory(node) / "pid").write_text(str(process.pid), encoding="ascii")
        if not detached:
            # A pipe ends when our process does, in whatever way. (The kernel's parent-death signal would also come
            # when only the thread that called us ends.)
            self._watchdogs[node] = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHDOG, "abcast-broker-watchdog", str(process.pid)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _await_ready(self, nodes: Sequence[int], deadline: float, timeout: float) -> None:
        """Wait until each of `nodes` answers and counts itself as alive in the cluster."""
        assert self._cluster is not None, "ports are chosen before nodes start"
        waiting, login = set(nodes), self.secure.client_settings() if self.secure else {}
        while waiting:
            for node in sorted(waiting):
                if self._pid(node) is None:
                    raise self._failure(node, "stopped while starting")
                if _answers(node, f"{self.host}:{self._cluster.ports[node].broker}", login):
                    waiting.discard(node)
            if waiting and time.monotonic() > deadline:
                raise self._failure(min(waiting), f"did not answer within {timeout:g} s")
            time.sleep(0.05)

    def _failure(self, node: int, what: str) -> AbcastError:
        """The error for a node that did not come up, with the reason from its log and what to do."""
        log = self._log(node)
        text = ""
        for name in ("console.log", "server.log"):
            try:
                text += (self._node_directory(node) / name).read_text(encoding="utf-8", errors="replace") + "\n"
            except OSError:
                continue
        # A full disk may have no room for the message that says so.
        if "No space left on device" in text or shutil.disk_usage(self.directory).free < _TOO_LITTLE_SPACE:
            return EnvironmentProblem(f"The disk of {self.directory} is full: free space and start again (see {log}).")
        if "Address already in use" in text:
            assert self._cluster is not None, "ports are chosen before nodes start"
            port = self._cluster.ports[node].broker
            return EnvironmentProblem(f"Port {port} is taken: choose another port with --port (see {log}).")
        return EnvironmentProblem(f"Kafka (node {node}) {what}: {failure_reason(text)} The whole log is {log}.")

    def _end(self, nodes: Sequence[int], how: signal.Signals, timeout: float) -> None:
        """Signal the nodes that run, wait until they are gone, kill the rest, and forget them."""
        for node in nodes:
            watchdog = self._watchdogs.pop(node, None)
            if watchdog is not None:
                watchdog.kill()
                watchdog.communicate()
            self._signal(node, how)
        deadline = time.monotonic() + timeout
        while any(self._pid(node) is not None for node in nodes):
            if time.monotonic() > deadline:
                for node in nodes:
                    self._signal(node, signal.SIGKILL)
                deadline += STOP_TIMEOUT_S
            time.sleep(0.05)
        for node in nodes:
            (self._node_directory(node) / "pid").unlink(missing_ok=True)

    def _signal(self, node: int, how: signal.Signals) -> None:
        pid = self._pid(node)
        if pid is None:
            return
        try:
            os.kill(pid, how)
        except ProcessLookupError:
            return  # it ended in between
        except PermissionError as error:
            raise EnvironmentProblem(
                f"Process {pid} of the broker in {self.directory} belongs to another user: stop it as that user."
            ) from error


def broker_process_ids(directory: Path) -> dict[int, int]:
    """Node number to process id, of the nodes of the cluster in `directory` that run now."""
    return {node.node: node.pid for node in EmbeddedBroker(directory).status().nodes if node.pid is not None}


def failure_reason(log: str) -> str:
    """The line of a broker's log that says best why it stopped: the last error or exception, or else the last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r" (ERROR|FATAL) |Exception|^Caused by|^[Ee]rror|: error: ", line)]
    told = (telling or lines or ["nothing was logged."])[-1]
    return told if told.endswith(".") else f"{told}."


def _logging_options(log: Path) -> list[str]:
    configuration = configuration_file("broker-log4j2.properties")
    return [f"-Dlog4j2.configurationFile={configuration}", f"-Dabcast.broker.log={log}"]


def _command_line(pid: int) -> str:
    """The command line of a process, or nothing when there is no such process or it has ended."""
    if Path("/proc/self/cmdline").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            return ""
    answer = subprocess.run(
        ["/bin/ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return answer.stdout


def _is_free(host: str, port: int) -> bool:
    """Whether Kafka could bind `port` now (Java sets SO_REUSEADDR too)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OverflowError as error:
            raise UsageError(f"{port} is not a port: choose one from 1 to 65535.") from error
        except PermissionError as error:
            raise EnvironmentProblem(
                f"Port {port} is reserved for the system: choose one above 1023 with --port."
            ) from error
        except OSError:
            return False
    return True


def _free_ports(host: str, count: int, but: Sequence[int]) -> list[int]:
    chosen: list[int] = []
    for _ in range(1000):
        if len(chosen) == count:
            return chosen
        port = random.SystemRandom().choice(_CHOSEN_PORTS)
        if port not in chosen and port not in but and _is_free(host, port):
            chosen.append(port)
    raise EnvironmentProblem(f"No free port was found from {_CHOSEN_PORTS[0]} to {_CHOSEN_PORTS[-1]}: close programs.")


def _answers(node: int, address: str, login: Mapping[str, Any], timeout_s: float = 3.0) -> bool:
    """Whether the node answers a Kafka request and is a live member of its own cluster."""
    try:
        # A plain connection first: it is cheap, and kafka-python would log each refusal.
        socket.create_connection((address.rpartition(":")[0], int(address.rpartition(":")[2])), timeout=1).close()
    except OSError:
        return False
    with _quiet("kafka"):
        try:
            admin = AdminClient(bootstrap_servers=address, bootstrap_timeout_ms=int(timeout_s * 1000), **login)
        except KafkaError:
            return False
        try:
            brokers = admin.describe_cluster()["brokers"]
        except KafkaError:
            return False
        finally:
            admin.close()
    return any(broker["broker_id"] == node and not broker.get("is_fenced", False) for broker in brokers)


@contextmanager
def _quiet(logger: str) -> Iterator[None]:
    """Keep a library from logging what is expected here: that a starting broker does not answer yet."""
    log = logging.getLogger(logger)
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)
