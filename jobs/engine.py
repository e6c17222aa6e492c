"""The option `--engine`, and the sequencer in this process: no Spark, no JVM, milliseconds."""

from __future__ import annotations

import gc
import sys
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.streaming import EVERYTHING, Served, await_end, reachable, stop_on_signals, working
from ordering.errors import UsageError
from ordering.names import check_site

if TYPE_CHECKING:
    from pathlib import Path

    from connectors.engine.job import EngineJob
    from connectors.kafka.connection import Connection
    from connectors.kafka.sites import Sites


GARBAGE_AFTER = 50_000
"""New values, between two looks for garbage among them."""


SWITCH_S = 0.0005
"""How long a thread keeps Python for itself while another one waits: a tenth of the default."""


class Engine(str, Enum):
    """What decides the order. Both have the same core, takeover and DATA: to change it is to start the other."""

    spark = "spark"
    process = "process"


EngineOption = Annotated[
    Engine,
    typer.Option(
        "--engine",
        help="What decides the order: Spark (the most records a second, many groups), or a plain Python process "
        "(milliseconds, no JVM).",
    ),
]


def check_engine(sites: Sites | None, engine: Engine) -> None:
    """Raise UsageError if the sites can't have their order by that engine."""
    if sites is not None and sites.mode == "isis" and engine is not Engine.process:
        raise UsageError('sites that agree (mode = "isis") do so in a plain process: add --engine process.')


def engine_job(
    connection: Connection, site: str, data: Path, sites: Sites | None = None, served: Served = EVERYTHING
) -> EngineJob:
    """The sequencer of the site as a plain Python job; where sites agree, the site's part in that.

    Raises UsageError, BrokerUnreachable, EnvironmentProblem.
    """
    from connectors.engine.job import EngineJob, EngineOptions

    check_site(site)
    if sites is not None and sites.mode == "isis":
        from connectors.engine.site_job import SiteJob
        from connectors.kafka.inputs import neighbours_of
        from connectors.sequencer.agreement import Agreement

        agreement = Agreement(neighbours_of(sites, site), sites.suspect_after_ms)
        return SiteJob(reachable(connection, served), agreement, *served)
    return EngineJob(EngineOptions(reachable(connection, served), site, data.absolute() / "ledger", *served))


def tune() -> None:
    """Set this process up for a job that is to take milliseconds."""
    # The thread that orders must not wait for the others, which have time.
    sys.setswitchinterval(SWITCH_S)
    # What is loaded stays, and a batch makes many values that die with it: to look through them all costs milliseconds.
    gc.freeze()
    gc.set_threshold(GARBAGE_AFTER, 50, 100)


def run_engine(job: EngineJob) -> None:
    """Run the sequencer in this process until SIGTERM or Ctrl-C."""
    tune()
    with working([job]) as jobs:
        stop_on_signals(jobs)
        await_end(jobs)
