"""Growth of the sequencer's cost with the payload, the senders, the partitions of FORWARD, and the groups."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from connectors.kafka.topics.topics import create_topics
from connectors.sequencer.query import encode_decided, sequence
from connectors.takeover.takeover import take_over
from tests.bench.backlog import fill
from tests.bench.drain import Drained, copy_of, drain_copy, drain_sequencer, measure_drain, read_all, to_kafka
from tests.bench.lab import Lab, Place
from tests.bench.plan import Case

_USUAL = Case(100, 4, 1)
_MAX_BYTES = 200_000_000
"""Most bytes of payloads in one backlog."""


def measure(lab: Lab) -> dict[str, list[dict[str, Any]]]:
    """Return, for each growing part, the size, the copy's and the sequencer's rate, and the sequencer's CPU a
    record.
    """
    plan = lab.plan
    return {
        "payload, bytes": [_row(lab, size, replace(_USUAL, payload_bytes=size)) for size in plan.growing_payloads],
        "senders": [_row(lab, size, replace(_USUAL, senders=size)) for size in plan.growing_senders],
        "partitions": [_row(lab, size, replace(_USUAL, partitions=size)) for size in plan.growing_partitions],
        # The first batches with so many groups are slow: they are many plans, and all are cold.
        "groups": [[_groups(lab, size) for _ in range(2)][-1] for size in plan.growing_groups],
    }


def _row(lab: Lab, size: int, case: Case) -> dict[str, Any]:
    records = min(max(lab.plan.records // 2, case.senders), _MAX_BYTES // case.payload_bytes)
    lab.say(f"growth: {records:,} records ({case})")
    with lab.place("growth", case.partitions) as place:
        fill(lab, place, records, case)
        with lab.output(place) as output:
            copied = drain_copy(lab, place, output)
        with lab.output(place) as output:
            sequenced = drain_sequencer(lab, place, output)
    return _figures(size, copied, sequenced)


def _groups(lab: Lab, size: int) -> dict[str, Any]:
    records = max(lab.plan.records // 2, size)
    lab.say(f"growth: {records:,} records in {size:,} groups")
    with _places(lab, size) as places:
        for place in places:
            fill(lab, place, records // size, _USUAL)
        forward = read_all(lab, [place.forward for place in places])
        with lab.output(places[0]) as output:
            copied = measure_drain(lab, to_kafka(lab, copy_of(forward, output.data)))
        states = {place.group: take_over(lab.connection, place.group, place.site) for place in places}
        decided = sequence(forward, places[0].site, states)
        sequenced = measure_drain(lab, to_kafka(lab, encode_decided(decided, places[0].site)))
    return _figures(size, copied, sequenced)


@contextlib.contextmanager
def _places(lab: Lab, size: int) -> Iterator[list[Place]]:
    """Create so many groups at one site."""
    with lab.place("growth") as first:
        places = [first, *(Place(f"{first.group}-{number}", first.site) for number in range(1, size))]
        try:
            for place in places[1:]:
                create_topics(lab.connection, place.group, [place.site])
            yield places
        finally:
            lab.delete(*(place.group for place in places[1:]))


def _figures(size: int, copied: Drained, sequenced: Drained) -> dict[str, Any]:
    return {
        "size": size,
        "copy": copied.rate,
        "sequencer": sequenced.rate,
        "ratio": sequenced.rate / copied.rate,
        "cpu_us_per_record": sequenced.own_cpu_us,
    }
