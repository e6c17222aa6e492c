"""`abcast sequence`: run the sequencer: FORWARD in, DATA with seqnos out."""

from __future__ import annotations

from connectors.kafka.groups.group_choice import LOOK_EVERY_S
from jobs.listening import Listen, Payloads, listening
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
    run_engine,
)
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
    run_script,
)
from jobs.terminal.sites_option import SitesFile, check_sequences, kafka_of_site, optional_sites
from jobs.terminal.streaming import job_options, run_jobs, served
from ordering.base.names import DEFAULT_SITE


def sequence(
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
    listen: Listen = None,
    listen_payloads: Payloads = False,
) -> None:
    """Run the sequencer: FORWARD in, DATA with seqnos out.

    It serves every group with a DATA topic at the site, including groups created later. It takes these groups over: an
    older sequencer of the same groups is fenced and stops, on either engine.
    """
    topology = optional_sites(sites, kafka_config, "sequence")
    check_sequences(topology, site)
    agreed = agreement_of(topology, site, agreement)
    which = served(groups, look_every_s)
    connection = kafka_of_site(topology, site, bootstrap_servers, kafka_config, "sequence")
    after_s = after_s_of(engine, takeover_after_s, stands_by=standby)
    with listening(listen, {site: connection}, data, which, topology, payloads=listen_payloads) as troubles:
        if engine is Engine.process:
            from connectors.relay.beginning import beginning_of

            check = beginning_of(topology, site)
            run_engine(engine_job(connection, site, data, agreed, which, troubles, check, after_s))
            return
        options = job_options(
            connection, site, data, max_batch_records, which, parallelism, work_dir, topology, troubles
        )
        run_jobs(["sequence"], options, agreement=agreed)


if __name__ == "__main__":
    run_script(sequence)
