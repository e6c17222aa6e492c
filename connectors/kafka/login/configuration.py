"""Where a value comes from that is not given: ABCAST_* variables, else ./abcast.toml (another file: ABCAST_CONFIG).

The commands and `Member` read the same. A key at the top of the file holds for all of them; tables are for commands.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ordering.base.errors import UsageError, in_short

CONFIG_FILE = "abcast.toml"
_SERVER = re.compile(r"(?P<host>[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.%]+\])(?::(?P<port>\d{1,5}))?")


class ConfigurationFile:
    """The file, as far as it is there. `path` is where it was looked for."""

    def __init__(self, path: Path | None = None) -> None:
        """Raises UsageError if it can't be read; also if it was named and is not there."""
        named = path or os.environ.get("ABCAST_CONFIG")
        self.path = Path(named or CONFIG_FILE)
        self.values: Mapping[str, Any] = {}
        if named or self.path.exists():
            self.values = _parse(self.path)


def configured(key: str, default: str) -> str:
    """A text that holds for everything: ABCAST_KEY, else `key` at the top of the file, else `default`.

    Raises UsageError if the file can't be read, or has something else under that key.
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
    """The servers of a list with commas. Raises UsageError if one is not HOST or HOST:PORT."""
    each = [server.strip() for server in servers.split(",")]
    for server in each:
        found = _SERVER.fullmatch(server)
        if found is None or not 1 <= int(found["port"] or 9092) <= 65_535:
            raise UsageError(f"{server!r} is no Kafka server: write HOST:PORT, several with commas between them.")
    return each


def _parse(path: Path) -> Mapping[str, Any]:
    # Only those who have such a file pay for the parser.
    if sys.version_info >= (3, 11):
        import tomllib
    else:  # pragma: no cover
        import tomli as tomllib
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"the configuration file {path} can't be read: {in_short(error)}.") from error
    return values
