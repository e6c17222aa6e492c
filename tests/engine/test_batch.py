"""A batch by columns gives the same as row by row, down to the bytes on Kafka."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from connectors.engine.batch import by_columns
from connectors.kafka.codec.codec import decode_data, forward_headers, pack_headers
from connectors.takeover.rows import OutputTopics, Rows, by_rows
from ordering.base.packs import MAX_PACK_HEADERS_BYTES, encode_pack, unpacked
from ordering.base.records import HEARTBEAT, JOIN, MESSAGE, Data, Source
from ordering.membership.membership import MemberIncarnation, Membership
from ordering.sequencer.state import SequencerState
from tests import forward_corpus as corpus

TOPICS = OutputTopics.of("orders", "nyc")
OPENED = SequencerState("orders", epoch=3, view=2)


class Raw(NamedTuple):
    """A record as a consumer returns it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    timestamp: int = corpus.TIMESTAMP_MS
    topic: str = corpus.TOPIC
    partition: int = 0


def in_log(raws: list[Raw]) -> Rows:
    places = sorted({TopicPartition(raw.topic, raw.partition) for raw in raws})
    return [(place, [raw for raw in raws if (raw.topic, raw.partition) == place]) for place in places]


def both(state: SequencerState, rows: Rows) -> SequencerState:
    """Decide in both ways; return the state after it."""
    for packs in (True, False):
        expected, found = (way(state, rows, TOPICS, packs=packs) for way in (by_rows, by_columns))
        assert found == expected
    return expected[0]


