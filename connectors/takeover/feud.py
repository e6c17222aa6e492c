"""Feuds: two hosts whose sequencers fence each other again and again. A sequencer that starts gives the rival time."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable

from connectors.kafka.codec.epochs import Claim, seconds_to_yield, this_host
from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.group_choice import ALL_GROUPS, GroupChoice
from connectors.kafka.groups.side_by_side import SideBySide
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.topics.topics import find_groups
from connectors.kafka.transport import Consumer
from ordering.base.errors import AbcastError

_ANSWER_S = 0.5
"""The time without any answer after which the remaining groups are skipped."""

_logger = logging.getLogger(__name__)


def yield_to_rival(
    connection: Connection, site: str, wait: Callable[[float], object], groups: GroupChoice = ALL_GROUPS
) -> bool:
    """Wait before the first takeover of a process if a sequencer on another host is in a feud with this one.

    A feud over fewer than half of the groups holds up no start, as it ends no process that serves others.

    `wait` waits for that many seconds; its result is true if the process is to stop. Returns whether it is to stop.
    """
    try:
        claims = _claims_of_groups(connection, site, groups)
    except AbcastError:
        return False  # the takeover meets the same error, and reports it
    now_ms = time.time_ns() // 1_000_000
    asked = ((group, seconds_to_yield(of_group, this_host(), now_ms)) for group, of_group in claims.items())
    feuds = {group: found for group, found in asked if found is not None}
    if not feuds or 2 * len(feuds) < len(claims):
        return False
    group, (seconds, rival) = max(feuds.items(), key=lambda item: item[1][0])
    _logger.warning(
        "group %s: this sequencer and %s take the group over from each other again and again. Run one per site. This "
        "one waits for %.0f s.",
        group,
        rival.who,
        seconds,
    )
    return bool(wait(seconds))


def _claims_of_groups(connection: Connection, site: str, groups: GroupChoice) -> dict[str, list[Claim]]:
    """Return the claims of each group that answers at once."""

    def claims(group: str, consumer: Consumer) -> list[Claim]:
        return DataLog(connection, group, site, consumer).epochs.read().claims

    found: dict[str, list[Claim]] = {}
    asking = SideBySide[list[Claim]](connection)
    try:
        for group in filter(groups.has, find_groups(connection, site)):
            asking.ask(group, functools.partial(claims, group))
        while answers := asking.answers(_ANSWER_S):
            found |= {group: answer for group, answer in answers.items() if not isinstance(answer, AbcastError)}
    finally:  # closing would wait for questions that are still open
        threading.Thread(target=asking.close, name="abcast-closing", daemon=True).start()
    return found
