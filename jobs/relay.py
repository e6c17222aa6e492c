"""`abcast relay`: carry messages between sites."""

from __future__ import annotations

from typing import Annotated

import typer

from connectors.kafka.groups.group_choice import LOOK_EVERY_S
from jobs.listening import Listen, Payloads, listening
from jobs.terminal import interruption
from jobs.terminal.engine_option import Engine, tune
from jobs.terminal.jobs_process import process_relays
from jobs.terminal.logs import log_with
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
from jobs.terminal.streaming import STOPPING, Relays, await_end, job_options, reachable, run_jobs, served, working
from ordering.base.errors import UsageError

RelayEngine = Annotated[
    Engine,
    typer.Option(
        "--engine",
        help="The engine that carries: Spark, or a plain Python process (milliseconds, no JVM).",
    ),
]


def relay(
    sites: SitesFile = None,
    kafka_config: KafkaConfig = None,
    source: Annotated[str | None, typer.Option("--from", help="Carry only records from this site.")] = None,
    target: Annotated[str | None, typer.Option("--to", help="Carry only records to this site.")] = None,
    data: Data = DEFAULT_DATA,
    work_dir: WorkDir = None,
    max_batch_records: MaxBatchRecords = 200_000,
    groups: Groups = None,
    look_every_s: LookEvery = LOOK_EVERY_S,
    engine: RelayEngine = Engine.spark,
    listen: Listen = None,
    listen_payloads: Payloads = False,
) -> None:
    """Carry records between sites.

    It serves every direction of every link, or only the directions of --from and --to.

    In a hub, FORWARD of the other sites goes to the home, and DATA of the home goes to them: all have one order. In a
    mesh, each site has its own order, and the relay makes its messages FORWARD at the others, each exactly once.

    A relay keeps no state. It asks the other site for its last record, so you can stop it, kill it, or start it twice;
    also with the other engine.
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
        raise UsageError(
            f"there is no link{f' from {source}' if source else ''}{f' to {target}' if target else ''}: "
            "`abcast site list` shows all."
        )
    if topology.mode == "isis" and all(topology.shares_kafka(*direction) for direction in directions):
        raise UsageError("these sites share a Kafka and read each other's topics: they need no relay.")
    source = directions[0].source
    which = served(groups, look_every_s)
    targets = {target: topology.connection(target) for _, target in directions}
    with listening(listen, targets, None, which, topology, payloads=listen_payloads) as troubles:
        if engine is Engine.process:
            log_with(site=source)
            reachable(topology.connection(source), which)
            tune()
            interruption.stop_when_asked(STOPPING)
            with working(process_relays(Relays(topology, directions), which, troubles)) as jobs:
                await_end(jobs)
            return
        options = job_options(
            topology.connection(source), source, data, max_batch_records, which, work_dir=work_dir, troubles=troubles
        )
        run_jobs([], options, Relays(topology, directions))


if __name__ == "__main__":
    run_script(relay)
