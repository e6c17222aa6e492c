"""A batch by columns gives the same as row by row, down to the bytes on Kafka."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from connectors.engine import batch
from connectors.engine.batch import by_columns
from connectors.kafka.codec.codec import decode_data, forward_headers, pack_headers
from connectors.kafka.transport import Record
from connectors.takeover.rows import OutputTopics, Rows, by_rows, decoded
from ordering.base.names import is_address
from ordering.base.packs import MAX_PACK_HEADERS_BYTES, encode_pack, unpacked
from ordering.base.records import (
    HEARTBEAT,
    JOIN,
    LINK_START,
    MAX_PAYLOAD_BYTES,
    MESSAGE,
    MESSAGES,
    REMOTE_VIEW,
    Data,
    Forward,
    Headers,
    Link,
    Malformed,
    Source,
)
from ordering.membership.membership import MemberIncarnation, Membership, ReceivedRow
from ordering.sequencer.links import LinkRow, LinkStart
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
    # A bad payload makes all records of its partition irregular.
    both(OPENED, in_log([raw for raw in raws if raw.value is not None and len(raw.value) <= MAX_PAYLOAD_BYTES]))


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


LINKED = replace(OPENED, links={"lax": LinkRow(0, 1, 0), "sfo": LinkRow(0, 1, 0)})
GOOD = b"%(head)b %(local)d - %(link)b"
WRONG = (
    b"%(head)b 0%(local)d - %(link)b",
    b"%(head)b +%(local)d - %(link)b",
    b"%(head)b %(local)d000000000000000000 - %(link)b",
    b"%(head)b 0 - %(link)b",
    b"%(head)b %(local)d-%(local)d9 - %(link)b",
    b"%(head)b %(local)d %(link)b",
    b"%(head)b %(local)d sfo/t-0:1 %(link)b",
    b"%(head)b  %(local)d - %(link)b",
    b"%(head)b %(local)d - 0%(link)b",
    b"%(head)b %(local)d - -%(link)b",
    b"%(head)b %(local)d - %(link)b.",
    b"%(head)b %(local)d - %(link)b.7",
    b"%(head)b %(local)d - %(link)b000000000000000000",
    b"%(head)b %(local)d - %(link)b\n",
    b"%(head)b %(local)d - %(link)b ",
    b"%(head)b %(local)d - %(link)b 1 more",
    b"%(head)b %(local)d - -",
    b"%(head)b %(local)d -",
    b"%(head)b %(local)d",
)
ABROAD = (
    *["lax/a", "sfo/a", "far/a", "far/b"] * 10,
    *["nyc/a", "sfo/a/b", "sfo/", "sfo", "", "lax/abcast.relay", "lax/abcast.tick"],
)
OF_APPLICATION: tuple[list[tuple[str, Any]], ...] = (
    *([],) * 80,
    [("trace", b"7")],
    [("trace", b"8"), ("trace", b"")],
    [("null", None)],
    [("abcast-depends", b"2 1")],
    [("\N{REPLACEMENT CHARACTER}", b"7")],
    [("abcast-other", b"7")],
    [("abcast", b"2 message 1 1")],
    [("large", bytes(70_000))],
)


class Relay:
    """The relay of a neighbour, and records that it may write next, some of them wrong: then a good one may follow."""

    def __init__(self, rng: random.Random, neighbour: str) -> None:
        self._rng, self._neighbour = rng, neighbour
        self._key, self._topic = f"{neighbour}/abcast.relay", f"abcast.orders.relayed-{neighbour}.nyc"
        self._offset, self._session, self._epoch, self._seqno = -1, 0, 1, 0

    def record(self, controls: float) -> Raw:
        rng = self._rng
        self._offset += rng.choice((1,) * 300 + (2,))
        if rng.random() < controls:
            return self._start() if rng.random() < 0.5 else self._view()
        epoch, seqno = self._epoch, self._seqno + 1
        if rng.random() < 0.03:
            epoch, seqno = epoch + 1, 0
        elif rng.random() < 0.05:
            seqno = max(1, seqno + rng.choice((-2, -1, 1)))
        if not seqno or rng.random() < 0.3:
            raw = self._linked(self._key, b"2 skip %d" % rng.choice((1, 1, 1, 7)), epoch, seqno, 0)
        else:
            kind = rng.choices((b"message", b"skip", b"messages", b"heartbeat", b"rubbish"), (100, 1, 1, 1, 1))[0]
            version, incarnation = rng.choice((2,) * 50 + (1,)), rng.choice((1,) * 40 + (2, 10**17, 10**18, 0))
            head, sender = b"%d %b %d" % (version, kind, incarnation), rng.choice(ABROAD)
            raw = self._linked(sender, head, epoch, seqno, max(0, seqno - rng.choice((0, 0, 0, 3))))
        read = decoded(Source(raw.topic, 0, raw.offset), raw)
        if isinstance(read, Forward) and is_address(read.sender) and seqno in (0, self._seqno + 1):
            self._epoch, self._seqno = epoch, seqno or self._seqno
        return raw

    def _linked(self, sender: str, head: bytes, epoch: int, seqno: int, origin_seqno: int) -> Raw:
        rng, local = self._rng, 1 + self._offset
        link = b"%d.%d.%d.%d" % (self._session, epoch, seqno, origin_seqno)
        text = GOOD if rng.random() < 0.9 else rng.choice(WRONG)
        headers: list[tuple[str, Any]] = [
            ("abcast", text % {b"head": head, b"local": local, b"link": link}),
            *rng.choice(OF_APPLICATION),
        ]
        if rng.random() < 0.01:
            headers = rng.choice((headers[:0], headers[::-1], [("abcast", None)], [("abcast-unread", b"")]))
        key = None if rng.random() < 0.01 else sender.encode()
        return self._raw(key, None if rng.random() < 0.002 else b"x%d" % local, headers)

    def _view(self) -> Raw:
        self._seqno += 1
        link = Link(self._session, self._epoch, self._seqno, 0)
        view = b'{"members":[["%b/a",1]]}' % self._neighbour.encode()
        return self._raw(self._key.encode(), view, forward_headers(1, self._seqno, (), REMOTE_VIEW, link))

    def _start(self) -> Raw:
        """Return the start of another session."""
        self._session, start = self._offset, LinkStart(self._epoch, self._seqno, {})
        return self._raw(self._key.encode(), start.to_json(), forward_headers(1, 1, (), LINK_START))

    def _raw(self, key: bytes | None, value: bytes | None, headers: list[Any]) -> Raw:
        timestamp = corpus.TIMESTAMP_MS + self._offset if self._rng.random() < 0.99 else 1
        return Raw(self._offset, key, value, headers, timestamp, self._topic)


@pytest.mark.slow
@given(st.integers(0, 2**32), st.sampled_from((0.0, 0.0, 0.05)))
def test_what_links_bring(seed: int, controls: float) -> None:
    """Good and bad records of two neighbours' relays among the site's own ones, batch after batch."""
    rng = random.Random(seed)
    members = (MemberIncarnation("nyc/0", 1),) if rng.random() < 0.5 else ()
    state = replace(LINKED, membership=Membership(members=members), format=3)
    relays, next_local, offset = [Relay(rng, site) for site in ("lax", "sfo")], dict[tuple[bytes, int], int](), 0
    for _ in range(3):
        count = rng.randrange(1, 20)
        own = [random_record(rng, at, next_local) for at in range(offset, offset + count)]
        brought = [rng.choice(relays).record(controls) for _ in range(rng.randrange(1, 80))]
        state = both(state, in_log([*own, *brought]))
        offset += count


def linked(text: bytes, local: int, seqno: int) -> Raw:
    """Return a message that lax numbered so, as its relay writes it, or another text in its place."""
    own = text % {b"head": b"2 message 5", b"local": local, b"link": b"0.1.%d.%d" % (seqno, seqno)}
    return Raw(seqno - 1, b"lax/a", b"x", [("abcast", own)], topic="abcast.orders.relayed-lax.nyc")


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_one_behind_a_good_one_of_a_link(wrong: bytes) -> None:
    """The next one is good, too. It is ordered only if the one before it was."""
    both(LINKED, in_log([linked(GOOD, 1, 1), linked(wrong, 2, 2), linked(GOOD, 3, 3)]))


def test_the_codec_decodes_one_record_of_a_sender_that_a_link_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def asks(source: Source, raw: Record) -> Forward | Malformed:
        asked.append(source.offset)
        return decoded(source, raw)

    monkeypatch.setattr(batch, "decoded", asks)
    _, outputs = by_columns(LINKED, in_log([linked(GOOD, n, n) for n in range(1, 21)]), TOPICS)
    assert asked == [0]
    assert [decode_data(*record).link for _, record in outputs] == [Link(0, 1, n, n) for n in range(1, 21)]


PACKED = replace(OPENED, format=3)
NUMBERS = (b"%d-%d",) * 8 + (
    b"0%d-%d",
    b"%d-0%d",
    b"-%d-%d",
    b"%d--%d",
    b"%d-%d-",
    b"+%d-%d",
    b"%d-%d ",
    b"%d %d",
    b"%d-1%d",
)
LARGE = ("k", bytes(MAX_PACK_HEADERS_BYTES // 16))  # of 15 messages at most


class Sent(NamedTuple):
    """A record of FORWARD with some messages, `back` from the sender's next one, and some way to break it."""

    sender: int
    messages: int
    back: int
    headers: tuple[tuple[str, bytes], ...]
    numbers: bytes
    value: int  # the value is cut there or, if negative, has more
    of_message: bool  # of the kind `message`, whatever it has


