"""`abcast run`: Run the sequencer and the ledger in one Spark application: what most people start."""

from __future__ import annotations

from jobs.options import (
    DEFAULT_BOOTSTRAP_SERVERS,
    DEFAULT_DATA,
    BootstrapServers,
    Data,
    MaxBatchRecords,
    Parallelism,
    Site,
    run_script,
)
from jobs.streaming import run_jobs
from ordering.names import DEFAULT_SITE


def run(
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    site: Site = DEFAULT_SITE,
    data: Data = DEFAULT_DATA,
    max_batch_records: MaxBatchRecords = 200_000,
    parallelism: Parallelism = 1,
) -> None:
    """Run the sequencer and the ledger in one Spark application: what most people start.

    Serves every group of the site; new groups are found while it runs.
    """
    run_jobs(["sequence", "ledger"], bootstrap_servers, site, data, max_batch_records, parallelism)


if __name__ == "__main__":
    run_script(run)
