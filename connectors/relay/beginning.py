"""A check of a hub's home that begins a group: no other site may have an order of it already."""

from __future__ import annotations

import logging
from collections.abc import Callable

from connectors.kafka.connection.sites import Sites
from connectors.kafka.log.data_log import DataLog
from ordering.base.errors import BrokerUnreachable, KafkaRefused, TopicMissing, UsageError
from ordering.sequencer.state import SequencerState

_logger = logging.getLogger(__name__)


def beginning_of(sites: Sites | None, site: str) -> Callable[[SequencerState], None] | None:
    """Return a check that raises UsageError if a group would begin at `site`, not go on; None if that is no hub's home.

    A new home without a history, started before it was promoted, would give the first numbers again. A promoted one
    begins if no earlier home has ordered anything. A site that does not answer, or refuses, holds up nothing.
    """
    if sites is None or sites.home != site:
        return None

    def check(state: SequencerState) -> None:
        if state.epoch:
            return
        with DataLog(sites.connection(site), state.group, site) as data:
            epochs = data.epochs.read()
        if epochs.is_promoted():
            return
        orders = {other: _order_at(sites, state.group, other) for other in sites.connections if other != site}
        other = max(orders, key=orders.__getitem__, default="")
        if orders.get(other):
            # A site with claims of its own was the home, and has lost DATA: it can't be promoted.
            home, lacks = (other, "has lost all of it") if epochs.has_decided() else (site, "has nothing of it")
            raise UsageError(
                f"{other} has an order of group {state.group} already, and {site} {lacks}. Promote {home} first: "
                f"`abcast site promote {home} --group {state.group}`."
            )

    return check


def _order_at(sites: Sites, group: str, other: str) -> int:
    """Return 2 if a sequencer of the site has claimed the group, 1 if the site has a copy of its order, 0 otherwise."""
    try:
        with DataLog(sites.connection(other), group, other) as data:
            return 2 if data.epochs.read().claims else int(data.is_copy())
    except TopicMissing:
        return 0
    except KafkaRefused:
        _logger.info("group %s begins here. This job has no right to see whether %s has an order of it", group, other)
    except BrokerUnreachable as error:
        _logger.warning("group %s begins here. It is not known whether %s has an order of it (%s)", group, other, error)
    return 0
