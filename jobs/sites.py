"""The option that names the sites' file, and what commands need of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ordering.errors import UsageError

if TYPE_CHECKING:
    from connectors.kafka.sites import Sites

SitesFile = Annotated[
    Path | None,
    typer.Option(
        "--sites",
        envvar="ABCAST_SITES",
        help="The file that describes the sites; it then says where each one's Kafka is (conf/sites.example.toml).",
    ),
]


def optional_sites(file: Path | None) -> Sites | None:
    """The sites of the file, if one is named. Raises UsageError."""
    if file is None:
        return None
    from connectors.kafka.sites import read_sites

    return read_sites(file)


def required_sites(file: Path | None) -> Sites:
    """The sites of the file. Raises UsageError if none is named."""
    sites = optional_sites(file)
    if sites is None:
        raise UsageError("name the file that describes the sites with --sites FILE (or ABCAST_SITES).")
    return sites


def check_sequences(sites: Sites | None, site: str) -> None:
    """Raise UsageError if the site follows another's order."""
    if sites is not None and not sites.sequences(site):
        raise UsageError(f"the order is decided at {sites.home}: run the sequencer there, not at {site}.")
