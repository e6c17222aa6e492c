"""The option `--listen`: an HTTP port of a running job, for probes, scrapers and programs. It only reads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from connectors.kafka.codec.seldom import warn_seldom
from connectors.kafka.groups.troubles import Troubles
from jobs.inspection.status import read_with_ledger
from jobs.terminal.logs import say
from jobs.terminal.options import Location, require
from jobs.terminal.streaming import Served, running_jobs
from ordering.base.errors import UsageError

if TYPE_CHECKING:
    from connectors.diagnosis.status import Decided
    from connectors.diagnosis.statuses import Statuses
    from connectors.kafka.connection.connection import Connection
    from connectors.kafka.connection.sites import Sites

Listen = Annotated[
    str | None,
    typer.Option(
        "--listen",
        envvar="ABCAST_LISTEN",
        metavar="HOST:PORT",
        help="An HTTP port: a page, /metrics, /healthz, /readyz, /api/status. Without HOST, for this machine only.",
    ),
]
Payloads = Annotated[
    bool,
    typer.Option(
        "--listen-payloads",
        envvar="ABCAST_LISTEN_PAYLOADS",
        help="Show payloads on the page of --listen: then everybody with access to the port reads messages.",
    ),
]
_ENDS_WITHIN_S = 5.0
_logger = logging.getLogger(__name__)


@contextmanager
def listening(
    place: str | None,
    kafkas: Mapping[str, Connection],
    data: Location | None,
    served: Served,
    sites: Sites | None = None,
    *,
    payloads: bool = False,
) -> Iterator[Troubles]:
    """Yield the troubles for the jobs of this process; for the block, answer at `place` what they and Kafka tell.

    `kafkas`: the sites whose groups are shown, each with its Kafka; the first has the sequencer, if there is one.
    `data`: of the first site; None for no ledger. `sites`: whose relays are expected. `payloads`: show them.

    Raises UsageError, EnvironmentProblem, and ModuleNotFoundError if the extra is missing.
    """
    troubles = Troubles()
    if place is None and payloads:
        raise UsageError("--listen-payloads is for the page of --listen: add --listen HOST:PORT.")
    if place is None:
        yield troubles
        return
    require("prometheus_client")
    from connectors.diagnosis.broker_clocks import BrokerClocks
    from connectors.diagnosis.endpoint import Endpoint, HostPort
    from connectors.diagnosis.latencies import Latencies
    from connectors.diagnosis.monitor import Monitor
    from connectors.diagnosis.order_feed import OrderFeeds
    from connectors.diagnosis.statuses import StrayCount

    def read_site(site: str, kafka: Connection, decided: Decided) -> Statuses:
        neighbours = sites.heard_at(site) if sites is not None else ()
        return read_with_ledger(
            *(kafka, site, data, served.groups),
            say=_say,
            raises=False,
            neighbours=neighbours,
            decided=decided,
        )

    def read(site: str, clocks: BrokerClocks, latencies: Latencies, status: Callable[[], Statuses]) -> Statuses:
        found = status()
        groups = [row.group for row in found.rows]
        return found._replace(clocks=clocks.compare(groups, site), latencies=latencies.of(groups, site))

    here = next(iter(kafkas))
    statuses: dict[str, Callable[[], Statuses]] = {
        site: StrayCount(partial(read_site, site, each), troubles.decided)
        if site == here
        else partial(read_site, site, each, lambda _: None)
        for site, each in kafkas.items()
    }
    readings = {
        site: partial(read, site, BrokerClocks(each), Latencies(each), statuses[site]) for site, each in kafkas.items()
    }
    feeds = OrderFeeds(kafkas, served.groups.has, payloads=payloads)
    monitor = Monitor(here, readings, running_jobs, troubles, feeds)
    with Endpoint(HostPort.parse(place), monitor.answers()) as endpoint:
        say(f"listening at http://{endpoint.place}")
        try:
            yield troubles
        finally:
            monitor.close(_ENDS_WITHIN_S)


def _say(sentence: str) -> None:
    warn_seldom(_logger, "status: %s", sentence)
