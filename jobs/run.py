"""`abcast run`: run a site's sequencer, ledger and relays in one application, the usual way."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from connectors.kafka.groups.group_choice import LOOK_EVERY_S
from jobs.listening import Listen, Payloads, listening
from jobs.maintain import DataRetention, every, kept_of_data
from jobs.terminal import interruption
from jobs.terminal.engine_option import (
    TAKEOVER_AFTER_S,
    AgreementOption,
    Engine,
    EngineOption,
    Standby,
    TakeoverAfter,
    after_s_of,
    agreement_of,
    engine_job,
    tune,
)
from jobs.terminal.jobs_process import ledger_process, relays_process
from jobs.terminal.logs import log_with
from jobs.terminal.options import (
    DEFAULT_DATA,
    BootstrapServers,
    Data,
    Groups,
    KafkaConfig,
    LookEvery,
    MaxBatchRecords,
    Parallelism,
    Site,
    WorkDir,
    require,
    run_script,
)
from jobs.terminal.sites_option import SitesFile, check_sequences, kafka_of_site, optional_sites
from jobs.terminal.streaming import (
    STOPPING,
    Relays,
    Served,
    await_end,
    job_options,
    reachable,
    run_jobs,
    served,
    working,
)
from jobs.terminal.times import seconds
from ordering.base.errors import UsageError
from ordering.base.names import DEFAULT_SITE

if TYPE_CHECKING:
    from connectors.kafka.connection.connection import Connection
    from connectors.kafka.groups.troubles import Troubles
    from connectors.spark.job import SparkJob
    from connectors.takeover.agreement import AgreementSettings


def run(
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    site: Site = DEFAULT_SITE,
    data: Data = DEFAULT_DATA,
    work_dir: WorkDir = None,
    max_batch_records: MaxBatchRecords = 200_000,
    parallelism: Parallelism = None,
    groups: Groups = None,
    look_every_s: LookEvery = LOOK_EVERY_S,
    sites: SitesFile = None,
    engine: EngineOption = Engine.spark,
    agreement: AgreementOption = None,
    standby: Standby = False,
    takeover_after_s: TakeoverAfter = TAKEOVER_AFTER_S,
    maintain_every: Annotated[
        str | None, typer.Option(help="Run `abcast maintain` at this interval, such as 1h.")
    ] = None,
    data_retention: DataRetention = None,
    listen: Listen = None,
    listen_payloads: Payloads = False,
) -> None:
    """Run the sequencer and the ledger in one application.

    This is the usual way to start abcast. The jobs serve every group of the site, including groups created later. With
    --sites, the site's relay runs, too: it carries the site's records to the neighbouring sites. In a hub only the home
    has a sequencer. With --standby, only the sequencer and the relays wait.
    """
    pause_s = seconds(maintain_every, "--maintain-every") if maintain_every is not None else None
    data_s = kept_of_data(data_retention)
    if data_s is not None and pause_s is None:
        raise UsageError("--data-retention needs --maintain-every: add it, for example --maintain-every 1h.")
    topology = optional_sites(sites, kafka_config, "run")
    maintenance = [every(pause_s, topology, site, data_s)] if pause_s is not None else []
    after_s = after_s_of(engine, takeover_after_s, stands_by=standby)
    directory = data if engine is Engine.process and not maintenance and isinstance(data, Path) else None
    if standby and directory is None:
        raise UsageError(
            "a standby starts no JVM, which --maintain-every and tables on an object store need: run `abcast sequence "
            "--engine process --standby`, and `abcast ledger` beside it."
        )
    if standby:
        check_sequences(topology, site)
    agreed = agreement_of(topology, site, agreement)
    which = served(groups, look_every_s)
    connection = kafka_of_site(topology, site, bootstrap_servers, kafka_config, "run")
    with listening(listen, {site: connection}, data, which, topology, payloads=listen_payloads) as troubles:
        relays: Relays | None = None
        if topology is not None:
            relays = Relays(topology, [direction for direction in topology.directions() if direction.source == site])
        if directory is not None:
            _run_light(connection, site, directory, agreed, which, troubles, relays, after_s)
            return
        options = job_options(
            connection, site, data, max_batch_records, which, parallelism, work_dir, topology, troubles
        )
        sequences = topology is None or topology.sequences(site)
        names = ["sequence", "ledger"] if sequences and engine is Engine.spark else ["ledger"]
        beside = (
            [engine_job(connection, site, data, agreed, which, troubles, options.check_group)]
            if sequences and engine is Engine.process
            else []
        )
        if beside:
            tune()
        run_jobs(names, options, relays, beside, maintenance, agreed)


def _run_light(
    connection: Connection,
    site: str,
    data: Path,
    agreed: AgreementSettings | None,
    which: Served,
    troubles: Troubles,
    relays: Relays | None,
    after_s: float | None,
) -> None:
    """Run without Spark: nothing that the site needs takes it. `after_s`: as in `after_s_of`.

    Two relays of a direction do the work twice, and in a mesh they end each other's sessions. So a standby's
    relays wait with its sequencer. Its ledger does not: a second table is a copy that is complete when it is needed.
    """
    from connectors.ledger.process.table_job import LedgerOptions
    from connectors.relay.beginning import beginning_of
    from connectors.relay.kinds import relays_of
    from connectors.spark.data_directory import check_writable

    require("deltalake")  # the child needs it
    directory = data.absolute()
    check_writable(directory)
    sites = relays.sites if relays is not None else None
    jobs: list[SparkJob] = []
    is_wanted = None
    if sites is None or sites.sequences(site):
        check_group = beginning_of(sites, site)
        sequencer = engine_job(connection, site, directory, agreed, which, troubles, check_group, after_s)
        jobs.append(sequencer)
        is_wanted = sequencer.has_claimed if after_s is not None else None
        tune()
    else:
        log_with(site=site)
        connection = reachable(connection, which)
    jobs.append(ledger_process(LedgerOptions(connection, site, directory, *which, troubles=troubles)))
    if relays is not None and any(relays_of(relays.sites, direction) for direction in relays.directions):
        jobs.append(relays_process(site, relays, which, troubles, is_wanted))
    interruption.stop_when_asked(STOPPING)
    with working(jobs) as working_ones:
        await_end(working_ones)


if __name__ == "__main__":
    run_script(run)
