"""The function of the stateful operator, on frames, without Spark: what it writes is what the core decides."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pandas as pd
import pytest

from connectors.kafka.codec import codec
from connectors.kafka.codec.dead_letter_codec import DEAD_LETTER_HEADER
from connectors.sequencer import blocks
from connectors.sequencer.query import decider
from connectors.sequencer.stored_state import StoredState, load
from ordering.base.kinds import FORWARD_KINDS
from ordering.base.names import Topic
from ordering.base.packs import rest_of
from ordering.base.records import (
    HEARTBEAT,
    MESSAGE,
    MESSAGES,
    SKIP,
    Data,
    DeadLetter,
    Forward,
    Malformed,
    Partition,
    Source,
)
from ordering.sequencer.sequencer import begin_batch, data_of, end_batch, step
from ordering.sequencer.state import SequencerState
from tests.ordering.forwards import forward, opened
from tests.ordering.linked import LinkedLog
from tests.spark.packing import packed
from tests.world import membership

OWN = Topic("g", "forward", "s")
LINK_COLUMNS = ("link_session", "link_epoch", "link_seqno", "link_origin_seqno")
PLAIN = (MESSAGE, MESSAGES, SKIP, HEARTBEAT)
"""A copy of the kinds in `connectors.spark.forward_rows`."""


class SparkState:
    """A double of Spark's GroupState."""

    def __init__(self) -> None:
        self.exists = False
        self.get = (b"", b"")

    def update(self, value: tuple[bytes, bytes]) -> None:
        self.exists, self.get = True, value


def frame(records: list[Forward | Malformed]) -> pd.DataFrame:
    """FORWARD rows as the JVM hands them over, most plain ones aside; each seventh as if it were not plain."""
    rows = []
    for record in records:
        is_plain = isinstance(record, Forward) and record.kind in PLAIN and bool(record.source.offset % 7)
        good = record if isinstance(record, Forward) and is_plain else None
        is_aside = good is not None and good.kind != HEARTBEAT
        odd: list[tuple[str, bytes]] = []
        link: tuple[int, ...] = (-1, 0, 0, 0)
        if isinstance(record, Forward):
            numbers = record.incarnation, record.local_seqno
            odd = codec.forward_headers(*numbers, record.headers, record.kind, record.link)
            if record.kind == MESSAGES:
                odd = codec.pack_headers(*numbers, record.count, record.headers)
            link = record.link if good and record.link else link
        rows.append(
            {
                "topic": None if record.source.topic == str(OWN) else record.source.topic,
                "partition": record.source.partition,
                "offset": record.source.offset,
                "sender": good.sender if good else "",
                "incarnation": good.incarnation if good else 0,
                "local_seqno": good.local_seqno if good else 0,
                "kind": FORWARD_KINDS.index(good.kind) if good else 0,
                "count": good.count if good else 1,
                "forwarded_at_ms": getattr(record, "timestamp_ms", 0),
                "block": None,
                "plain": good is not None,
                "key": None if is_aside else getattr(record, "sender", "").encode(),
                "value": None if is_aside else getattr(record, "payload", b""),
                "packed_headers": None if is_aside else packed(odd),
                **dict(zip(LINK_COLUMNS, link, strict=True)),
            }
        )
    return pd.DataFrame(rows).astype(
        {"topic": object, "block": object, "key": object, "value": object, "packed_headers": object, "kind": np.int32}
    )


