"""The options `--engine` and `--agreement`, and the plain Python engine: no JVM, and an order within milliseconds."""

from __future__ import annotations

import gc
import sys
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.terminal import interruption
from jobs.terminal.logs import log_with
from jobs.terminal.streaming import EVERYTHING, STOPPING, Served, await_end, reachable, working
from ordering.base.errors import UsageError
from ordering.base.names import check_site

if TYPE_CHECKING:
    from connectors.engine.job import EngineJob
    from connectors.kafka.connection.connection import Connection
    from connectors.kafka.connection.sites import Sites
    from connectors.kafka.groups.troubles import Troubles
    from connectors.storage.location import Location
    from connectors.takeover.agreement import AgreementSettings
    from connectors.takeover.takeover import GroupCheck


TAKEOVER_AFTER_S = 2.0
"""The default of `--takeover-after-s`. A standby waits for three signs of the sequencer at least: 1.5 s, or 6 s."""


GARBAGE_AFTER = 50_000
"""The number of new objects after which Python collects garbage among them."""


SWITCH_S = 0.0005
"""The time for which a thread keeps Python's lock while another one waits: a tenth of the default."""


class Engine(str, Enum):
    """The engine that decides the order. Both have the same core and takeover: to change it, start the other."""

    spark = "spark"
    process = "process"


EngineOption = Annotated[
    Engine,
    typer.Option(
        "--engine",
        help="The engine that decides the order: Spark (the most single records a second), or a plain Python process "
        "(milliseconds, no JVM; the most messages in packs).",
    ),
]


Standby = Annotated[
    bool,
    typer.Option(
        "--standby",
        help="Wait beside the site's sequencer, of either engine, and take over when that is gone; stand by again when "
        "another one has taken over. Needs --engine process. In `abcast run`, the ledger does not wait: beside another "
        "one it writes each row once, in a directory of its own it keeps a second table. Relays run while this process "
        "orders.",
    ),
]
TakeoverAfter = Annotated[
    float,
    typer.Option(
        "--takeover-after-s",
        envvar="ABCAST_TAKEOVER_AFTER_S",
        help="Seconds without a sign of the sequencer after which a standby takes over: 6 at least if that is of an "
        "earlier version. A sequencer that ends on this host is noticed at once.",
    ),
]


class HowDecided(str, Enum):
    """The values of `--agreement`."""

    isis = "isis"


AgreementOption = Annotated[
    HowDecided | None,
    typer.Option(
        "--agreement",
        help="Let sites agree on the order. Without a sites' file, the site agrees with itself alone.",
    ),
]


def after_s_of(engine: Engine, after_s: float, *, stands_by: bool) -> float | None:
    """Return the seconds of silence after which the sequencer takes over; None for at once. Raises UsageError."""
    if not stands_by:
        return None
    if engine is not Engine.process:
        raise UsageError("a standby is a plain Python process: add --engine process. It waits beside Spark, too.")
    return after_s


def agreement_of(sites: Sites | None, site: str, how: HowDecided | None) -> AgreementSettings | None:
    """Return the settings of the agreement; None if sites do not agree on the order. Raises UsageError."""
    check_site(site)
    if how is None and (sites is None or sites.mode != "isis"):
        return None
    from connectors.kafka.codec.inputs import Neighbours
    from connectors.takeover.agreement import AgreementSettings, neighbours_of

    if sites is None:
        return AgreementSettings(Neighbours(site, (site,)))
    if sites.mode != "isis":
        raise UsageError(f'the sites\' file has mode "{sites.mode}", not "isis": omit --agreement, or change the file.')
    return AgreementSettings(neighbours_of(sites, site), sites.suspect_after_ms)


def engine_job(
    connection: Connection,
    site: str,
    data: Location,
    agreement: AgreementSettings | None = None,
    served: Served = EVERYTHING,
    troubles: Troubles | None = None,
    check_group: GroupCheck | None = None,
    takeover_after_s: float | None = None,
) -> EngineJob:
    """Return the sequencer of the site as a plain Python job; if sites agree, the site's part in the agreement.

    `troubles`: of all jobs of this process. If sites agree, `data` and `check_group` (it checks each group before it is
    claimed) are not used. `takeover_after_s`: stand by, as in `EngineOptions`. Checks that Kafka answers. Raises
    UsageError, BrokerUnreachable, EnvironmentProblem.
    """
    from connectors.engine.job import EngineJob
    from connectors.engine.options import EngineOptions

    check_site(site)
    log_with(site=site)
    if agreement is not None:
        from connectors.engine.site_job import SiteJob

        return SiteJob(reachable(connection, served), agreement, *served, troubles, takeover_after_s)
    return EngineJob(
        EngineOptions(
            reachable(connection, served),
            site,
            data.absolute() / "ledger",
            *served,
            troubles=troubles,
            check_group=check_group,
            takeover_after_s=takeover_after_s,
        )
    )


def tune() -> None:
    """Set up this process for low latency: its switches of threads, and its collection of garbage."""
    # The thread that orders must not wait for the others, which are not urgent.
    sys.setswitchinterval(SWITCH_S)
    # Loaded modules stay, and a batch makes many values that die with it: each collection would cost milliseconds.
    gc.freeze()
    gc.set_threshold(GARBAGE_AFTER, 50, 100)


def run_engine(job: EngineJob) -> None:
    """Run the sequencer in this process until SIGTERM or Ctrl-C. Raises the error that ended it."""
    tune()
    interruption.stop_when_asked(STOPPING)
    with working([job]) as jobs:
        await_end(jobs)
