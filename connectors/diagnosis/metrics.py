"""The metrics of a job's process, in Prometheus' text format.

Nothing is counted for them. A scrape reads the figures of `abcast status`, and the jobs' own memory.

Names and labels are promised: `FIGURES` and `OF_PROCESS` are the list, and CHANGELOG.md tells each that goes. No label
is a sender: there may be any number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from connectors.diagnosis.status import GroupStatus
from connectors.diagnosis.statuses import Statuses
from connectors.kafka.log.liveness import ALIVE

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
GROUP_LABELS = ("group", "site")

Samples = Iterable[tuple[Sequence[str], float | None]]
"""The values of the further labels, and the value; None is left out."""


class Figure(NamedTuple):
    """A metric of each group. `labels`: besides GROUP_LABELS. A field of `abcast status --json` has the same value."""

    name: str
    help: str
    of: Callable[[GroupStatus], Samples]
    labels: tuple[str, ...] = ()


def _one(of: Callable[[GroupStatus], float | None]) -> Callable[[GroupStatus], Samples]:
    return lambda row: [((), of(row))]


FIGURES = (
    Figure("abcast_sequencer_alive", "1 if the sequencer is alive.", _one(lambda row: row.sequencer.state == ALIVE)),
    Figure("abcast_sequencer_silent_seconds", "Its silence; 0 if alive.", _one(lambda row: row.sequencer.silent_s)),
    Figure("abcast_stuck", "1 if messages wait and are not ordered.", _one(lambda row: row.is_stuck)),
    Figure("abcast_left_out", "1 if the job goes on without the group.", _one(lambda row: row.is_left_out)),
    Figure("abcast_seqno", "The last seqno in DATA.", _one(lambda row: row.last_seqno)),
    Figure("abcast_epoch", "The epoch: each takeover raises it.", _one(lambda row: row.epoch)),
    Figure("abcast_handovers", "Takeovers that an operator asked for.", _one(lambda row: row.handovers)),
    Figure("abcast_view", "The id of the view.", _one(lambda row: row.view)),
    Figure("abcast_view_members", "Members in the view.", _one(lambda row: row.members)),
    Figure("abcast_senders", "Senders that the sequencer remembers.", _one(lambda row: row.senders)),
    Figure("abcast_forward_lag_records", "FORWARD records that wait.", _one(lambda row: row.lag)),
    Figure("abcast_duplicates", "Dropped repeats, as of the newest snapshot.", _one(lambda row: row.duplicates)),
    Figure("abcast_dead_letters", "Dead letters in the topic.", _one(lambda row: row.dead_letters)),
    Figure("abcast_gaps", "Senders with a gap.", _one(lambda row: len(row.gaps))),
    Figure("abcast_strays", "Records in DATA that are not from abcast.", _one(lambda row: row.strays)),
    Figure("abcast_ledger_lag_records", "Seqnos that the ledger lacks.", _one(lambda row: row.ledger_lag)),
    Figure(
        "abcast_open_transaction_seconds",
        "The age of the oldest open transaction in FORWARD, from 10 s on; else 0.",
        _one(lambda row: max((each.open_s for each in row.open_transactions), default=0.0)),
    ),
    Figure(
        "abcast_under_replicated_partitions",
        "Partitions with replicas that are not in sync.",
        _one(lambda row: len(row.under_replicated)),
    ),
    Figure(
        "abcast_under_min_isr_partitions",
        "Partitions in which Kafka refuses writes: too few replicas are in sync.",
        _one(lambda row: sum(each.is_refused for each in row.under_replicated)),
    ),
    Figure(
        "abcast_agreement_waits",
        "1 if this site waits for others, where sites agree.",
        _one(lambda row: None if row.agreement is None else row.agreement.waits),
    ),
    Figure(
        "abcast_relay_silent_seconds",
        "Since the last record of a relay that gives heartbeats here, or since the takeover if there is none.",
        lambda row: [
            ((neighbour,), time.time() - row.sequencer.since_ms / 1000 if silent_s is None else silent_s)
            for neighbour, silent_s in row.relays.items()
        ],
        ("from",),
    ),
)

CLOCK_DIFFERENCE, GROUP_READABLE, JOB_READY, SIGN_AGE, STATUS_AGE, STATUS_OK = OF_PROCESS = (
    "abcast_clock_difference_seconds",
    "abcast_group_readable",
    "abcast_job_ready",
    "abcast_sign_age_seconds",
    "abcast_status_age_seconds",
    "abcast_status_ok",
)


class Observed(NamedTuple):
    """The facts of a scrape. `statuses`: by site. `age_s`: theirs. `ready`: by job. `signs_s`: by group, at `site`."""

    statuses: Mapping[str, Statuses]
    age_s: float | None
    ready: Mapping[str, bool]
    signs_s: Mapping[str, float]
    site: str


class JobMetrics(Collector):
    """The collector of a process: asks for the facts at each scrape."""

    def __init__(self, observe: Callable[[], Observed]) -> None:
        self._observe = observe

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        seen = self._observe()
        yield _family(JOB_READY, "1 if the job works.", ("part",), (((job,), ok) for job, ok in seen.ready.items()))
        signs = (((group, seen.site), age_s) for group, age_s in seen.signs_s.items())
        yield _family(SIGN_AGE, "Since this process's sign of life for the group.", GROUP_LABELS, signs)
        yield _family(STATUS_OK, "1 if the status could be read.", (), [((), bool(seen.statuses))])
        yield _family(STATUS_AGE, "The age of the groups' figures.", (), [((), seen.age_s)])
        readable = [
            *(((row.group, site), 1) for site, found in seen.statuses.items() for row in found.rows),
            *(((group, site), 0) for site, found in seen.statuses.items() for group in found.errors),
        ]
        yield _family(GROUP_READABLE, "1 if the group's status could be read.", GROUP_LABELS, readable)
        clocks = (((site,), each.clocks.at_least_s) for site, each in seen.statuses.items() if each.clocks is not None)
        yield _family(CLOCK_DIFFERENCE, "The certain difference of the clocks that differ most.", ("site",), clocks)
        rows = [(site, row) for site, found in seen.statuses.items() for row in found.rows]
        for figure in FIGURES:
            samples = (((row.group, site, *labels), value) for site, row in rows for labels, value in figure.of(row))
            yield _family(figure.name, figure.help, (*GROUP_LABELS, *figure.labels), samples)

    def describe(self) -> Sequence[Metric]:
        """Return nothing: to register is not to ask."""
        return ()


def _family(name: str, explanation: str, labels: Sequence[str], samples: Samples) -> Metric:
    family = GaugeMetricFamily(name, explanation, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(list(values), float(value))
    return family


def registry_of(observe: Callable[[], Observed]) -> CollectorRegistry:
    """Return a registry with these metrics, and the usual ones of a process."""
    registry = CollectorRegistry()
    registry.register(JobMetrics(observe))
    ProcessCollector(registry=registry)
    return registry


def exposed(registry: CollectorRegistry) -> str:
    """Return a scrape, in the format of CONTENT_TYPE."""
    return generate_latest(registry).decode()
