"""Look up settings that no argument gives: ABCAST_* variables first, then ./abcast.toml (ABCAST_CONFIG names another).

The commands and `Member` read the same file. A key at the top of the file holds for all of them; tables are for
commands. A table `[contexts.NAME]` has the form of the whole file, and goes before the rest of it while NAME is chosen:
by ABCAST_CONTEXT (`abcast --context`), else by `context` at the top.

Invariant. The keys `KAFKA` of a file come from one place: a context with any of them hides all others. So the servers
and the login have one source in the file. An argument or a variable may name other servers; that is told
(`connectors.kafka.connection.client_configuration`).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ordering.base.errors import UsageError, in_short

CONFIG_FILE = "abcast.toml"
CONTEXT_VARIABLE = "ABCAST_CONTEXT"
KAFKA = ("bootstrap_servers", "kafka_config", "kafka")
"""The keys that say where Kafka is, and how to log in."""
WHOLE = ("kafka", "storage")
"""Tables that a context replaces as a whole. Others are merged."""
_SERVER = re.compile(r"(?P<host>[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.%]+\])(?::(?P<port>\d{1,5}))?")


class Setting(NamedTuple):
    """A setting's value and its source."""

    value: str
    source: str


class Layer(NamedTuple):
    """Values of the file, and their source. A later layer goes before an earlier one."""

    values: Mapping[str, Any]
    source: str


class ConfigurationFile:
    """The configuration file; without one, no values. `path` is where it was looked for.

    `contexts`: all of the file, by name. `context`: the chosen one, or "". `layers`: the file without its contexts, and
    the chosen context. `values`: both as one. `everything`: the file without its contexts, and each context, also what
    the chosen one hides.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Raise UsageError if the file can't be read, or is missing although it was named; for an unknown context."""
        named = path or os.environ.get("ABCAST_CONFIG")
        self.path = Path(named or CONFIG_FILE)
        read = read_toml(self.path, "the configuration file") if named or self.path.exists() else {}
        self.contexts: Mapping[str, Any] = read.pop("contexts", {})
        named_context = read.pop("context", "")
        if not isinstance(named_context, str):
            raise UsageError(
                f"context in the configuration file {self.path} is the name of a context, not {named_context!r}."
            )
        self.context = os.environ.get(CONTEXT_VARIABLE) or named_context
        if not isinstance(self.contexts, dict) or not all(isinstance(each, dict) for each in self.contexts.values()):
            raise UsageError(f"contexts in the configuration file {self.path} are tables, [contexts.NAME].")
        if self.context and self.context not in self.contexts:
            known = f"has {', '.join(self.contexts)}" if self.contexts else "has none"
            raise UsageError(f"there is no context {self.context!r}: the configuration file {self.path} {known}.")
        self.everything: list[Mapping[str, Any]] = [read, *self.contexts.values()]
        self.layers = [Layer(read, str(self.path))]
        if self.context:
            chosen = self.contexts[self.context]
            if any(key in chosen for key in KAFKA):
                self.layers = [Layer({key: each for key, each in read.items() if key not in KAFKA}, str(self.path))]
            self.layers.append(Layer(chosen, f"{self.path} [contexts.{self.context}]"))
        self.values: Mapping[str, Any] = {}
        for layer in self.layers:
            self.values = over(self.values, layer.values)

    def source(self, key: str) -> str:
        """Return the source of a key at the top of `values`."""
        return next((layer.source for layer in reversed(self.layers) if key in layer.values), str(self.path))


def over(values: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return both, merged table by table: `other` goes before `values`."""
    merged = {**values, **other}
    for key in values.keys() & other.keys():
        if isinstance(values[key], dict) and isinstance(other[key], dict) and key not in WHOLE:
            merged[key] = over(values[key], other[key])
    return merged


def configured(key: str, default: str) -> str:
    """Return a text setting: ABCAST_KEY, else `key` of the context, else at the top of the file, else `default`.

    Raises UsageError if the file can't be read, or has a value there that is no text.
    """
    variable = os.environ.get(f"ABCAST_{key.upper()}")
    if variable:
        return variable
    file = ConfigurationFile()
    value = file.values.get(key, default)
    if not isinstance(value, str):
        raise UsageError(f"{key} in the configuration file {file.source(key)} is a text, not {value!r}.")
    return value


def check_servers(servers: str) -> list[str]:
    """Return the servers in a comma-separated list. Raises UsageError if one is not HOST or HOST:PORT."""
    each = [server.strip() for server in servers.split(",")]
    for server in each:
        found = _SERVER.fullmatch(server)
        if found is None or not 1 <= int(found["port"] or 9092) <= 65_535:
            raise UsageError(f"{server!r} is no Kafka server: write HOST:PORT, several with commas between them.")
    return each


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Return the tables and keys of a file. Raises UsageError, in which `what` describes the file."""
    # Import the parser only for users who have such a file.
    if sys.version_info >= (3, 11):
        import tomllib
    else:  # pragma: no cover
        import tomli as tomllib
    try:
        tables: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{what} {path} can't be read: {in_short(error)}.") from error
    return tables
