"""`abcast relay`: carry messages between sites."""

from __future__ import annotations

from typing import Annotated

import typer

from connectors.kafka.groups.group_choice import LOOK_EVERY_S
from jobs.terminal.options import (
    DEFAULT_DATA,
    Data,
    Groups,
    KafkaConfig,
    LookEvery,
    MaxBatchRecords,
    WorkDir,
    run_script,
)
from jobs.terminal.sites_option import SitesFile, required_sites
from jobs.terminal.streaming import Relays, job_options, run_jobs, served
from ordering.base.errors import UsageError


def relay(
    sites: SitesFile = None,
    kafka_config: KafkaConfig = None,
    source: Annotated[str | None, typer.Option("--from", help="Only what leaves this site.")] = None,
    target: Annotated[str | None, typer.Option("--to", help="Only what goes to this site.")] = None,
    data: Data = DEFAULT_DATA,
    work_dir: WorkDir = None,
    max_batch_records: MaxBatchRecords = 200_000,
    groups: Groups = None,
    look_every_s: LookEvery = LOOK_EVERY_S,
) -> None:
    """Carry messages between sites. It serves every direction of every link, or those chosen by --from and --to.

    With a home, other sites' FORWARD goes to the home and the home's DATA to them: one order for the world. Without
    one, each site orders for itself, and the relay makes its messages FORWARD at the others, each exactly once.

    A relay keeps nothing: it asks the other side what it has, so it can be stopped, killed or started twice.
    """
    topology = required_sites(sites, kafka_config, "relay")
    for site in filter(None, (source, target)):
        topology.connection(site)
    directions = [
        direction
        for direction in topology.directions()
        if source in (None, direction.source) and target in (None, direction.target)
    ]
    if not directions:
        raise UsageError(f"there is no link{f' from {source}' if source else ''}{f' to {target}' if target else ''}.")
    if topology.mode == "isis" and all(topology.shares_kafka(*direction) for direction in directions):
        raise UsageError("these sites share a Kafka, where each reads what stands there: no relay is needed.")
    source = directions[0].source
    which = served(groups, look_every_s)
    options = job_options(topology.connection(source), source, data, max_batch_records, which, work_dir=work_dir)
    run_jobs([], options, Relays(topology, directions))


if __name__ == "__main__":
    run_script(relay)
