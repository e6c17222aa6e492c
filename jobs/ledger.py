"""`abcast ledger`: run the ledger: DATA into the Delta tables below --data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from connectors.kafka.groups.group_choice import LOOK_EVERY_S
from jobs.listening import Listen, Payloads, listening
from jobs.terminal import interruption
from jobs.terminal.engine_option import Engine
from jobs.terminal.logs import log_with
from jobs.terminal.options import (
    DEFAULT_DATA,
    BootstrapServers,
    Data,
    Groups,
    KafkaConfig,
    LookEvery,
    MaxBatchRecords,
    Site,
    WorkDir,
    run_script,
)
from jobs.terminal.sites_option import SitesFile, kafka_of_site, optional_sites
from jobs.terminal.streaming import STOPPING, Served, await_end, job_options, reachable, run_jobs, served, working
from ordering.base.errors import UsageError
from ordering.base.names import DEFAULT_SITE, check_site

if TYPE_CHECKING:
    from connectors.kafka.connection.connection import Connection
    from connectors.storage.location import Location

LedgerEngine = Annotated[
    Engine,
    typer.Option(
        "--engine",
        help="The engine that writes the tables: Spark, or a plain Python process (no JVM; into a local directory).",
    ),
]


def ledger(
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    site: Site = DEFAULT_SITE,
    data: Data = DEFAULT_DATA,
    work_dir: WorkDir = None,
    max_batch_records: MaxBatchRecords = 200_000,
    groups: Groups = None,
    look_every_s: LookEvery = LOOK_EVERY_S,
    sites: SitesFile = None,
    engine: LedgerEngine = Engine.spark,
    listen: Listen = None,
    listen_payloads: Payloads = False,
) -> None:
    """Run the ledger: DATA into the Delta tables below --data.

    It resumes after the last seqno in the table, so you can stop it, kill it, or start it twice; also with the other
    engine.
    """
    topology = optional_sites(sites, kafka_config, "ledger")
    connection = kafka_of_site(topology, site, bootstrap_servers, kafka_config, "ledger")
    which = served(groups, look_every_s)
    with listening(listen, {site: connection}, data, which, topology, payloads=listen_payloads) as troubles:
        if engine is Engine.process:
            _run_process(connection, site, data, which)
            return
        options = job_options(connection, site, data, max_batch_records, which, work_dir=work_dir, troubles=troubles)
        run_jobs(["ledger"], options)


def _run_process(connection: Connection, site: str, data: Location, which: Served) -> None:
    from connectors.ledger.process.casts import ProcessCastJob
    from connectors.ledger.process.job import ProcessLedgerJob
    from connectors.ledger.process.table_job import LedgerOptions
    from connectors.spark.data_directory import check_writable

    check_site(site)
    log_with(site=site)
    if not isinstance(data, Path):
        raise UsageError(f"--engine process writes to a local directory only: for {data}, take --engine spark.")
    directory = data.absolute()
    check_writable(directory)
    options = LedgerOptions(reachable(connection, which), site, directory, *which)
    interruption.stop_when_asked(STOPPING)
    with working([ProcessLedgerJob(options), ProcessCastJob(options)]) as jobs:
        await_end(jobs)


if __name__ == "__main__":
    run_script(ledger)