def in_blocks(rng: random.Random, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with many neighbours in one, as `connectors.spark.own_columns` has it."""
    neighbours: list[list[dict[Any, Any]]] = []
    for row in rows.to_dict("records"):
        row["goes"] = row["plain"] and row["value"] is None and row["link_session"] < 0 and row["count"] == 1
        last = neighbours[-1][-1] if neighbours else {"goes": False}
        is_next = last["goes"] and all(row[name] == last[name] for name in ("topic", "partition", "goes"))
        if is_next and row["offset"] == last["offset"] + 1 and rng.random() < 0.9:
            neighbours[-1].append(row)
        else:
            neighbours.append([row])
    joined = []
    for block in neighbours:
        first = {name: cell for name, cell in block[0].items() if name != "goes"}
        if block[0]["goes"] and (len(block) > 1 or rng.random() < 0.5):
            senders = list(dict.fromkeys(row["sender"] for row in block))
            numbers = [
                (senders.index(row["sender"]), row["incarnation"], row["local_seqno"], row["forwarded_at_ms"])
                for row in block
            ]
            first |= {"sender": "\x80".join(senders), "block": np.array(numbers, "<i8").tobytes()}
        joined.append(first)
    return pd.DataFrame(joined, dtype=object).astype(rows.dtypes)


def written(runs: list[pd.DataFrame], records: list[Forward | Malformed]) -> list[tuple[Any, ...]]:
    """Return the runs record by record, as `expected` has them. `records` includes the ones set aside."""
    told: list[tuple[Any, ...]] = []
    aside = {record.source: record for record in records if isinstance(record, Forward)}
    for run in (row for runs_frame in runs for row in runs_frame.to_dict("records")):
        seqno = run["first_seqno"]
        for index in range(run["size"]):
            if run["aside"]:
                record = aside.pop(Source(run["topic"], run["partition"], run["first_offset"] + index))
                if run["role"] == "dead-letter":
                    told.append(_told_of_dead(_zipped(run, index)))
                else:
                    record = rest_of(record, run["seqnos"] if run["size"] == 1 else record.count)
                    data = data_of(SequencerState("g", view=run["view"]), seqno, record, run["kind"], record.payload)
                    told += expected([data])
                    seqno += record.count
                continue
            value = run["value"][index]
            headers = _zipped(run, index)
            if run["role"] == "dead-letter":
                told.append(_told_of_dead(headers))
            else:
                own = codec.decode_data(run["key"][index], value, headers)
                told += expected([own])
    return told


def _told_of_dead(headers: list[tuple[str, bytes]]) -> tuple[Any, ...]:
    (name, told_of) = headers[-1]
    version, came_from, reason = told_of.decode().split(" ", 2)
    assert (name, version) == (DEAD_LETTER_HEADER, "2")
    return ("dead", reason, tuple(Source.parse(came_from)))


def _zipped(run: dict[Any, Any], index: int) -> list[tuple[str, bytes]]:
    return list(zip(run["names"][index], run["values"][index], strict=True))


def expected(outputs: list[Data | DeadLetter]) -> list[tuple[Any, ...]]:
    told: list[tuple[Any, ...]] = []
    for output in outputs:
        if isinstance(output, DeadLetter):
            told.append(("dead", output.reason, tuple(output.source)))
        elif output.source is None:
            told.append((output.kind, output.seqno, output.view, "", output.payload))
        else:
            source = tuple(output.source)
            behind = (output.link, list(output.headers), output.forwarded_at_ms)
            if output.kind == MESSAGES:
                behind = (*behind, output.count)  # type: ignore[assignment]  # one more
            told.append((output.kind, output.seqno, output.view, *output.id, output.payload, source, *behind))
    return told


def compare(rng: random.Random, logs: dict[Partition, list[Forward]], of_format: int = 1) -> SequencerState:
    """Both forms on this FORWARD, by partition, in batches and chunks of any size; return the state after it."""
    state, stored = opened(of_format=of_format), SparkState()
    decide = decider({"g": state.to_bytes()}, OWN.site)
    while True:
        rows: list[Forward | Malformed] = []
        for partition, log in logs.items():
            start = state.positions.get(partition, 0)
            for record in log[start : start + rng.randint(1, 80)]:
                rows.append(Malformed(record.source, codec.WRONG_VERSION) if rng.random() < 0.03 else record)
        if not rows:
            return state
        state, opening = begin_batch(state)
        state, outputs = step(state, rows)
        state, closing = end_batch(state)
        size = rng.choice((1, 7, 200))
        chunks = [in_blocks(rng, frame(rows[first : first + size])) for first in range(0, len(rows), size)]
        runs = list(decide(("g",), iter(chunks), stored))  # type: ignore[arg-type]
        assert written(runs, rows) == expected([*opening, *outputs, *closing])
        assert load("g", StoredState(*stored.get)) == state


@pytest.mark.slow
@pytest.mark.parametrize("of_format", [2, 3])
def test_packs(of_format: int) -> None:
    """Packs among single messages, repeated and cut in other ways."""
    rng, log, sent = random.Random(of_format), list[Forward](), [0, 0]
    for offset in range(400):
        sender, count = rng.randrange(2), rng.choice((1, 1, 2, 5))
        if offset % 50 == 0:
            sent = [0, 0]
        local = max(1, sent[sender] + 1 - rng.choice((0, 0, 0, 1, 3)))
        sent[sender] = max(sent[sender], local + count - 1)
        log.append(forward(f"s/{sender}", 1 + offset // 50, local, Source(str(OWN), 0, offset), count))
    state = compare(rng, {Partition(str(OWN), 0): log}, of_format)
    assert state.counted == (of_format == 3)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (0, 1, 3, 4))])
def test_memberships(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The FORWARD log of a random history of joins, leaves and flushes."""
    monkeypatch.setattr(blocks, "ROWS_AT_ONCE", 20)
    with membership.playing(seed) as world:
        world.run()
        compare(random.Random(seed), world.forward())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_links(seed: int) -> None:
    """Records of links, between them application headers and relays' own records."""
    logs: dict[Partition, list[Forward]] = {}
    for record in LinkedLog(seed, malformed=0).records:
        assert isinstance(record, Forward)
        logs.setdefault(record.source.topic_partition, []).append(record)
    state = compare(random.Random(seed), dict(sorted(logs.items())))
    assert state.origins
