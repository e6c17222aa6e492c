"""The configured access to Kafka: each setting, and its source.

Sources in order of precedence: an argument, an ABCAST_KAFKA_* variable, a properties file of Kafka's (`--kafka-config`,
ABCAST_KAFKA_CONFIG, or `kafka_config` in abcast.toml), the table `[kafka]` of abcast.toml, the default. The servers may
also come from ABCAST_BOOTSTRAP_SERVERS, and from the top of abcast.toml. A context of abcast.toml goes before the rest
of it. The commands and `Member` read the same. A site's own table in the sites' file replaces all of this.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from connectors.kafka.connection.connection import Connection
from connectors.kafka.login.configuration import ConfigurationFile, Setting
from connectors.kafka.login.defaults import DEFAULT_BOOTSTRAP_SERVERS
from connectors.kafka.login.properties import read_properties
from connectors.kafka.login.security import SECRETS, Security, relative_to, warn_if_readable_by_all
from ordering.base.errors import UsageError

TABLE = "kafka"
PREFIX = "ABCAST_KAFKA_"
FILE_VARIABLE = "ABCAST_KAFKA_CONFIG"
SERVERS_VARIABLE = "ABCAST_BOOTSTRAP_SERVERS"
DEFAULT = "default"
"""The source of a setting that nobody gives."""
_SERVERS = "bootstrap_servers"
_logger = logging.getLogger(__name__)


class ClientConfiguration:
    """The effective `settings`: the fields of `Security`, and `bootstrap_servers`."""

    def __init__(self, bootstrap_servers: str | None = None, kafka_config: Path | None = None) -> None:
        """Read all sources. `bootstrap_servers`, `kafka_config`: the arguments, if any.

        Raises UsageError for a file that can't be read, an unknown setting, or a value that is no text.
        """
        file = ConfigurationFile()
        self.settings: dict[str, Setting] = {_SERVERS: Setting(DEFAULT_BOOTSTRAP_SERVERS, DEFAULT)}
        self._take(_table(file), f"{file.source(TABLE)} [{TABLE}]")
        if _SERVERS in file.values:
            self.settings[_SERVERS] = self.settings[_SERVERS]._replace(source=file.source(_SERVERS))
        properties = kafka_config or _named_file(file)
        if properties is not None:
            found = read_properties(properties)
            if found.keys() & set(SECRETS):
                warn_if_readable_by_all(properties)
            self._take(found, str(properties))
        of_files = self.settings[_SERVERS]
        self._take_environment()
        if bootstrap_servers is not None:
            self.settings[_SERVERS] = Setting(bootstrap_servers, "argument")
        self._warn_of_other_servers(file, of_files)

    def _warn_of_other_servers(self, file: ConfigurationFile, of_files: Setting) -> None:
        """Warn if the login of a context goes to other servers than the files have, `of_files`."""
        servers, context = self.settings[_SERVERS], file.layers[-1]
        of_context = {f"{context.source} [{TABLE}]", context.values.get("kafka_config")}
        has_login = any(each.source in of_context for name, each in self.settings.items() if name != _SERVERS)
        if file.context and has_login and of_files.source != DEFAULT and servers.value != of_files.value:
            _logger.warning(
                "the login of the context %s goes to %s (%s), not to the context's servers, %s",
                *(file.context, servers.value, servers.source, of_files.value),
            )

    def _take(self, values: Mapping[str, str], source: str) -> None:
        for name, value in values.items():
            for secret in SECRETS:  # a secret and its file exclude each other: the last one set counts
                if name in (secret, f"{secret}_file"):
                    self.settings.pop(secret, None)
                    self.settings.pop(f"{secret}_file", None)
            self.settings[name] = Setting(value, source)

    def _take_environment(self) -> None:
        if servers := os.environ.get(SERVERS_VARIABLE):
            self.settings[_SERVERS] = Setting(servers, SERVERS_VARIABLE)
        for name in sorted(os.environ):
            key = name.removeprefix(PREFIX).lower()
            if not name.startswith(PREFIX) or name == FILE_VARIABLE or not os.environ[name]:
                continue
            if key not in Security.model_fields:
                raise UsageError(f"{name} is unknown: {PREFIX}… takes {', '.join(Security.model_fields).upper()}.")
            self._take({key: str(relative_to(Path.cwd(), key, os.environ[name]))}, name)

    @property
    def security(self) -> Security:
        """The login. Raises UsageError."""
        return Security(**{name: each.value for name, each in self.settings.items() if name != _SERVERS})

    def connection(self, timeout: float = 10.0, client_id: str = "") -> Connection:
        """Return a connection with these settings. Raises UsageError."""
        servers = self.settings[_SERVERS].value
        return Connection(servers, timeout=timeout, security=self.security, client_id=client_id)


def _named_file(file: ConfigurationFile) -> Path | None:
    named = os.environ.get(FILE_VARIABLE) or file.values.get("kafka_config")
    if named is not None and not isinstance(named, str):
        raise UsageError(f"kafka_config in the configuration file {file.path} is a text, not {named!r}.")
    return Path(named) if named else None


def _table(file: ConfigurationFile) -> dict[str, str]:
    """Return the table, with the servers from the top of the file. Raises UsageError."""
    table = file.values.get(TABLE, {})
    if not isinstance(table, Mapping):
        raise UsageError(f"[{TABLE}] in the configuration file {file.path} is a table.")
    values = {_SERVERS: file.values[_SERVERS]} if _SERVERS in file.values else {}
    if _SERVERS in table and values:
        raise UsageError(f"the configuration file {file.path} has {_SERVERS} twice: at its top, and in [{TABLE}].")
    for key, value in {**values, **table}.items():
        if key != _SERVERS and key not in Security.model_fields:
            known = ", ".join((_SERVERS, *Security.model_fields))
            raise UsageError(f"the configuration file {file.path} has unknown keys: {TABLE}.{key} (known: {known}).")
        if not isinstance(value, str):
            shown = "that" if key in SECRETS else repr(value)
            raise UsageError(f"{key} in the configuration file {file.path} is a text, not {shown}.")
        values[key] = str(relative_to(file.path.absolute().parent, key, value))
    tables = [each.get(TABLE) for each in file.everything]
    if any(isinstance(each, Mapping) and each.keys() & set(SECRETS) for each in tables):
        warn_if_readable_by_all(file.path)
    return values
