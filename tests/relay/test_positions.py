"""A relay of FORWARD, letters or casts goes on behind dropped records, and in a source that was made anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from connectors.kafka.codec.cast_codec import cast_headers
from connectors.kafka.codec.codec import encode_data, forward_headers
from connectors.kafka.codec.entry_codec import write_entry
from connectors.kafka.codec.letter_codec import letter_headers
from connectors.kafka.connection.sites import Direction, Mode, Sites
from connectors.relay.agreed import Agreed
from connectors.relay.casts import Casts
from connectors.relay.hub import SiteForward
from connectors.relay.letters import Letters
from connectors.relay.relay import Relay
from connectors.testing.memory_kafka import MemoryConnection
from ordering.agreement.log import contents_of
from ordering.agreement.site import Site, begin
from ordering.agreement.site_state import Arrived, first_state
from ordering.base.errors import HistoryUnavailable
from ordering.base.names import Topic
from ordering.casts.casts import FIFO, NO_VIEW, Cast
from tests.relay.carrying import Carrier, relays_in_memory

GROUP = "g"


@pytest.fixture(autouse=True, scope="module")
def in_memory() -> Iterator[None]:
    with relays_in_memory():
        yield


class Way:
    """A relay from sfo to nyc, the home of a hub."""

    def __init__(self, kind: type[Relay], mode: Mode = "hub") -> None:
        self.kind = kind
        self.at = {name: MemoryConnection(f"{name}:1") for name in ("nyc", "sfo")}
        for name, kafka in self.at.items():
            kafka.create(GROUP, name)
        links = frozenset([frozenset(self.at)])
        self.sites = Sites(mode, "nyc" if mode == "hub" else None, "micro-batch", dict(self.at), links)
        names: dict[type[Relay], tuple[str, str]] = {
            SiteForward: ("forward.sfo", "relayed-sfo.nyc"),
            Agreed: ("forward.sfo", "relayed-sfo.nyc"),
            Letters: ("inbox.nyc", "inbox.nyc"),
            Casts: ("cast.sfo", "cast.sfo"),
        }
        self.source, self.filled = (TopicPartition(f"abcast.{GROUP}.{name}", 0) for name in names[kind])
        self.make_anew()

    def make_anew(self) -> None:
        self.at["sfo"].topics.partitions[self.source] = []
        self.at["sfo"].topics.beginnings.pop(self.source, None)

    def write(self, incarnation: int, number: int) -> None:
        value = b"%d.%d" % (incarnation, number)
        if self.kind is Letters:
            key, headers = b"nyc/al", letter_headers("sfo/bob", incarnation, number)
        elif self.kind is Casts:
            key, headers = b"sfo/bob", cast_headers(Cast("sfo/bob", incarnation, number, value, FIFO, NO_VIEW, 0, ""))
        else:
            key, headers = b"sfo/bob", forward_headers(incarnation, number)
        self.at["sfo"].topics.append(self.source, key, value, headers)

    def carry(self, most: int = 1000) -> int:
        return Carrier(self.kind, self.sites, Direction("sfo", "nyc"), GROUP).carry(most)

    def come(self) -> list[str]:
        return [(record.value or b"").decode() for record in self.at["nyc"].topics.partitions.get(self.filled, [])]


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_a_retention_of_forward_stops_no_relay(written: int, carried: int, dropped: int) -> None:
    """Dropped requests are ordered already, as at a new home, or are sent again."""
    way = Way(SiteForward)
    for number in range(1, written + 1):
        way.write(1, number)
    way.carry(carried)
    dropped = min(dropped, written)
    way.at["sfo"].topics.drop(way.source.topic, dropped)
    way.carry()
    way.write(1, written + 1)
    way.carry()
    left = [number for number in range(1, written + 2) if number <= min(carried, written) or number > dropped]
    assert way.come() == [f"1.{number}" for number in left]


def test_that_something_was_dropped_is_told(caplog: pytest.LogCaptureFixture) -> None:
    way = Way(SiteForward)
    for number in range(1, 6):
        way.write(1, number)
    way.carry(2)
    way.at["sfo"].topics.drop(way.source.topic, 4)
    assert not caplog.records
    way.carry()
    [record] = caplog.records
    assert "retention has dropped offsets 2 to 3 of abcast.g.forward.sfo-0 at sfo" in record.getMessage()


@pytest.mark.parametrize("kind", [SiteForward, Letters, Casts])
@given(before=st.integers(1, 12), carried=st.integers(1, 12), after=st.integers(0, 15))
def test_of_a_source_that_was_made_anew_all_is_carried(
    kind: type[Relay], before: int, carried: int, after: int
) -> None:
    """The whole new source is copied, however long it is when the relay starts."""
    way = Way(kind)
    for number in range(1, before + 1):
        way.write(1, number)
    carried = way.carry(carried)
    way.make_anew()
    for number in range(1, after + 1):
        way.write(2, number)
    way.carry()
    assert way.carry() == 0
    expected = [f"1.{number}" for number in range(1, carried + 1)] + [f"2.{number}" for number in range(1, after + 1)]
    assert way.come() == expected


@pytest.mark.parametrize("after", [0, 4, 5, 9])
def test_sites_that_agree_stop_at_a_source_that_was_made_anew(after: int) -> None:
    way = Way(Agreed, "isis")
    for number in range(1, 6):
        way.write(1, number)
    topic = Topic.parse(way.source.topic)
    assert topic is not None
    assert way.carry() == 5
    relay = Carrier(Agreed, way.sites, Direction("sfo", "nyc"), GROUP)
    assert relay.positions[way.source] == 5
    way.make_anew()
    for number in range(1, after + 1):
        way.write(2, number)
    with pytest.raises(HistoryUnavailable, match="was recreated"):
        relay.job.positions([topic])


@pytest.mark.parametrize("left", [0, 1, 3])
def test_sites_that_agree_go_on_behind_a_retention_that_dropped_all_copies(left: int) -> None:
    """A group was idle for longer than the retention of FORWARD and its copies. Each site has the dropped records."""
    way = Way(Agreed, "isis")
    for number in range(1, 6):
        way.write(1, number)
    assert way.carry() == 5
    place = TopicPartition(way.filled.topic, 0)
    way.at["sfo"].topics.drop(way.source.topic, 5)
    way.at["nyc"].topics.drop(place.topic, 5)
    for number in range(6, 6 + left):
        way.write(1, number)
    assert way.carry() == left
    assert way.come()[5:] == [f"1.{number}" for number in range(6, 6 + left)]


@pytest.mark.parametrize("carried", [0, 3])
def test_sites_that_agree_stop_at_records_that_no_copy_had(carried: int) -> None:
    way = Way(Agreed, "isis")
    for number in range(1, 6):
        way.write(1, number)
    way.carry(carried)
    way.at["sfo"].topics.drop(way.source.topic, 5)
    with pytest.raises(HistoryUnavailable, match=f"lacks offsets {carried} to 4"):
        way.carry()


class SiteLog:
    """The log of sfo, which agrees with nyc: each step is a new job, and writes an entry."""

    def __init__(self, way: Way) -> None:
        self._way, self.place = way, f"{way.source.topic}-{way.source.partition}"
        self._site = begin(first_state(GROUP, "sfo", ["nyc", "sfo"]), 1, of_format=2)

    def step(self, begins: int, read: Iterable[tuple[int, int]]) -> None:
        """Read these offsets, given as (first, end) pairs, of FORWARD that begins at `begins`; submit them."""
        site, kept = self._site, list(read)
        site.forwards.contents = lambda part: contents_of(part, kept)
        for end in (begins, *(end for _, end in kept)):
            site.take(Arrived(self.place, end, end, begins))
        entry = site.end_step(is_last=True)
        assert entry is not None
        data = TopicPartition(f"abcast.{GROUP}.data.sfo", 0)
        self._way.at["sfo"].topics.append(data, *encode_data(write_entry(entry)))
        self._site = again(site)


def again(site: Site) -> Site:
    """Return the site in the next job."""
    return begin(site.state, 1, now_ms=site.process.state.now_ms, of_format=2)


@pytest.mark.parametrize(
    ("steps", "lacks"),
    [
        ([(0, [(0, 5)])], False),
        ([(0, [(0, 3)])], False),
        ([(0, [(0, 5)]), (7, [])], False),
        ([(0, [(0, 5)]), (0, [(7, 9)])], False),
        ([(0, [(0, 5)]), (0, [(6, 9)])], True),
        ([(0, [(0, 5)]), (0, [(5, 7)])], True),
        ([(0, [(0, 5)]), (0, [(5, 6)]), (7, [])], True),
        ([(0, [(0, 2)]), (0, [(2, 5)]), (0, [(5, 7)])], True),
        ([(0, [(0, 6)]), (0, [(7, 9)])], True),
        ([], True),
    ],
    ids=[
        "read no more",
        "less",
        "began behind",
        "read behind",
        "lacks 6",
        "lacks 5",
        "lacks 5, began behind",
        "read, not submitted",
        "lacks 5, read behind",
        "unknown",
    ],
)
def test_offsets_that_no_run_has_are_not_lacked(steps: list[tuple[int, list[tuple[int, int]]]], *, lacks: bool) -> None:
    """Offsets 5 and 6 are markers of transactions, or were records. Retention has dropped them."""
    way = Way(Agreed, "isis")
    for number in range(1, 6):
        way.write(1, number)
    assert way.carry() == 5
    for number in range(6, 10):
        way.write(1, number)
    log = SiteLog(way)
    for step in steps:
        log.step(*step)
    way.at["sfo"].topics.drop(way.source.topic, 7)
    with pytest.raises(HistoryUnavailable, match="abcast site exclude nyc") if lacks else nullcontext():
        assert way.carry() > 0
    assert way.come()[5:] == ([] if lacks else ["1.8", "1.9"])
