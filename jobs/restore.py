"""`abcast restore`: makes a group anew from its ledger, after its Kafka is gone."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.terminal.options import (
    DEFAULT_DATA,
    AsJson,
    BootstrapServers,
    Data,
    KafkaConfig,
    Location,
    Site,
    Why,
    run_script,
)
from jobs.terminal.progress import Progress
from jobs.terminal.sites_option import SitesFile, kafka_of_site, optional_sites
from ordering.base.errors import UsageError, counted
from ordering.base.names import DEFAULT_SITE

if TYPE_CHECKING:
    from connectors.relay.restore import RestorePlan

LEAP = 100_000
"""The seqnos that a restore passes over, unless told otherwise. A ledger is about a second behind; its table gets a row
for each of them. A reader with the last of them may have read the mark, so it is not told."""
MOST_LEAP = 999_999
"""The most that one record of DATA takes."""


def restore(
    group: Annotated[
        list[str] | None, typer.Option("--group", "-g", envvar="ABCAST_GROUP", help="The group; repeat for more.")
    ] = None,
    site: Site = DEFAULT_SITE,
    sites: SitesFile = None,
    data: Data = DEFAULT_DATA,
    leap: Annotated[
        int, typer.Option("--leap", min=2, max=MOST_LEAP, help="The seqnos to pass over: more than may be lost.")
    ] = LEAP,
    force: Annotated[
        bool, typer.Option("--force", help="Restore the ledger even if another site has a copy, or does not answer.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, and print the plan; write nothing.")] = False,
    partitions: Annotated[int, typer.Option(min=1, max=1000, help="Partitions of the forward topic.")] = 1,
    replication_factor: Annotated[int, typer.Option(min=1, max=10, help="Copies of each partition.")] = 1,
    why: Why = "",
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Restore groups whose Kafka is gone, from the ledger in --data.

    Use it if the topics are lost for good. If another site of a hub has a copy, that one is better: name the sites'
    file, and the command says what to do.

    First stop the jobs and the members. The command makes the topics anew, and writes every message of the ledger under
    its old seqno. A ledger is about a second behind, so the last messages are lost, and somebody may have taken them.
    Their seqnos are never given again: the order goes on behind a gap of --leap seqnos. Members that took lost messages
    are told which (HistoryRestored). Then start the jobs.

    Senders send their unordered messages again: with an outbox by themselves. Kafka had the positions of all members,
    so each says where it goes on: `abcast deliver --from-seqno N --remember`. Letters, casts and dead letters are gone.

    If the command is interrupted, run it again. Until it has ended, no sequencer starts.
    """
    from connectors.relay import restore as restoring

    of_sites = optional_sites(sites, kafka_config, "restore")
    connection = kafka_of_site(of_sites, site, bootstrap_servers, kafka_config, "restore")
    ledger = data / "ledger"
    groups = group or _name_groups(ledger)
    planned = []
    for name in groups:
        found = restoring.plan(connection, name, site, ledger, leap)
        if of_sites is not None and not found.is_done:
            restoring.check_sites(of_sites, name, site, found.last, forced=force)
        planned.append(found)
    for found in planned:
        if not as_json:
            typer.echo(_plan_in_words(found, site, partitions, replication_factor))
        if not (dry_run or found.is_done):
            what = f"restoring {found.group}"
            with Progress(what) as progress:
                how = leap, partitions, replication_factor, why
                tell = partial(progress.say, what), progress.advance
                found = restoring.restore(connection, found.group, site, ledger, *how, *tell)
            if not as_json:
                typer.echo(
                    f"{found.group} is restored. Start `abcast run`; new messages begin at seqno {found.lost.last + 1}"
                )
        if as_json:
            says = {**found._asdict(), "lost": found.lost._asdict(), "site": site, "dry_run": dry_run}
            typer.echo(json.dumps(says))


def _name_groups(ledger: Location) -> list[str]:
    """Raise UsageError with the groups that the ledger has: some may have been deleted on purpose."""
    from connectors.ledger.table_state import read_table_state

    known = read_table_state(ledger).last_seqno
    if not known:
        raise UsageError(f"there is no ledger in {ledger}: name the --data of the jobs, or a copy of it.")
    there = ", ".join(f"{name} (up to seqno {last})" for name, last in sorted(known.items()))
    raise UsageError(f"say with --group what to restore. {ledger} has {there}.")


def _plan_in_words(found: RestorePlan, site: str, partitions: int, replication_factor: int) -> str:
    if found.is_done:
        return (
            f"{found.group} at {site} was restored up to seqno {found.last} before, and is not changed. New messages "
            f"began at seqno {found.lost.last + 1}"
        )
    topics = f"{counted(partitions, 'forward partition')}, replication factor {replication_factor}"
    how = "an earlier run goes on" if found.resumes else f"topics are made anew ({topics})"
    return (
        f"{found.group} at {site}: {how}; seqnos 1 to {found.last} come back, with {found.senders} senders and a view "
        f"of {found.members}; seqnos {found.lost.first} to {found.lost.last} are passed over, and what had them is lost"
    )


if __name__ == "__main__":
    run_script(restore)
