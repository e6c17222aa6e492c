"""Feuds: two hosts whose sequencers fence each other again and again. A sequencer that starts gives the rival time."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from connectors.kafka.codec.epochs import seconds_to_yield, this_host
from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.group_choice import ALL_GROUPS, GroupChoice
from connectors.kafka.log.epoch_log import Epochs
from connectors.kafka.topics.topics import find_groups
from connectors.takeover.groups import epochs_of_groups
from ordering.base.errors import AbcastError

_logger = logging.getLogger(__name__)


def seconds_for_rival(
    connection: Connection,
    site: str,
    groups: GroupChoice = ALL_GROUPS,
    known: Mapping[str, Epochs] | None = None,
) -> float:
    """Return the seconds that a start waits for a rival, a sequencer on another host in a feud with this one.

    Logs them. Returns 0.0 without a feud. A feud over fewer than half of the groups holds up no start, as it ends no
    process that serves others. `known`: EPOCH of the groups, if it was read already.
    """
    if known is None:
        try:
            known = epochs_of_groups(connection, filter(groups.has, find_groups(connection, site)), site)
        except AbcastError:
            return 0.0  # the takeover meets the same error, and reports it
    now_ms = time.time_ns() // 1_000_000
    asked = ((group, seconds_to_yield(epochs.claims, this_host(), now_ms)) for group, epochs in known.items())
    feuds = {group: found for group, found in asked if found is not None}
    if not feuds or 2 * len(feuds) < len(known):
        return 0.0
    group, (seconds, rival) = max(feuds.items(), key=lambda item: item[1][0])
    _logger.warning(
        "group %s: this sequencer and %s take the group over from each other again and again. Run one per site. This "
        "one waits for %.0f s.",
        group,
        rival.who,
        seconds,
    )
    return seconds
