"""`abcast check`: names every broken promise of a group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from connectors.kafka.login.configuration import configured
from jobs.terminal.options import (
    DEFAULT_DATA,
    EXIT_ANOMALY,
    AsJson,
    BootstrapServers,
    Data,
    Group,
    KafkaConfig,
    SeveralSites,
    connection_to,
    run_script,
)
from jobs.terminal.progress import Progress
from jobs.terminal.sites_option import SitesFile, optional_sites
from ordering.base.errors import counted

if TYPE_CHECKING:
    from connectors.diagnosis.report import Report


def check(
    context: typer.Context,
    group: Group,
    site: SeveralSites = None,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    data: Data = DEFAULT_DATA,
    deliveries: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True, dir_okay=False, help="The output of a member's `abcast deliver --json`; repeat for more."
        ),
    ] = None,
    sites: SitesFile = None,
    settled: Annotated[
        bool, typer.Option("--settled", help="No message is under way between sites: one that a site lacks is lost.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check every promise, and name the anomalies. Exit code 3 if there are any.

    It reads the DATA topics, the ledger (if --data has one) and delivery logs.

    Names: lost, duplicate, gap, divergent, nonmonotonic-deliver, fifo-violation, causal-violation, view-violation.

    With --sites, it reads DATA of all sites, or of the sites of --site (ABCAST_SITE does not count then). In a hub, and
    if sites agree, all must have the same order, and the ledger and delivery logs may be any site's. In a mesh each
    site has its own order: there, give --data and --deliveries of one site only, together with its --site. If a site of
    a mesh lacks messages of another, the check waits 15 s: they are lost if the site makes no progress although the
    relay runs.
    """
    from connectors.diagnosis.report import check_group

    topology = optional_sites(sites, kafka_config, "check")
    # The one site of all commands is no choice among the sites: the check would pass over the others.
    if topology is not None and not _is_in_line(context) and site == [configured("site", "")]:
        site = None
    where = topology or connection_to(bootstrap_servers, kafka_config, "check")
    with Progress("looking at the sites") as progress:
        report = check_group(
            group,
            where,
            names=site or (),
            ledger=data / "ledger",
            deliveries=deliveries or (),
            settled=settled,
            progress=progress,
        )
    typer.echo(_as_json(group, report) if as_json else _as_text(report))
    if report.anomalies:
        raise typer.Exit(EXIT_ANOMALY)


def _is_in_line(context: typer.Context) -> bool:
    """Whether the command line has --site."""
    source = context.get_parameter_source("site")
    return source is not None and source.name == "COMMANDLINE"


def _as_json(group: str, report: Report) -> str:
    found = [{"anomaly": a.name, "detail": a.detail, "seqnos": list(a.seqnos)} for a in report.anomalies]
    behind = [lack._asdict() for lack in report.lacks]
    strays = {what: found._asdict() for what, found in report.strays.items()}
    return json.dumps(
        {
            "group": group,
            "ok": not found,
            "read": report.read,
            "anomalies": found,
            "lacking": behind,
            "strays": strays,
        }
    )


def _as_text(report: Report) -> str:
    lines = [f"{what}: {counted(count, 'message')}" for what, count in report.read.items()]
    lines += [f"{what}: {strays}" for what, strays in report.strays.items()]
    lines += [f"under way: {lack}" for lack in report.under_way]
    for anomaly in report.anomalies:
        seqnos = f" (seqno {', '.join(map(str, anomaly.seqnos))})" if anomaly.seqnos else ""
        lines.append(f"{anomaly.name}: {anomaly.detail.rstrip('.')}{seqnos}")
    count = len(report.anomalies)
    lines.append(f"{count} {'anomaly' if count == 1 else 'anomalies'}" if count else "every promise holds")
    return "\n".join(lines)


if __name__ == "__main__":
    run_script(check)
