"""`abcast status`: how each group is doing, read from Kafka alone."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from jobs.options import DEFAULT_BOOTSTRAP_SERVERS, AsJson, BootstrapServers, Site, run_script
from ordering.errors import UsageError
from ordering.names import DEFAULT_SITE


def status(
    group: Annotated[str | None, typer.Option("--group", "-g", help="One group only.")] = None,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    site: Site = DEFAULT_SITE,
    as_json: AsJson = False,
) -> None:
    """Print per group: last seqno, epoch, view, lag, rate, duplicates dropped, dead letters.

    `lag`: FORWARD records not considered yet. `rate`: messages per second over the newest records of DATA.
    `duplicates`: resends dropped, as of the newest snapshot.
    """
    from connectors.connection import Connection
    from connectors.group_status import read_status
    from connectors.topics import find_groups

    connection = Connection(bootstrap_servers)
    groups = find_groups(connection, site)
    if group is not None and group not in groups:
        raise UsageError(f"there is no group {group} at site {site}: `abcast topics list` shows what there is.")
    rows = [read_status(connection, name, site) for name in groups if group in (None, name)]
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row._asdict()))
        return
    if not rows:
        typer.echo(f"no groups at site {site}; `abcast topics create --group G --site {site}` makes one")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*(name.replace("_", " ") for name in rows[0]._fields))
    for row in rows:
        table.add_row(*(f"{value:,.1f}" if isinstance(value, float) else str(value) for value in row))
    Console().print(table)


if __name__ == "__main__":
    run_script(status)
