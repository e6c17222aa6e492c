"""`abcast status`: how each group is doing, read from Kafka and from the log of the ledger's table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from jobs.options import (
    DEFAULT_BOOTSTRAP_SERVERS,
    DEFAULT_DATA,
    AsJson,
    BootstrapServers,
    Data,
    Site,
    missing_extra,
    run_script,
)
from ordering.errors import AbcastError, UsageError
from ordering.names import DEFAULT_SITE


def status(
    group: Annotated[str | None, typer.Option("--group", "-g", help="One group only.")] = None,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    site: Site = DEFAULT_SITE,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Print per group: last seqno, epoch, view, members, senders, lag, rate, duplicates, dead letters, ledger lag.

    `members`: those of the view. `senders`: addresses that have sent anything so far, operators and relays too.
    `lag`: FORWARD records not considered yet. `rate`: messages per second over the newest records of DATA.
    `duplicates`: resends dropped, as of the newest snapshot. `ledger lag`: seqnos that the ledger below --data does not
    have yet, if there is a ledger. It is read first, so a number below zero means that it is another group's.
    """
    from connectors.diagnosis.status import read_status
    from connectors.kafka.connection import Connection
    from connectors.kafka.topics import find_groups

    connection = Connection(bootstrap_servers)
    groups = find_groups(connection, site)
    if group is not None and group not in groups:
        raise UsageError(f"there is no group {group} at site {site}: `abcast topics list` shows what there is.")
    in_ledger = _in_ledger(data)
    rows = [read_status(connection, name, site, in_ledger) for name in groups if group in (None, name)]
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row._asdict()))
        return
    if not rows:
        typer.echo(f"no groups at site {site}; `abcast topics create --group G --site {site}` makes one")
        return
    from rich.console import Console
    from rich.table import Table

    columns = [name for name in rows[0]._fields if getattr(rows[0], name) is not None]
    table = Table(*(name.replace("_", " ") for name in columns))
    for row in rows:
        values = (getattr(row, name) for name in columns)
        table.add_row(*(f"{value:,.1f}" if isinstance(value, float) else str(value) for value in values))
    Console().print(table)


def _in_ledger(data: Path) -> dict[str, int] | None:
    """The last seqno of each group in the ledger below `data`, None if there is no ledger, or none that can be read."""
    table = data / "ledger"
    if not table.exists():
        return None  # and Delta need not be loaded
    try:
        from connectors.ledger.table_state import read_table_state

        held = read_table_state(table)
    except AbcastError as error:  # what Kafka tells is worth as much without
        typer.echo(f"abcast: {error}", err=True)
        return None
    except ModuleNotFoundError as error:
        if missing_extra(error) is None:
            raise
        typer.echo(f"abcast: the ledger {missing_extra(error)}", err=True)
        return None
    return None if held.newest is None else dict(held.last_seqno)


if __name__ == "__main__":
    run_script(status)
