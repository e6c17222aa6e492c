"""`abcast ledger`: Run the ledger: DATA into the Delta tables below --data."""

from __future__ import annotations

from jobs.options import (
    DEFAULT_BOOTSTRAP_SERVERS,
    DEFAULT_DATA,
    BootstrapServers,
    Data,
    MaxBatchRecords,
    Site,
    run_script,
)
from jobs.sites import SitesFile, optional_sites
from jobs.streaming import job_options, run_jobs
from ordering.names import DEFAULT_SITE


def ledger(
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    site: Site = DEFAULT_SITE,
    data: Data = DEFAULT_DATA,
    max_batch_records: MaxBatchRecords = 200_000,
    sites: SitesFile = None,
) -> None:
    """Run the ledger: DATA into the Delta tables below --data.

    Goes on after the last seqno in the table, so it can be stopped, killed or started twice.
    """
    run_jobs(["ledger"], job_options(bootstrap_servers, site, data, max_batch_records, 1, optional_sites(sites)))


if __name__ == "__main__":
    run_script(ledger)
