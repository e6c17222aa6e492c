"""The embedded broker: a real Kafka (KRaft, no ZooKeeper) on this machine, for demos and tests.

One directory is one cluster. It keeps its identity, its ports and its data, so a later `EmbeddedBroker(directory)`
continues where the last one stopped. Each node is a JVM that is both broker and controller, bound to 127.0.0.1 (unless
`EmbeddedBroker` gets another address):

    cluster.json          cluster id, address, and per node the broker's and the controller's port
    node-N/               a node's files (`connectors.local.node`)
    secure/               keys and users of a secure cluster (`connectors.local.secure_cluster`)

Nodes end with the process that started them, however it ends, except after `start(detached=True)`.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from connectors.local.cluster import HOST, LocalCluster, is_free
from connectors.local.jars import Progress, jars_of, say
from connectors.local.java import require_java
from connectors.local.node import STOP_TIMEOUT_S, Node, end
from connectors.local.secure_cluster import SecureCluster
from ordering.base.errors import AbcastError, EnvironmentProblem, UsageError


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node: its process, or None when it does not run; its address; its log."""

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


class EmbeddedBroker:
    """A Kafka cluster in one directory.

    Args:
        directory: the cluster's files; made if missing.
        port: the first node's port, the others take the next ones. 0: free ports. None: the remembered ones, or 9092
            in a new directory. In a directory that has ports already, 0 means those.
        nodes: 1, or 3 for a cluster that survives the loss of one. None: as the directory has it, or 1.
        progress: called with what a slow step waits for.
        secure: with TLS, users and rights (`connectors.local.secure_cluster`). None: as the directory has it, or open.
        host: the address of a new cluster; a later start keeps it. None: 127.0.0.1, the only one of a secure cluster,
            whose certificate names it.
        archive_to: where a started node leaves an archive of its classes when it stops (`jobs.class_archive`).

    Guarantees: `start` returns when every node answers Kafka requests. A record acknowledged with acks=all survives
    `kill` of any node (the operating system, not the JVM, holds the written pages).

    Raises:
        UsageError: the directory holds a cluster of another size, kind or address, or its name has a comma or a control
            character; `nodes` is below 1.
        EnvironmentProblem: the directory's `cluster.json` can't be read.
    """

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        nodes: int | None = None,
        progress: Progress = say,
        secure: bool | None = None,
        host: str | None = None,
        archive_to: Path | None = None,
    ) -> None:
        self.directory = Path(directory).expanduser().resolve()
        if "," in str(self.directory):
            raise UsageError(f"Kafka takes no comma in {self.directory}: choose another directory.")
        if any(c < " " for c in str(self.directory)):
            raise UsageError(
                f"Kafka takes no line feed, or the like, in {str(self.directory)!r}: choose another directory."
            )
        if nodes is not None and nodes < 1:
            raise UsageError(f"A cluster has at least one node, not {nodes}.")
        self._port = port
        self._progress = progress
        self._archive_to = archive_to
        self._cluster = LocalCluster.load(self.directory)
        self._nodes: dict[int, Node] = {}
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
            UsageError: the cluster was never started, so it has no ports yet.
        """
        if self._cluster is None:
            raise UsageError(f"The broker in {self.directory} was never started: start it first.")
        return ",".join(self._cluster.addresses)

    def status(self) -> BrokerStatus:
        """Return the cluster's present state. Asks no broker; needs no Java and no network."""
        addresses = self.bootstrap_servers.split(",") if self._cluster else [""] * self.nodes
        nodes = tuple(
            NodeStatus(number, self._node(number).pid(), address, self._node(number).log)
            for number, address in enumerate(addresses)
        )
        return BrokerStatus(self.directory, ",".join(filter(None, addresses)), nodes)

    def __enter__(self) -> EmbeddedBroker:
        """Start, unless it runs already."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop all nodes if this object has started one; a broker that ran before goes on."""
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
        java, jars = require_java(), jars_of("broker", self._progress)
        with self._locked():
            missing = [node for node in self._all() if node.pid() is None]
            before = self._cluster
            self._cluster = self._choose_ports(anything_runs=len(missing) < self.nodes)
            try:
                if missing:
                    self._start_nodes(missing, java, jars, detached, timeout)
            except BaseException:
                if before is None and not any(node.is_formatted() for node in self._all()):
                    # No node has an identity yet, so the next start may choose ports and size.
                    self._cluster = None
                    LocalCluster.forget(self.directory)
                raise
        return bool(missing)

    def stop(self, timeout: float = STOP_TIMEOUT_S) -> None:
        """Stop every node, whichever process started it; kill a node that has not stopped after `timeout` seconds.

        Raises EnvironmentProblem if another user owns a node.
        """
        end(self._all(), signal.SIGTERM, timeout)
        self._started_here = False

    def kill(self, node: int = 0, how: signal.Signals = signal.SIGKILL) -> None:
        """End one node, at once as a crash would, or by SIGTERM in order. `start` starts it again.

        Raises UsageError if there is no such node.
        """
        if not 0 <= node < self.nodes:
            raise UsageError(f"There is no node {node}: this cluster has nodes 0 to {self.nodes - 1}.")
        end([self._node(node)], how)

    # --- inside ----------------------------------------------------------------------------------------------------

    def _node(self, number: int) -> Node:
        return self._nodes.setdefault(number, Node(self.directory, number))

    def _all(self) -> list[Node]:
        return [self._node(number) for number in range(self.nodes)]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one process at a time start nodes here, with the newest ports. Turns OSError into EnvironmentProblem."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with (self.directory / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                # Another process may have chosen the ports in the meantime.
                self._cluster = LocalCluster.load(self.directory) or self._cluster
                yield
        except OSError as error:
            raise EnvironmentProblem(
                f"The broker can't write to {self.directory} ({error.strerror or error}): "
                "free disk space, or choose another directory."
            ) from error

    def _choose_ports(self, anything_runs: bool) -> LocalCluster:
        known = self._cluster or LocalCluster.new(self.secure is not None, self.host)
        cluster = known.with_ports(self.directory, self.nodes, self._port, anything_runs)
        if cluster != self._cluster:
            cluster.save(self.directory)
        return cluster

    def _start_nodes(
        self, nodes: Sequence[Node], java: Path, jars: Sequence[Path], detached: bool, timeout: float
    ) -> None:
        cluster = self._cluster
        assert cluster is not None, "ports are chosen before nodes start"
        deadline = time.monotonic() + timeout
        ports = [cluster.ports[node.number].broker for node in nodes]
        self._progress(f"Starting Kafka on port {', '.join(map(str, ports))} of {self.host}.")
        for port in ports:
            if not is_free(self.host, port):
                raise EnvironmentProblem(
                    f"Port {port} is taken by another process: stop that, or choose another port with --port."
                )
        if self.secure is not None:
            self.secure.prepare(java)
            self.secure.say_where(self.bootstrap_servers)
        for node in nodes:
            node.write_properties(cluster, self.secure)
        class_path = os.pathsep.join(map(str, jars))
        try:
            self._format([node for node in nodes if not node.is_formatted()], java, class_path, deadline)
            for node in nodes:
                node.launch(java, class_path, detached, self._archive_to)
            self._started_here = True
            self._await_ready(nodes, deadline, timeout)
        except BaseException:
            # Also on Ctrl-C: no half-started cluster stays behind.
            end(nodes, signal.SIGKILL)
            raise

    def _format(self, nodes: Sequence[Node], java: Path, class_path: str, deadline: float) -> None:
        """Give new nodes their identity, all at once."""
        assert self._cluster is not None, "ports are chosen before nodes start"
        formats = [(node, node.begin_format(self._cluster.cluster_id, self.secure, java, class_path)) for node in nodes]
        try:
            for node, process in formats:
                if process.wait(max(deadline - time.monotonic(), 1)) != 0:
                    raise self._failure(node, "could not prepare its directory")
        except subprocess.TimeoutExpired:
            raise self._failure(nodes[0], "did not prepare its directory in time") from None
        finally:
            for node, process in formats:
                node.end_format(process)

    def _await_ready(self, nodes: Sequence[Node], deadline: float, timeout: float) -> None:
        """Wait until each of `nodes` answers and counts itself as alive in the cluster."""
        assert self._cluster is not None, "ports are chosen before nodes start"
        waiting, login = list(nodes), self.secure.client_settings() if self.secure else {}
        while waiting:
            for node in list(waiting):
                if node.pid() is None:
                    raise self._failure(node, "stopped while starting")
                if node.answers(self._cluster.addresses[node.number], login):
                    waiting.remove(node)
            if waiting and time.monotonic() > deadline:
                raise self._failure(waiting[0], f"did not answer within {timeout:g} s")
            time.sleep(0.05)

    def _failure(self, node: Node, what: str) -> AbcastError:
        assert self._cluster is not None, "ports are chosen before nodes start"
        return node.failure(what, self._cluster.ports[node.number].broker)
