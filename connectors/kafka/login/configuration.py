"""Look up settings that no argument gives: ABCAST_* variables first, then ./abcast.toml (ABCAST_CONFIG names another).

The commands and `Member` read the same file. A key at the top of the file holds for all of them; tables are for
commands.
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
_SERVER = re.compile(r"(?P<host>[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.%]+\])(?::(?P<port>\d{1,5}))?")


class Setting(NamedTuple):
    """A setting's value and its source."""

    value: str
    source: str


class ConfigurationFile:
    """The configuration file; without one, no values. `path` is where it was looked for."""

    def __init__(self, path: Path | None = None) -> None:
        """Raise UsageError if the file can't be read, or is missing although it was named."""
        named = path or os.environ.get("ABCAST_CONFIG")
        self.path = Path(named or CONFIG_FILE)
        self.values: Mapping[str, Any] = {}
        if named or self.path.exists():
            self.values = read_toml(self.path, "the configuration file")


def configured(key: str, default: str) -> str:
    """Return a text setting: ABCAST_KEY, else `key` at the top of the file, else `default`.

    Raises UsageError if the file can't be read, or has a value there that is no text.
    """
    variable = os.environ.get(f"ABCAST_{key.upper()}")
    if variable:
        return variable
    file = ConfigurationFile()
    value = file.values.get(key, default)
    if not isinstance(value, str):
        raise UsageError(f"{key} in the configuration file {file.path} is a text, not {value!r}.")
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
