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
from jobs.sites import SitesFile, optional_sites
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
    sites: SitesFile = None,
    settled: Annotated[
        bool, typer.Option("--settled", help="Nothing is under way between sites: what one lacks is lost.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read the DATA topics, the ledger (if --data has one) and delivery logs; name every anomaly. Exit code 3 if any.

    Names: lost, duplicate, gap, divergent, nonmonotonic-deliver, fifo-violation, causal-violation, view-violation.

    With --sites, reads the DATA of all of them (or of those chosen by --site). With a home, all must have the same
    order, and the ledger and delivery logs may be any site's. In a mesh each site has its own: there, give --data and
    --deliveries of one site only, together with its --site. If a site of a mesh lacks messages of another, the check
    waits 15 s: they are lost if it gets no further although the relay is there.
    """
    from connectors.diagnosis.check import check_deliveries, check_ledger, check_sites, stalled
    from connectors.kafka.connection import Connection

    known = optional_sites(sites)
    chosen = site or (list(known.connections) if known else [DEFAULT_SITE])
    one_order = known is None or known.home is not None or len(chosen) == 1
    connections = {name: known.connection(name) if known else Connection(bootstrap_servers) for name in chosen}
    verdict = check_sites(group, connections, one_order=one_order)
    checker, read = verdict.checkers[chosen[0]], verdict.read
    if one_order and (data / "ledger" / "_delta_log").is_dir():
        read["ledger"] = check_ledger(checker, data / "ledger", group)
    if deliveries and not one_order:
        raise UsageError("in a mesh each site has its own order: check delivery logs with --site of their site.")
    for file in deliveries or []:
        try:
            with file.open(encoding="utf-8") as lines:
                read[f"deliveries of {file.name}"] = check_deliveries(checker, file.name, lines)
        except OSError as error:
            raise UsageError(f"{file} can't be read: {error.strerror}.") from error
    anomalies, lacks = verdict.anomalies(settled=settled), verdict.lacking()
    if known is not None and not one_order and not settled:
        anomalies += stalled(known, group, lacks)
    if as_json:
        found = [{"anomaly": a.name, "detail": a.detail, "seqnos": list(a.seqnos)} for a in anomalies]
        behind = [lack._asdict() for lack in lacks]
        typer.echo(
            json.dumps({"group": group, "ok": not anomalies, "read": read, "anomalies": found, "lacking": behind})
        )
    else:
        for what, count in read.items():
            typer.echo(f"{what}: {count} messages")
        for lack in () if settled else lacks:
            typer.echo(f"under way: {lack}")
        for anomaly in anomalies:
            typer.echo(f"{anomaly.name}: {anomaly.detail}; seqnos {', '.join(map(str, anomaly.seqnos)) or '-'}")
        typer.echo("every promise holds" if not anomalies else f"{len(anomalies)} anomalies")
    if anomalies:
        raise typer.Exit(EXIT_ANOMALY)


if __name__ == "__main__":
    run_script(check)
