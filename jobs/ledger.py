"""`abcast ledger`: run the ledger: DATA into the Delta tables below --data."""

from __future__ import annotations

from connectors.kafka.groups.group_choice import LOOK_EVERY_S
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
from jobs.terminal.streaming import job_options, run_jobs, served
from ordering.base.names import DEFAULT_SITE


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
) -> None:
    """Run the ledger: DATA into the Delta tables below --data.

    It resumes after the last seqno in the table, so you can stop it, kill it, or start it twice.
    """
    topology = optional_sites(sites, kafka_config, "ledger")
    connection = kafka_of_site(topology, site, bootstrap_servers, kafka_config, "ledger")
    run_jobs(
        ["ledger"],
        job_options(connection, site, data, max_batch_records, served(groups, look_every_s), work_dir=work_dir),
    )


if __name__ == "__main__":
    run_script(ledger)
