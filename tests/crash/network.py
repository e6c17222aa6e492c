"""Faults of a network: hosts in network namespaces, with cuts, delay and loss between them; three brokers on them.

    with Network(["job"]) as network:
        network.run_on("job", "command", …)     # the words of a command that runs there
        network.cut("broker-0", "broker-1")
        network.delay("job", 100)
        network.loss("job", 5)
        network.heal()

It needs Linux, the right to make network namespaces (root has it), /dev/net/tun, and the commands `ip`, `nsenter` and
`unshare`. `lack` tells what a machine lacks.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from connectors.local.broker import EmbeddedBroker
from connectors.local.cluster import LocalCluster
from connectors.local.jars import Progress
from connectors.local.node import Node
from connectors.local.secure_cluster import SecureCluster
from tests.crash.processes import ROOT

HERE = "here"
"""The name of this machine, where the test runs."""


def lack() -> str:
    """Return why there can be no `Network` here; "" if there can."""
    missing = [name for name in ("ip", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        return f"this machine has no {', '.join(missing)}"
    made = subprocess.run(
        ["unshare", "--net", "ip", "tuntap", "add", "dev", "tun0", "mode", "tun"],
        capture_output=True,
        text=True,
        check=False,
    )
    return made.stderr.strip() if made.returncode else ""


class Network:
    """Hosts with addresses of their own: `names`, and HERE. Its faults and hosts end with it, or with this process."""

    def __init__(self, names: list[str]) -> None:
        number = os.getpid()
        net = f"198.{18 + number // 256 % 2}.{number % 256}"  # 198.18.0.0/15 is kept for tests of networks
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "crash" / "switch.py"), net, *names, HERE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addresses: dict[str, str] = {}
        self._namespaces: dict[str, str] = {}
        for _ in (*names, HERE):
            name, self.addresses[name], self._namespaces[name] = self._line().split()
        self._faults: dict[str, Any] = {}
        self.heal()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the switch has ended: its error is above"
        return line

    def __enter__(self) -> Network:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)

    def run_on(self, host: str, *command: object) -> list[str]:
        """Return the words of a command that runs `command` on that host, in the same process."""
        return ["nsenter", f"--net={self._namespaces[host]}", *map(str, command)]

    # --- faults ---

    def cut(self, one: str, *others: str) -> None:
        """Lose every packet between `one` and each of the others, without a word."""
        self._faults["cuts"] += [[one, other] for other in others]
        self._tell()

    def delay(self, host: str, ms: float) -> None:
        """Delay each packet from and to the host: by `ms` each way."""
        self._faults["delay_ms"][host] = ms
        self._tell()

    def loss(self, host: str, percent: float) -> None:
        """Lose that part of the packets from and to the host."""
        self._faults["loss"][host] = percent
        self._tell()

    def heal(self) -> None:
        """End all faults."""
        self._faults = {"cuts": [], "delay_ms": {}, "loss": {}}
        self._tell()

    def _tell(self) -> None:
        assert self._process.stdin is not None
        print(json.dumps(self._faults), file=self._process.stdin, flush=True)
        self._line()


def broker(number: int) -> str:
    """Return the name of a broker's host."""
    return f"broker-{number}"


class _HostNode(Node):
    """A node on a host of the network."""

    def __init__(self, cluster_directory: Path, number: int, network: Network) -> None:
        super().__init__(cluster_directory, number)
        self._network = network

    def write_properties(self, cluster: LocalCluster, secure: SecureCluster | None) -> None:
        super().write_properties(cluster, secure)
        hosts = {number: self._network.addresses[broker(number)] for number in range(len(cluster.ports))}
        ours = cluster.ports[self.number]
        here = hosts[self.number]
        voters = ",".join(f"{number}@{hosts[number]}:{each.controller}" for number, each in enumerate(cluster.ports))
        with self._properties.open("a", encoding="ascii") as properties:  # the last value of a name is the one in force
            print(f"listeners=PLAINTEXT://{here}:{ours.broker},CONTROLLER://{here}:{ours.controller}", file=properties)
            print(f"controller.quorum.voters={voters}", file=properties)

    def launch(self, java: Path, class_path: str, detached: bool, archive_to: Path | None = None) -> None:
        there = self.directory / "java"
        there.write_text(f'#!/bin/sh\nexec {" ".join(self._network.run_on(broker(self.number), java))} "$@"\n')
        there.chmod(0o755)
        super().launch(there, class_path, detached, archive_to)

    def answers(self, address: str, login: Any, timeout_s: float = 3.0) -> bool:
        port = address.rpartition(":")[2]
        return super().answers(f"{self._network.addresses[broker(self.number)]}:{port}", login, timeout_s)


class NetworkCluster(EmbeddedBroker):
    """An embedded broker of several nodes, each on the host `broker(number)` of a network."""

    def __init__(self, directory: Path, network: Network, nodes: int = 3, progress: Progress = lambda _: None) -> None:
        super().__init__(directory, port=0, nodes=nodes, progress=progress)
        self._network = network

    def _node(self, number: int) -> Node:
        return self._nodes.setdefault(number, _HostNode(self.directory, number, self._network))

    def server(self, number: int) -> str:
        """Return the `host:port` of a node."""
        assert self._cluster is not None
        return f"{self._network.addresses[broker(number)]}:{self._cluster.ports[number].broker}"

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of every node, comma-separated."""
        return ",".join(map(self.server, range(self.nodes)))
