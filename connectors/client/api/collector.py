"""A collector of members' figures for the application's own Prometheus registry. It needs prometheus-client."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from connectors.client.api.async_member import AsyncMember
from connectors.client.api.member import Member
from connectors.client.values.member_metrics import BOUNDS_S, MemberMetrics

_LABELS = ("group", "site")


class MemberCollector(Collector):
    """The metrics of some members, asked for at each scrape.

        REGISTRY.register(MemberCollector(alice, bob))

    Members of one group and site are one time series: sums of their pending messages, resends and order seconds, and
    the place of the one that is furthest behind. No label is a member's name. One collector serves all members of a
    process; `members` may be changed.
    """

    def __init__(self, *members: Member | AsyncMember) -> None:
        self.members = list(members)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        found: dict[tuple[str, str], list[MemberMetrics]] = {}
        for each in self.members:
            member = each.member if isinstance(each, AsyncMember) else each
            found.setdefault((member.group, member.address.site), []).append(member.metrics())
        yield from _families(found)

    def describe(self) -> Iterator[Metric]:
        """Yield the names, so that a registry refuses a second collector."""
        return _families({})


def _families(found: dict[tuple[str, str], list[MemberMetrics]]) -> Iterator[Metric]:
    pending = GaugeMetricFamily("abcast_member_pending", "Messages that wait to be ordered.", labels=_LABELS)
    took = HistogramMetricFamily("abcast_member_order_seconds", "From broadcast to the seqno.", labels=_LABELS)
    resends = CounterMetricFamily("abcast_member_resends", "How often all pending were sent again.", labels=_LABELS)
    delivered = GaugeMetricFamily("abcast_member_delivered_seqno", "All up to it were taken.", labels=_LABELS)
    behind = GaugeMetricFamily("abcast_member_behind_records", "Seqnos that were not taken.", labels=_LABELS)
    for labels, each in found.items():
        pending.add_metric(labels, sum(one.pending for one in each))
        resends.add_metric(labels, sum(one.resends for one in each))
        counts = map(sum, zip(*(one.order_seconds.counts for one in each), strict=True))
        bounds = [*map(str, BOUNDS_S), "+Inf"]
        buckets = [(bound, float(count)) for bound, count in zip(bounds, itertools.accumulate(counts), strict=True)]
        took.add_metric(labels, buckets, sum(one.order_seconds.sum_s for one in each))
        _add(delivered, labels, min, [one.delivered_seqno for one in each])
        _add(behind, labels, max, [one.behind for one in each])
    return iter((pending, took, resends, delivered, behind))


def _add(
    family: GaugeMetricFamily,
    labels: Sequence[str],
    choose: Callable[[list[int]], int],
    values: Sequence[int | None],
) -> None:
    known = [value for value in values if value is not None]
    if known:
        family.add_metric(labels, choose(known))
