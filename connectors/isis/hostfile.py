"""Read the hostfile of `abcast isis`: one process a line, HOST or HOST:PORT. The first line is process 0.

Empty lines and comments after `#` are ignored. All processes must have the same file: they compare its digest.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from ordering.base.errors import EnvironmentProblem, UsageError, in_short

MAX_PROCESSES = 100
"""The most processes of a hostfile: more than should agree about everything."""

MAX_PORT = 65_535


class Host(NamedTuple):
    """The place of a process, as the file has it."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}:{self.port}"

    def address(self) -> tuple[str, int]:
        """Return the IPv4 address and the port. Raises EnvironmentProblem if the name is unknown."""
        try:
            addresses = socket.getaddrinfo(self.name, self.port, socket.AF_INET, socket.SOCK_DGRAM)
        except (OSError, UnicodeError) as error:
            raise EnvironmentProblem(
                f"the host {self.name!r} of the hostfile is not known: {in_short(error)}."
            ) from error
        return str(addresses[0][4][0]), self.port


def read_hostfile(path: Path, default_port: int | None = None) -> tuple[Host, ...]:
    """Return the processes of a hostfile. Raises UsageError, which names a wrong line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the hostfile {path} can't be read: {in_short(error)}.") from error
    hosts: dict[Host, int] = {}
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        host = _host(text, default_port, f"line {number} of {path}")
        if host in hosts:
            raise UsageError(f"line {number} of {path} has {host} again (line {hosts[host]}): one process a port.")
        hosts[host] = number
    if not 1 <= len(hosts) <= MAX_PROCESSES:
        raise UsageError(f"{path} has {len(hosts)} processes: write 1 to {MAX_PROCESSES} lines, HOST or HOST:PORT.")
    return tuple(hosts)


def _host(text: str, default_port: int | None, where: str) -> Host:
    name, colon, port = text.partition(":")
    if not name or any(character.isspace() for character in text) or ":" in port:
        raise UsageError(f"{where} is not HOST or HOST:PORT: {text!r}.")
    if not colon and default_port is None:
        raise UsageError(f"{where} has no port, and there is no --port for such lines: {text!r}.")
    if colon and not (port.isascii() and port.isdigit() and 1 <= int(port) <= MAX_PORT):
        raise UsageError(f"{where} has a port that is not 1 to {MAX_PORT}: {text!r}.")
    return Host(name, int(port) if colon else default_port or 0)


def digest(hosts: Sequence[Host]) -> bytes:
    """Return eight bytes that identify the file's contents."""
    return blake2b("\n".join(map(str, hosts)).encode("utf-8"), digest_size=8).digest()
