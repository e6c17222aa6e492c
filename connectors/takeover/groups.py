"""The groups of a site's sequencer, the topics that it reads, and the offsets where it begins."""

from __future__ import annotations

from collections.abc import Iterable

from kafka.structs import TopicPartition

from ordering.base.names import Topic
from ordering.sequencer.state import SequencerState


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
