"""`abcast config`: the values in force, and the source of each."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import typer

from connectors.kafka.login.configuration import CONTEXT_VARIABLE, ConfigurationFile
from jobs.terminal.options import DEFAULT_DATA, OF_ALL, AsJson, BootstrapServers, KafkaConfig
from ordering.base.names import DEFAULT_SITE

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show the values in force, and their sources.")

MASK = "**********"
_COLUMNS = ("name", "value", "from")
_OF_ALL = {
    "site": DEFAULT_SITE,
    "data": str(DEFAULT_DATA),
    "work_dir": "",
    "sites": "",
    "transport": "",
    "log_level": "INFO",
}
"""The options that many commands share, besides Kafka's, with their defaults; "" for none."""
_PREFIX = "ABCAST_"
_SECRET = ("PASSWORD", "SECRET", "TOKEN", "HEADER")


class ConfiguredValue(NamedTuple):
    """A value of the configuration. `source`: a file with its table, a variable, an argument, or the default."""

    name: str
    value: str
    source: str


@app.command()
def show(bootstrap_servers: BootstrapServers = None, kafka_config: KafkaConfig = None, as_json: AsJson = False) -> None:
    """Show each value that is in force, and its source. Secrets are masked.

    The source is an option, a variable, a file, or the default. With --bootstrap-servers or --kafka-config, show the
    values that a command with these options has.
    """
    from jobs.terminal.rows import show_table

    rows = list(read_configuration(bootstrap_servers, kafka_config))
    if as_json:
        for row in rows:
            typer.echo(json.dumps({"name": row.name, "value": row.value, "from": row.source}))
        return
    show_table(_COLUMNS, rows, sys.stdout)


def read_configuration(bootstrap_servers: str | None, kafka_config: Any) -> Iterator[ConfiguredValue]:
    """Yield each value in force for a command with these options; secrets are masked.

    Raises UsageError for an unreadable file, or an impossible value.
    """
    from connectors.kafka.connection.client_configuration import SERVERS_VARIABLE, ClientConfiguration
    from connectors.kafka.login.security import SECRETS, Security
    from connectors.kafka.transport import choose
    from connectors.storage.settings import SECRETS as SECRETS_OF_STORAGE
    from connectors.storage.settings import storage_settings

    if bootstrap_servers == os.environ.get(SERVERS_VARIABLE):
        bootstrap_servers = None  # the option has it from there
    file = ConfigurationFile()
    yield from _of_file(file)
    found = ClientConfiguration(bootstrap_servers, kafka_config)
    security = found.security
    servers = found.settings["bootstrap_servers"]
    yield ConfiguredValue("bootstrap_servers", servers.value, servers.source)
    for name in Security.model_fields:
        if (setting := found.settings.get(name)) is not None:
            yield ConfiguredValue(f"kafka.{name}", MASK if name in SECRETS else setting.value, setting.source)
        elif name in ("protocol", "mechanism") and (name == "protocol" or security.logs_in):
            yield ConfiguredValue(f"kafka.{name}", getattr(security, name), "default")
    for name, default in _OF_ALL.items():
        variable = f"{_PREFIX}{name.upper()}"
        if os.environ.get(variable):
            yield ConfiguredValue(name, os.environ[variable], variable)
        elif name in file.values:
            yield ConfiguredValue(name, str(file.values[name]), file.source(name))
        elif name == "transport":
            yield ConfiguredValue(name, choose("", security), "default")
        elif default:
            yield ConfiguredValue(name, default, "default")
    for name, each in storage_settings().items():
        yield ConfiguredValue(f"storage.{name}", MASK if name in SECRETS_OF_STORAGE else each.value, each.source)
    yield from _others(file)


def _of_file(file: ConfigurationFile) -> Iterator[ConfiguredValue]:
    path = str(file.path)
    here = "this directory" if file.path.exists() else "not there"
    yield ConfiguredValue("configuration file", path, "ABCAST_CONFIG" if os.environ.get("ABCAST_CONFIG") else here)
    if file.contexts:
        yield ConfiguredValue("contexts", ", ".join(file.contexts), path)
    if file.context:
        yield ConfiguredValue("context", file.context, CONTEXT_VARIABLE if os.environ.get(CONTEXT_VARIABLE) else path)


def _others(file: ConfigurationFile) -> Iterator[ConfiguredValue]:
    """Yield the other values: of other tables and keys of the file, and of other variables `ABCAST_…`."""
    from connectors.kafka.connection.client_configuration import FILE_VARIABLE, PREFIX, SERVERS_VARIABLE
    from connectors.storage.settings import PREFIX as OF_STORAGE

    rows: dict[str, ConfiguredValue] = {}
    for values, source in file.layers:
        for key, value in values.items():
            if isinstance(value, dict) and key not in OF_ALL:
                rows |= {
                    name: ConfiguredValue(name, _masked(name, each), source) for name, each in _flattened(value, key)
                }
            elif key not in (*_OF_ALL, *OF_ALL, "bootstrap_servers", "kafka_config"):
                rows[key] = ConfiguredValue(key, _masked(key, value), source)
    yield from rows.values()
    elsewhere = {
        FILE_VARIABLE,
        SERVERS_VARIABLE,
        CONTEXT_VARIABLE,
        "ABCAST_CONFIG",
        *(f"{_PREFIX}{name.upper()}" for name in _OF_ALL),
    }
    for variable in sorted(os.environ):
        if variable.startswith(_PREFIX) and not variable.startswith((PREFIX, OF_STORAGE)) and variable not in elsewhere:
            name = variable.removeprefix(_PREFIX).lower()
            yield ConfiguredValue(name, _masked(name, os.environ[variable]), variable)


def _masked(name: str, value: object) -> str:
    """Return the value as a text; the mask if its name is that of a secret, or of headers, which may have a token."""
    return MASK if any(word in name.upper() for word in _SECRET) else str(value)


def _flattened(table: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{name}.{key}")
        else:
            yield f"{name}.{key}", value
