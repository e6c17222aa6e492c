"""The groups of a site's sequencer, their EPOCH, the topics that it reads, and the offsets where it begins."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable

from kafka.structs import TopicPartition

from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.side_by_side import SideBySide
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.epoch_log import Epochs
from connectors.kafka.transport import Consumer
from ordering.base.errors import AbcastError
from ordering.base.names import Topic
from ordering.sequencer.state import SequencerState

_FIRST_ANSWER_S = 5.0
"""The longest wait for the first answer. A busy machine takes seconds to open connections."""
_ANSWER_S = 0.5
"""The time without a further answer after which the remaining groups are skipped."""


def groups_at(topics: Iterable[Topic], site: str) -> list[str]:
    """Return the groups that have a DATA topic at the site, sorted."""
    return sorted(topic.group for topic in topics if topic.role == "data" and topic.site == site)


def forward_topics(topics: Iterable[Topic], site: str) -> dict[str, list[str]]:
    """Map each group with a DATA topic at the site to its forward topics: its own, and the ones that relays fill."""
    found = list(topics)
    forward: dict[str, list[str]] = {group: [] for group in groups_at(found, site)}
    for topic in found:
        if topic.site == site and topic.role in ("forward", "relayed") and topic.group in forward:
            forward[topic.group].append(str(topic))
    return forward


def needed_to_order(topic: Topic, site: str) -> bool:
    """Whether a sequencer of the site needs this topic to order the topic's group."""
    return topic.site == site and topic.role in ("data", "epoch", "forward", "dead-letter")


def positions_of(states: Iterable[SequencerState]) -> dict[TopicPartition, int]:
    """Return, for each forward partition, the first offset that is not yet considered."""
    return {TopicPartition(*partition): offset for state in states for partition, offset in state.positions.items()}


def epochs_of_groups(connection: Connection, groups: Iterable[str], site: str) -> dict[str, Epochs]:
    """Return the content of EPOCH of each group that answers about as soon as the others."""

    def read(group: str, consumer: Consumer) -> Epochs:
        return DataLog(connection, group, site, consumer).epochs.read()

    found: dict[str, Epochs] = {}
    asking = SideBySide[Epochs](connection)
    try:
        for group in groups:
            asking.ask(group, functools.partial(read, group))
        while answers := asking.answers(_ANSWER_S if found else _FIRST_ANSWER_S):
            found |= {group: answer for group, answer in answers.items() if not isinstance(answer, AbcastError)}
    finally:  # closing would wait for questions that are still open
        threading.Thread(target=asking.close, name="abcast-closing", daemon=True).start()
    return found
