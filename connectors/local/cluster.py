"""The embedded broker's cluster, as its directory remembers it: identity, address and ports (`cluster.json`)."""

from __future__ import annotations

import base64
import json
import random
import socket
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ordering.base.errors import EnvironmentProblem, UsageError, in_short

DEFAULT_PORT = 9092
HOST = "127.0.0.1"
_HIGHEST_PORT = 65_535

CHOSEN_PORTS = range(20000, 32000)
"""The range of free ports: below the range that systems use for outgoing connections (32768 and up on Linux), so that a
remembered port isn't in use by accident when a node comes back.
"""


@dataclass(frozen=True, slots=True)
class Ports:
    """A node's two listening ports."""

    broker: int
    controller: int


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """The contents of `cluster.json`. `ports`: one entry a node."""

    cluster_id: str
    ports: tuple[Ports, ...]
    secure: bool = False
    host: str = HOST

    @staticmethod
    def new(secure: bool, host: str) -> LocalCluster:
        """Return a new cluster, without ports yet."""
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
        return LocalCluster(cluster_id, (), secure, host)

    @staticmethod
    def load(directory: Path) -> LocalCluster | None:
        """Return the directory's cluster, or None. Raises EnvironmentProblem if the file can't be read."""
        try:
            found = json.loads((directory / "cluster.json").read_text(encoding="utf-8"))
            ports = tuple(Ports(**each) for each in found["ports"])
            return LocalCluster(found["cluster_id"], ports, bool(found.get("secure", False)), found.get("host", HOST))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise EnvironmentProblem(
                f"{directory / 'cluster.json'} can't be read ({in_short(error)}): restore it, or use another directory."
            ) from error

    def save(self, directory: Path) -> None:
        """Write the file atomically."""
        new = directory / "cluster.json.new"
        new.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        new.replace(directory / "cluster.json")

    @staticmethod
    def forget(directory: Path) -> None:
        """Remove the file: the next start may choose anew."""
        (directory / "cluster.json").unlink(missing_ok=True)

    @property
    def addresses(self) -> tuple[str, ...]:
        """`host:port` of every node."""
        return tuple(f"{self.host}:{ports.broker}" for ports in self.ports)

    def with_ports(self, directory: Path, nodes: int, port: int | None, anything_runs: bool) -> LocalCluster:
        """Return the cluster with ports for each node: its own, unless `port` asks for others.

        Args:
            directory: the cluster's, named in errors.
            nodes: the number of nodes.
            port: the first node's; the others take the next ones. 0 or None: the present ones; if there are none, free
                ones (0), or 9092 and the next ones (None).
            anything_runs: whether a node runs, so that its ports can't change.

        Raises:
            UsageError: the cluster runs on another port, or there are too few ports.
            EnvironmentProblem: no port is free.
        """
        first = port if port is not None else DEFAULT_PORT
        brokers = [ports.broker for ports in self.ports]
        if port and brokers and brokers[0] != port:
            if anything_runs:
                raise UsageError(
                    f"The broker in {directory} runs already, on port {brokers[0]}: use that, or stop it first."
                )
            brokers = []
        if not brokers:
            if first + nodes - 1 > _HIGHEST_PORT:
                raise UsageError(f"There are no {nodes} ports from {first} on: the highest is {_HIGHEST_PORT}.")
            brokers = [first + node for node in range(nodes)] if first else free_ports(self.host, nodes)
        controllers = [ports.controller for ports in self.ports]
        # Only this cluster uses the controllers' ports, so a taken one is no reason to fail.
        if not anything_runs and not (controllers and all(is_free(self.host, port) for port in controllers)):
            controllers = free_ports(self.host, nodes, brokers)
        return LocalCluster(self.cluster_id, tuple(map(Ports, brokers, controllers)), self.secure, self.host)


def is_free(host: str, port: int) -> bool:
    """Whether Kafka could bind `port` now (Java sets SO_REUSEADDR too).

    Raises UsageError if there is no such port, EnvironmentProblem if this user may not bind it.
    """
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


def free_ports(host: str, count: int, but: Sequence[int] = ()) -> list[int]:
    """Return different ports that Kafka could bind now, none of them in `but`. Raises EnvironmentProblem."""
    chosen: list[int] = []
    for _ in range(1000):
        if len(chosen) == count:
            return chosen
        port = random.SystemRandom().choice(CHOSEN_PORTS)
        if port not in chosen and port not in but and is_free(host, port):
            chosen.append(port)
    raise EnvironmentProblem(f"No free port was found from {CHOSEN_PORTS[0]} to {CHOSEN_PORTS[-1]}: close programs.")
