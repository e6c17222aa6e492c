"""A node of the embedded broker: a JVM that is both broker and controller, and its settings.

Its directory is below its cluster's:

    node-N/server.properties
    node-N/data           Kafka's log
    node-N/pid            the process, while one runs
    node-N/tmp            its native libraries; emptied at each start
    node-N/server.log     Kafka's own log, rolling
    node-N/console.log    the JVM's output since the last start

A node has its own process group, so a Ctrl-C in the terminal reaches only our process, which then stops the node in
order. When our process dies in any other way, a watchdog stops the node, unless it was launched as detached.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from kafka.errors import KafkaError

from connectors.kafka.transport.kafka_python import AdminClient
from connectors.local.class_archive import archive_options
from connectors.local.cluster import LocalCluster
from connectors.local.configuration import configuration_file
from connectors.local.properties import escaped
from connectors.local.secure_cluster import LISTENER, SecureCluster, argument_file
from ordering.base.errors import AbcastError, EnvironmentProblem
from ordering.base.records import MAX_RECORD_BYTES

STOP_TIMEOUT_S = 20.0
"""The time that a node has to stop in order before it is killed. Nothing is lost then; its next start is slower."""

_TOO_LITTLE_SPACE = 1024 * 1024
"""The free bytes below which a full disk counts as the reason why a node did not start."""

_MAIN_CLASS = "kafka.Kafka"

# Stops node $1 when standard input ends, that is, when our process is gone. It looks at the command line first, because
# the node may have died long ago and another process may have its process id by now.
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
    # Kafka's controller writes an empty record as often, and waits for the disk: by default each half second, which is
    # a third of the CPU time of a node that has nothing to do.
    "metadata.max.idle.interval.ms": "10000",
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    "num.network.threads": "2",
    "num.io.threads": "4",
}


class Node:
    """A node of the cluster in a directory, and its process."""

    def __init__(self, cluster_directory: Path, number: int) -> None:
        """Create no file yet."""
        self.number = number
        self.directory = cluster_directory / f"node-{number}"
        self.log = self.directory / "server.log"
        self._properties = self.directory / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    def pid(self) -> int | None:
        """Return the process id, if the process lives and really is this node, not a later process with the same id."""
        process = self._process
        if process is not None:
            if process.poll() is None:  # our own child: no doubt about it
                return process.pid
            self._process = None
        try:
            pid = int((self.directory / "pid").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        command = _command_line(pid)
        return pid if _MAIN_CLASS in command and str(self._properties) in command else None

    def write_properties(self, cluster: LocalCluster, secure: SecureCluster | None) -> None:
        """Make the node's directory, with Kafka's settings."""
        copies = min(len(cluster.ports), 3)
        in_sync = 2 if copies == 3 else 1
        ports = cluster.ports[self.number]
        voters = (f"{other}@{cluster.host}:{each.controller}" for other, each in enumerate(cluster.ports))
        security = secure.server_settings() if secure else {}
        listener = LISTENER if secure else "PLAINTEXT"
        settings = _SETTINGS | {
            "node.id": str(self.number),
            "listeners": f"{listener}://{cluster.host}:{ports.broker},CONTROLLER://{cluster.host}:{ports.controller}",
            "controller.quorum.voters": ",".join(voters),
            "log.dirs": str(self.directory / "data"),
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
        lines += [f"{name}={escaped(value)}" for name, value in settings.items()]
        # The settings of a secure cluster have passwords.
        self.directory.mkdir(mode=0o700 if secure else 0o777, exist_ok=True)
        self._properties.write_text("\n".join(lines) + "\n", encoding="ascii")

    def is_formatted(self) -> bool:
        """Whether the node has its identity."""
        return (self.directory / "data" / "meta.properties").exists()

    def begin_format(
        self, cluster_id: str, secure: SecureCluster | None, java: Path, class_path: str
    ) -> subprocess.Popen[bytes]:
        """Start `kafka-storage format`, which gives a new node its identity."""
        command = [str(java), "-XX:TieredStopAtLevel=1", *archive_options("broker"), *self._logging_options()]
        command += ["-cp", class_path, "kafka.tools.StorageTool", "format", "-c", str(self._properties)]
        # In one word: an id that begins with a hyphen (one in 64) would be taken for an option.
        command += [f"--cluster-id={cluster_id}"]
        if secure is not None:
            command = [str(java), argument_file(self._format_arguments(), [*command[1:], *secure.first_users()])]
        return self._begin(command)

    def _begin(self, command: Sequence[str], directory: Path | None = None) -> subprocess.Popen[bytes]:
        """Start Java in a session of its own (see the module's docstring)."""
        # With another locale, Java does not find files with names outside ASCII.
        environment = {**os.environ, **({} if str(self.directory).isascii() else {"LC_ALL": "C.UTF-8"})}
        with (self.directory / "console.log").open("wb") as console:
            return subprocess.Popen(
                command,
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )

    def end_format(self, process: subprocess.Popen[bytes]) -> None:
        """Remove all traces of `begin_format`."""
        process.kill()
        process.wait()
        self._format_arguments().unlink(missing_ok=True)

    def launch(self, java: Path, class_path: str, detached: bool, archive_to: Path | None = None) -> None:
        """Start the node's process. `archive_to`: where the process leaves an archive of its classes when it stops."""
        temporary_files = self.directory / "tmp"
        shutil.rmtree(temporary_files, ignore_errors=True)
        temporary_files.mkdir(exist_ok=True)
        command = [
            str(java),
            *("-Xms256m", "-Xmx512m", "-XX:+UseG1GC", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true"),
            f"-Djava.io.tmpdir={temporary_files}",
            *archive_options("broker", archive_to),
            *self._logging_options(),
            *("-cp", class_path, _MAIN_CLASS, str(self._properties)),
        ]
        self.log.unlink(missing_ok=True)  # so that a failure's reason is from this start
        self._process = process = self._begin(command, self.directory)
        (self.directory / "pid").write_text(str(process.pid), encoding="ascii")
        if not detached:
            # A pipe ends when our process does, however it ends. (The kernel's parent-death signal would also come when
            # only the thread that called us ends.)
            self._watchdog = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHDOG, "abcast-broker-watchdog", str(process.pid)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def answers(self, address: str, login: Mapping[str, Any], timeout_s: float = 3.0) -> bool:
        """Whether the node answers a Kafka request and is a live member of its own cluster."""
        try:
            # A plain connection first: it is cheap, and kafka-python would log each refusal.
            socket.create_connection((address.rpartition(":")[0], int(address.rpartition(":")[2])), timeout=1).close()
        except OSError:
            return False
        with _quiet("kafka"):
            try:
                limit_ms = int(timeout_s * 1000)
                with closing(AdminClient(bootstrap_servers=address, bootstrap_timeout_ms=limit_ms, **login)) as admin:
                    brokers = admin.describe_cluster()["brokers"]
            except KafkaError:
                return False
        return any(broker["broker_id"] == self.number and not broker.get("is_fenced", False) for broker in brokers)

    def failure(self, what: str, port: int) -> AbcastError:
        """Return the error for a node that did not come up, with the reason from its log and what to do."""
        text = ""
        for name in ("console.log", "server.log"):
            try:
                text += (self.directory / name).read_text(encoding="utf-8", errors="replace") + "\n"
            except OSError:
                continue
        cluster_directory = self.directory.parent
        # On a full disk, the message that says so may be missing.
        if "No space left on device" in text or shutil.disk_usage(cluster_directory).free < _TOO_LITTLE_SPACE:
            return EnvironmentProblem(
                f"The disk of {cluster_directory} is full: free space and start again (see {self.log})."
            )
        if "Address already in use" in text:
            return EnvironmentProblem(f"Port {port} is taken: choose another port with --port (see {self.log}).")
        return EnvironmentProblem(
            f"Kafka (node {self.number}) {what}: {failure_reason(text)} The whole log is {self.log}."
        )

    def send_signal(self, how: signal.Signals) -> None:
        """Signal the node's process, if it runs. Raises EnvironmentProblem if another user owns it."""
        pid = self.pid()
        if pid is None:
            return
        try:
            os.kill(pid, how)
        except ProcessLookupError:
            return  # it ended in between
        except PermissionError as error:
            raise EnvironmentProblem(
                f"Process {pid} of the broker in {self.directory.parent} belongs to another user: stop it as that user."
            ) from error

    def dismiss_watchdog(self) -> None:
        """Stop the watchdog: from here on the caller ends the node."""
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.kill()
            watchdog.communicate()

    def forget(self) -> None:
        """Remove the pid file of a process that has ended."""
        (self.directory / "pid").unlink(missing_ok=True)

    def _format_arguments(self) -> Path:
        return self.directory / "format.arguments"

    def _logging_options(self) -> list[str]:
        configuration = configuration_file("broker-log4j2.properties")
        return [f"-Dlog4j2.configurationFile={configuration}", f"-Dabcast.broker.log={self.log}"]


def end(nodes: Sequence[Node], how: signal.Signals, timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Signal the nodes that run, wait until they are gone, and remove their pid files; kill them after `timeout_s`.

    Raises EnvironmentProblem if another user owns one.
    """
    for node in nodes:
        node.dismiss_watchdog()
        node.send_signal(how)
    deadline = time.monotonic() + timeout_s
    while any(node.pid() is not None for node in nodes):
        if time.monotonic() > deadline:
            for node in nodes:
                node.send_signal(signal.SIGKILL)
            deadline += STOP_TIMEOUT_S
        time.sleep(0.05)
    for node in nodes:
        node.forget()


def failure_reason(log: str) -> str:
    """Return the line of a broker's log that best explains its end: the last error or exception, else the last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r" (ERROR|FATAL) |Exception|^Caused by|^[Ee]rror|: error: ", line)]
    line = (telling or lines or ["nothing was logged."])[-1]
    return line if line.endswith(".") else f"{line}."


def _command_line(pid: int) -> str:
    """Return the command line of a process, or nothing when there is no such process or it has ended."""
    if Path("/proc/self/cmdline").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            return ""
    answer = subprocess.run(
        ["/bin/ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return answer.stdout


@contextmanager
def _quiet(logger: str) -> Iterator[None]:
    """Silence a library's expected messages: a starting broker does not answer yet."""
    log = logging.getLogger(logger)
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)