SENT = st.builds(
    Sent,
    st.integers(0, 1),
    st.sampled_from((1, 2, 2, 3, 3, 15, 16)),
    st.sampled_from((0, 0, 0, 0, 1, 2, 4, 20, -1)),
    st.sampled_from(((), (), (("trace", b"7"),), (LARGE,))),
    st.sampled_from(NUMBERS),
    st.sampled_from((0, 0, 0, 0, 0, 1, -1, -5)),
    st.sampled_from((False,) * 6 + (True,)),
)


def sent_records(sent: list[Sent]) -> list[Raw]:
    next_local, raws = [1, 1], []
    for offset, each in enumerate(sent):
        first = max(1, next_local[each.sender] - each.back)
        last = first + each.messages - 1
        payloads = [b"%d" % n * (n % 3) for n in range(first, last + 1)]
        value = encode_pack(payloads)
        value = value[each.value :] if each.value >= 0 else value + bytes(-each.value)
        numbers = each.numbers % (first, last) if each.messages > 1 else b"%d" % first
        kind = b"message" if each.messages == 1 or each.of_message else b"messages"
        own = "abcast", b"2 %b 5 %b" % (kind, numbers)
        raws.append(Raw(offset, b"nyc/%d" % each.sender, value, [own, *each.headers]))
        if each.numbers == NUMBERS[0] and not each.value:
            next_local[each.sender] = max(next_local[each.sender], last + 1)
    return raws


