"""`abcast check`: names every broken promise of a group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from jobs.options import (
    DEFAULT_BOOTSTRAP_SERVERS,
    DEFAULT_DATA,
    EXIT_ANOMALY,
    AsJson,
    BootstrapServers,
    Data,
    Group,
    run_script,
)
from ordering.errors import UsageError
from ordering.names import DEFAULT_SITE


def check(
    group: Group,
    site: Annotated[
        list[str] | None, typer.Option("--site", help="A site whose DATA to read; repeat for more.")
    ] = None,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    data: Data = DEFAULT_DATA,
    deliveries: Annotated[
        list[Path] | None, typer.Option(help="What `abcast deliver --json` of a member printed; repeat for more.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read the DATA topics, the ledger (if --data has one) and delivery logs; name every anomaly. Exit code 3 if any.

    Names: lost, duplicate, gap, divergent, nonmonotonic-deliver, fifo-violation, causal-violation, view-violation.
    """
    from connectors.connection import Connection
    from connectors.group_check import check_data, check_deliveries, check_ledger
    from ordering.checker import Checker

    connection = Connection(bootstrap_servers)
    checker = Checker()
    read: dict[str, int] = {}
    for name in site or [DEFAULT_SITE]:
        read[f"DATA of {name}"] = check_data(checker, connection, group, name)
    if (data / "ledger" / "_delta_log").is_dir():
        read["ledger"] = check_ledger(checker, data / "ledger", group)
    for file in deliveries or []:
        try:
            with file.open(encoding="utf-8") as lines:
                read[f"deliveries of {file.name}"] = check_deliveries(checker, file.name, lines)
        except OSError as error:
            raise UsageError(f"{file} can't be read: {error.strerror}.") from error
    anomalies = checker.finish()
    if as_json:
        found = [{"anomaly": a.name, "detail": a.detail, "seqnos": list(a.seqnos)} for a in anomalies]
        typer.echo(json.dumps({"group": group, "ok": not anomalies, "read": read, "anomalies": found}))
    else:
        for what, count in read.items():
            typer.echo(f"{what}: {count} messages")
        for anomaly in anomalies:
            typer.echo(f"{anomaly.name}: {anomaly.detail}; seqnos {', '.join(map(str, anomaly.seqnos)) or '-'}")
        typer.echo("every promise holds" if not anomalies else f"{len(anomalies)} anomalies")
    if anomalies:
        raise typer.Exit(EXIT_ANOMALY)


if __name__ == "__main__":
    run_script(check)
