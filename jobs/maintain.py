"""`abcast maintain`: keeps the Delta tables and the topics of a site from growing without need."""

from __future__ import annotations

import functools
import json
import logging
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.terminal.options import (
    DEFAULT_DATA,
    EXIT_FAILED,
    AsJson,
    BootstrapServers,
    Data,
    KafkaConfig,
    Location,
    Site,
    Why,
    run_script,
)
from jobs.terminal.sites_option import SitesFile, kafka_of_site, optional_sites
from jobs.terminal.streaming import job_options, session_of_command
from jobs.terminal.times import seconds
from ordering.base.errors import AbcastError, UsageError
from ordering.base.names import DEFAULT_SITE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from connectors.kafka.connection.sites import Sites
    from connectors.kafka.topics.data_purge import Lacking
    from connectors.kafka.topics.purge import Purged
    from connectors.ledger.maintenance import TableMaintenance
    from connectors.ledger.maintenance_job import Idle, Maintained, PurgeCopies
    from connectors.spark.job import JobOptions, SparkJob
    from jobs.terminal.streaming import MakeJob

SHORTEST_IDLE_S = 2 * 86_400
SHORTEST_DATA_S = 2 * 3600

DataRetention = Annotated[
    str | None, typer.Option(help="Delete older records of DATA that the ledger has, such as 30d. Default: keep all.")
]

_logger = logging.getLogger(__name__)