@pytest.mark.slow
def test_the_corpus() -> None:
    """Good and bad records of every sort, in the site's own topic and in a relay's."""
    raws = [
        Raw(number, case.key, case.value, list(case.headers), case.timestamp_ms, case.topic)
        for number, case in enumerate(corpus.CORPUS)
    ]
    both(OPENED, in_log(raws))
    both(OPENED, in_log(raws[len(raws) // 2 :]))


def random_record(rng: random.Random, offset: int, next_local: dict[tuple[bytes, int], int]) -> Raw:
    key = b"nyc/%d" % rng.randrange(5)
    incarnation = rng.choice((1, 1, 1, 2))
    local = next_local[key, incarnation] = next_local.get((key, incarnation), 0) + 1
    if rng.random() < 0.05:
        local += rng.randint(-2, 2)
    kind = rng.choices((MESSAGE, HEARTBEAT, JOIN, "rubbish"), (90, 5, 2, 1))[0]
    application = (("trace", b"7"),) if rng.random() < 0.05 else ()
    headers = forward_headers(incarnation, max(local, 0), application, kind)
    if rng.random() < 0.02:
        headers[0] = (headers[0][0], headers[0][1] + b" more 5")
    if rng.random() < 0.02:
        headers[0] = ("abcast-other", headers[0][1])
    value = None if rng.random() < 0.002 else b"%d" % offset
    if kind == MESSAGE and local > 0 and rng.random() < 0.2:
        count = rng.randint(2, 5)
        headers = pack_headers(incarnation, local, count, application)
        next_local[key, incarnation] = max(next_local[key, incarnation], local + count - 1)
        value = encode_pack([b"%d.%d" % (offset, n) for n in range(count)])
        if rng.random() < 0.3:
            bad = rng.choice((b"%d", b"0%d", b"%d-", b"%d-1", b"%d-x", b"%d-999999", b"-%d", b"x%d"))
            headers[0] = ("abcast", b"2 messages %d " % incarnation + bad % local)
    timestamp = 1 if rng.random() < 0.002 else corpus.TIMESTAMP_MS + offset
    return Raw(offset, key, value, headers, timestamp, partition=offset % 2)


@pytest.mark.slow
@given(st.integers(0, 2**32))
def test_random_batches(seed: int) -> None:
    """With members (so that time matters) and without, batch after batch."""
    rng = random.Random(seed)
    members = (MemberIncarnation("nyc/0", 1),) if rng.random() < 0.5 else ()
    of_format = rng.choice((1, 2, 3, 3))
    state = SequencerState("orders", epoch=3, view=2, membership=Membership(members=members), format=of_format)
    next_local: dict[tuple[bytes, int], int] = {}
    offset = 0
    for _ in range(3):
        count = rng.randrange(1, 80)
        state = both(state, in_log([random_record(rng, offset + n, next_local) for n in range(count)]))
        offset += count


@given(
    st.lists(
        st.tuples(st.sampled_from((0, 0, 0, 1)), st.sampled_from((0, 0, 0, 1, 2, 3)), st.booleans()),
        min_size=1,
        max_size=60,
    )
)
def test_packs(sent: list[tuple[int, int, bool]]) -> None:
    """Runs of two senders and of few headers, with repeats among them: both ways make the same packs.

    The packs have the messages of the single records.
    """
    headers = (), (("trace", b"7"),), (("trace", b"7"), ("more", b"")), (("null", None),)
    next_local = [1, 1]
    raws = []
    for offset, (sender, which, repeats) in enumerate(sent):
        local = next_local[sender] - (repeats and offset % 7 == 0)
        next_local[sender] = max(local, 0) + 1
        header = forward_headers(1, max(local, 1))
        raws.append(Raw(offset, b"nyc/%d" % sender, b"%d" % offset, [*header, *headers[which]]))
    rows = in_log(raws)
    both(OPENED, rows)
    single, several = (
        [decode_data(*record) for _, record in by_columns(OPENED, rows, TOPICS, packs=packs)[1]]
        for packs in (False, True)
    )
    found = [each for record in several for each in unpacked(record)]
    assert [without_place(each) for each in found] == [without_place(each) for each in single]
    for before, after in itertools.pairwise(several):
        assert not _belong(before, after)


@pytest.mark.parametrize("way", [by_rows, by_columns])
def test_large_headers_make_small_packs(way: object) -> None:
    """Each message of a pack has them, so they count once for each."""
    size = MAX_PACK_HEADERS_BYTES // 16
    for headers, counts in ((("k", bytes(size - 1)), [16, 16, 1]), (("k", bytes(size)), [15, 15, 3])):
        raws = [Raw(n, b"nyc/a", b"", forward_headers(1, n + 1, (headers,))) for n in range(33)]
        _, outputs = way(OPENED, in_log(raws), TOPICS, packs=True)  # type: ignore[operator]
        assert [decode_data(*record).count for _, record in outputs] == counts


def without_place(data: Data) -> Data:
    """Return the message without its place in FORWARD, which the messages of a pack share."""
    return replace(data, source=None, forwarded_at_ms=0)


def _belong(before: Data, after: Data) -> bool:
    """Whether both should have been one pack."""
    assert before.source is not None
    assert after.source is not None
    first = after.source.offset - after.count + 1
    same = (before.sender, before.headers) == (after.sender, after.headers)
    return same and before.source.offset + 1 == first and before.seqno + before.count == after.seqno


@pytest.mark.parametrize("way", [by_rows, by_columns])
def test_data_as_the_codec_reads_it(way: object) -> None:
    raw = Raw(7, b"nyc/alice", b"buy", forward_headers(5, 1))
    state, [(topic, (key, value, headers))] = way(OPENED, in_log([raw]), TOPICS)  # type: ignore[operator]
    assert topic == "abcast.orders.data.nyc"
    assert decode_data(key, value, headers) == Data(
        kind=MESSAGE,
        epoch=3,
        seqno=1,
        view=2,
        sender="nyc/alice",
        incarnation=5,
        local_seqno=1,
        payload=b"buy",
        source=Source(corpus.TOPIC, 0, 7),
        forwarded_at_ms=corpus.TIMESTAMP_MS,
    )
    assert state.seqno == 1
