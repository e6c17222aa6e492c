"""Ways in which a topic's log becomes another one, by the records that remain."""

from __future__ import annotations

from collections.abc import Callable

from kafka.structs import TopicPartition

from connectors.kafka.transport import PlainRecord
from connectors.testing.memory_kafka import MemoryConnection


def anew_and_empty(log: list[PlainRecord]) -> list[PlainRecord]:
    return []


def anew_and_longer(log: list[PlainRecord]) -> list[PlainRecord]:
    return [*log[1:], *log]


def copied_to_other_offsets(log: list[PlainRecord]) -> list[PlainRecord]:
    return [log[0], *log]


def cut(log: list[PlainRecord]) -> list[PlainRecord]:
    return log[:-2]


def cut_and_grown(log: list[PlainRecord]) -> list[PlainRecord]:
    return [*log[:-2], log[0], log[1]]


def cut_and_grown_beyond(log: list[PlainRecord]) -> list[PlainRecord]:
    return [*log[:-1], *log]


Change = Callable[[list[PlainRecord]], list[PlainRecord]]
CHANGES: tuple[Change, ...] = (
    anew_and_empty,
    anew_and_longer,
    copied_to_other_offsets,
    cut,
    cut_and_grown,
    cut_and_grown_beyond,
)


def change(kafka: MemoryConnection, topic: str, how: Change) -> None:
    """Replace the topic by another one, of like records, between two looks."""
    place = TopicPartition(topic, 0)
    with kafka.topics.changed:
        then, kafka.topics.ahead_ms = list(kafka.topics.partitions[place]), kafka.topics.ahead_ms + 5_000
        now = how(then)
        kept = next((at for at, (one, other) in enumerate(zip(then, now, strict=False)) if one is not other), len(now))
        kafka.topics.truncate(topic, min(kept, len(then)))
        for record in now[kept:]:
            kafka.topics.append(place, *record[-3:])