def maintain(
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    site: Site = DEFAULT_SITE,
    data: Data = DEFAULT_DATA,
    every: Annotated[str | None, typer.Option(help="Repeat at this interval, such as 30m or 1h.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what it would do.")] = False,
    dead_letters: Annotated[str, typer.Option(help="Delete dead letters older than this.")] = "30d",
    letters: Annotated[
        str, typer.Option(help="Delete letters older than this, even if no receiver has taken them.")
    ] = "30d",
    forget_senders: Annotated[
        str | None, typer.Option(help="Forget senders that are idle for this long, 2d or more. Default: forget none.")
    ] = None,
    data_retention: DataRetention = None,
    sites: SitesFile = None,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Clean up the ledger's files, and purge topics.

    It merges small files of the ledger, and deletes old ones. It deletes records of FORWARD that the sequencer has
    considered (for groups of one site and of a mesh), taken letters, and dead letters; with --sites, also copies of
    letters that have arrived at other sites. It may run beside the jobs; `abcast run --maintain-every 1h` does the
    same. It prints files and bytes before and after.

    With --data-retention, it deletes records of DATA that are older than that, counted from the newest record, up to a
    snapshot that the ledger below --data covers. With other sites, this needs --sites: records that a neighbour lacks
    stay.

    With --forget-senders, the sequencer forgets every sender outside of the view without an ordered message for that
    long, by the broker's time. A sender that still runs notices, and goes on.

    If one group fails, the others go on. The errors come at the end, and the exit code is 1.

    With --why, the EPOCH topic records your reason, and `abcast status` shows it.
    """
    pause_s = seconds(every, "--every") if every is not None else None
    kept_s, letters_s = seconds(dead_letters, "--dead-letters"), seconds(letters, "--letters")
    idle_s = seconds(forget_senders, "--forget-senders") if forget_senders is not None else None
    if idle_s is not None and idle_s < SHORTEST_IDLE_S:
        raise UsageError(f"--forget-senders is {forget_senders!r}: give 2d or more. Clocks may differ by a day.")
    data_s = kept_of_data(data_retention)
    if data_s is not None and idle_s is not None and data_s < idle_s:
        raise UsageError(
            "--forget-senders looks back that far in DATA: give --data-retention the same duration or more."
        )
    topology = optional_sites(sites, kafka_config, "maintain")
    connection = kafka_of_site(topology, site, bootstrap_servers, kafka_config, "maintain")
    options = job_options(connection, site, data, 1)
    from connectors.kafka.log.acts import act_of_this_user
    from connectors.ledger.maintenance_job import MaintenanceOptions
    from connectors.ledger.maintenance_job import maintain as maintain_site

    kept = {"dead letters": dead_letters, "letters": letters, "DATA": data_retention, "idle senders": forget_senders}
    what = ", ".join(f"{name} older than {text}" for name, text in kept.items() if text)
    wanted = MaintenanceOptions(
        kept_s,
        idle_s,
        letters_s,
        dry_run,
        _purge_of_copies(topology, site),
        data_s,
        _lacking(topology, site),
        act=act_of_this_user("purge", what, why) if why else None,
    )
    session = functools.cache(lambda: _session(data))
    while True:
        try:
            done = maintain_site(session, options, wanted)
            typer.echo(_as_json(done, dry_run=dry_run) if as_json else _as_text(done, dry_run=dry_run))
            for failure in done.failures.values():
                typer.echo(f"abcast: {failure}", err=True)
            if done.failures and pause_s is None:
                raise typer.Exit(EXIT_FAILED)
        except AbcastError as error:
            if pause_s is None or not error.retriable:
                raise
            _logger.warning("maintain: %s Trying again in %.0f s.", error, pause_s)
        if pause_s is None:
            return
        wanted = replace(wanted, act=None)  # EPOCH records it once
        time.sleep(pause_s)


def _session(data: Location) -> SparkSession:
    """Start Spark. The JVM's standard output is this process's standard error: Delta prints results of VACUUM to it."""
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        return session_of_command("abcast maintain", data)
    finally:
        os.dup2(output, 1)
        os.close(output)


def _purge_of_copies(sites: Sites | None, site: str) -> PurgeCopies:
    """Return the function that deletes arrived letters from the copies of other sites' inboxes here."""
    if sites is None:
        return lambda *_: ()
    from connectors.relay.letter_copies import purge_copies

    return lambda group, dry_run: purge_copies(sites, site, group, dry_run=dry_run)


def _lacking(sites: Sites | None, site: str) -> Lacking | None:
    """Return the check of whether the neighbours have the DATA that is to be deleted; None without other sites."""
    if sites is None:
        return None
    from connectors.relay.lacking import lacking_beside

    return lacking_beside(sites, site)


def kept_of_data(text: str | None) -> float | None:
    """Return the seconds for which DATA is kept; None: for ever. Raises UsageError, also below SHORTEST_DATA_S."""
    kept_s = seconds(text, "--data-retention") if text is not None else None
    if kept_s is not None and kept_s < SHORTEST_DATA_S:
        raise UsageError(f"--data-retention is {text!r}: give 2h or more. Readers may still read newer records.")
    return kept_s


def every(pause_s: float, sites: Sites | None, site: str, data_s: float | None = None) -> MakeJob:
    """Return the maker of a job that maintains a site every `pause_s` seconds. `data_s`: from `kept_of_data`."""

    def make(spark: SparkSession, options: JobOptions) -> SparkJob:
        from connectors.ledger.maintenance_job import MaintenanceJob, MaintenanceOptions

        wanted = MaintenanceOptions(
            purge_copies=_purge_of_copies(sites, site), data_s=data_s, lacking=_lacking(sites, site)
        )
        return MaintenanceJob(spark, options, pause_s, wanted)

    return make


def _as_json(done: Maintained, *, dry_run: bool) -> str:
    tables = [
        {**each._asdict(), "before": each.before._asdict(), "after": each.after._asdict()} for each in done.tables
    ]
    of_table = {name: [each._asdict() for each in getattr(done, name)] for name in ("topics", "senders")}
    return json.dumps({"dry_run": dry_run, "tables": tables, **of_table})


def _as_text(done: Maintained, *, dry_run: bool) -> str:
    lines = [_of_table(each, dry_run=dry_run) for each in done.tables]
    lines += [_of_topic(each, dry_run=dry_run) for each in done.topics if each.records]
    lines += [_of_senders(each, dry_run=dry_run) for each in done.senders]
    return "\n".join(lines) or "nothing to do"


def _of_table(table: TableMaintenance, *, dry_run: bool) -> str:
    before, after = table.before, table.after
    would = "would be " if dry_run else ""
    done = f"{table.table}: {table.merged:,} small files {would}merged, {table.deleted:,} old files {would}deleted"
    now = (
        f"{after.files:,} files with {after.bytes:,} bytes, and {after.log_files:,} of its log with {after.log_bytes:,}"
    )
    was = "" if dry_run else f" (before: {before.files:,} files, {before.bytes:,} bytes)"
    return f"{done}; {now}{was}"


def _of_senders(idle: Idle, *, dry_run: bool) -> str:
    done = f"{len(idle.senders):,} would be forgotten" if dry_run else f"{idle.forgotten:,} forgotten"
    return f"{idle.group}: {len(idle.senders):,} idle senders, {done}"


def _of_topic(purged: Purged, *, dry_run: bool) -> str:
    would = "would be " if dry_run else ""
    sizes = "" if purged.bytes_before is None or dry_run else f"; {purged.bytes_before:,} bytes before"
    return f"{purged.topic}: {purged.records:,} records {would}deleted{sizes}"


if __name__ == "__main__":
    run_script(maintain)
