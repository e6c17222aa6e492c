"""The option for the sites' file, and the parts of the file that commands need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.terminal.options import connection_to
from ordering.base.errors import UsageError
from ordering.base.names import check_site

if TYPE_CHECKING:
    from connectors.kafka.connection.connection import Connection
    from connectors.kafka.connection.sites import Sites

SitesFile = Annotated[
    Path | None,
    typer.Option(
        "--sites",
        envvar="ABCAST_SITES",
        help="The file that describes the sites, each with its Kafka (conf/sites.example.toml).",
    ),
]


def optional_sites(file: Path | None, kafka_config: Path | None, name: str) -> Sites | None:
    """Return the sites of the file, or None if no file is named. Raises UsageError.

    Their Kafka clients get the id `abcast-<name>`.
    """
    if file is None:
        return None
    from connectors.kafka.connection.client_configuration import ClientConfiguration
    from connectors.kafka.connection.sites import read_sites

    return read_sites(file, ClientConfiguration(kafka_config=kafka_config).security, f"abcast-{name}")


def required_sites(file: Path | None, kafka_config: Path | None, name: str) -> Sites:
    """Read the sites' file, for clients `abcast-<name>`. Raises UsageError, also if none is named."""
    sites = optional_sites(file, kafka_config, name)
    if sites is None:
        raise UsageError("name the file that describes the sites with --sites FILE (or ABCAST_SITES).")
    return sites


def kafka_of_site(
    sites: Sites | None, site: str, bootstrap_servers: str | None, kafka_config: Path | None, name: str
) -> Connection:
    """Return the connection for a job at the site: from the sites' file, if there is one. Raises UsageError."""
    if sites is None:
        return connection_to(bootstrap_servers, kafka_config, name)
    return sites.connection(check_site(site))


def check_sequences(sites: Sites | None, site: str) -> None:
    """Raise UsageError if the site follows another's order."""
    if sites is not None and not sites.sequences(site):
        raise UsageError(f"the order is decided at {sites.home}: run the sequencer there, not at {site}.")