@given(st.lists(SENT, min_size=1, max_size=40), st.integers(0, 40), st.sampled_from((3, 3, 3, 2)))
def test_packs_in_forward(sent: list[Sent], at: int, of_format: int) -> None:
    """Packs as senders cut them, in two batches: repeats, packs to be cut, gaps, bad numbers, values and headers."""
    raws = sent_records(sent)
    state = replace(PACKED, format=of_format)
    for part in (raws[:at], raws[at:]):
        if part:
            state = both(state, in_log(part))


BEHIND = {
    "one number": ("messages", b"3", 2, ()),
    "three numbers": ("messages", b"3-4-5", 2, ()),
    "a zero in front": ("messages", b"03-4", 2, ()),
    "a zero in the last one": ("messages", b"3-04", 2, ()),
    "too many digits": ("messages", b"3-" + b"9" * 19, 2, ()),
    "backwards": ("messages", b"3-2", 2, ()),
    "one message": ("messages", b"3-3", 1, ()),
    "another count": ("messages", b"3-5", 2, ()),
    "too many for their headers": ("messages", b"3-18", 16, (LARGE,)),
    "a message": ("message", b"3-4", 2, ()),
}


@pytest.mark.parametrize(("kind", "numbers", "count", "headers"), BEHIND.values(), ids=BEHIND.keys())
def test_a_wrong_one_behind_a_good_one(kind: str, numbers: bytes, count: int, headers: Headers) -> None:
    """Its header begins as that of the good one, which is all that the codec has decoded."""
    good = pack_headers(5, 1, 2, headers) if kind == MESSAGES else forward_headers(5, 2, headers)
    wrong = [("abcast", b"2 %b 5 %b" % (kind.encode(), numbers)), *headers]
    values = encode_pack([b"x"] * 2), encode_pack([b"x"] * count)
    raws = [Raw(n, b"nyc/a", value, each) for n, (value, each) in enumerate(zip(values, (good, wrong), strict=True))]
    state = PACKED if kind == MESSAGES else replace(PACKED, received={"nyc/a": ReceivedRow(5, 1)})
    both(state, in_log(raws))
    _, outputs = by_columns(state, in_log(raws), TOPICS)
    assert [topic for topic, _ in outputs] == list(TOPICS)


def test_one_message_of_a_pack_takes_one_seqno() -> None:
    """The rest of a pack may be one message: then no record has taken several seqnos."""
    state = replace(PACKED, received={"nyc/a": ReceivedRow(5, 1)})
    rows = in_log([Raw(0, b"nyc/a", encode_pack([b"x"] * 2), pack_headers(5, 1, 2))])
    assert not both(state, rows).counted


@pytest.mark.parametrize("count", [2, 100])
def test_the_codec_decodes_one_pack_of_a_sender(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pack to be cut is decoded, too."""
    asked: list[int] = []

    def asks(source: Source, raw: Record) -> Forward | Malformed:
        asked.append(source.offset)
        return decoded(source, raw)

    monkeypatch.setattr(batch, "decoded", asks)
    firsts = [1 + n * count for n in range(20)]
    firsts.insert(10, firsts[10] - 1)
    value = encode_pack([b"x"] * count)
    rows = in_log([Raw(n, b"nyc/a", value, pack_headers(5, first, count)) for n, first in enumerate(firsts)])
    _, outputs = by_columns(PACKED, rows, TOPICS)
    assert asked == [0, 10, 11]
    assert [decode_data(*record).count for _, record in outputs] == [*[count] * 10, count - 1, 1, *[count] * 9]


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
