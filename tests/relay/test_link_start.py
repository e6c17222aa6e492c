"""The beginning of a link's session, in a Kafka in memory: a source that has lost its end, and the oldest snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import encode_data
from connectors.kafka.codec.epochs import encode_claim
from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.log.data_log import DataLog
from connectors.relay import link_start
from connectors.relay.link_start import find_session_start
from connectors.relay.mesh import MeshData
from connectors.testing.memory_clients import MemoryConsumer
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.errors import HistoryChanged, HistoryUnavailable
from ordering.base.names import Topic
from ordering.base.records import Data, Link, Source
from ordering.sequencer.sequencer import absorb, seal, snapshot
from ordering.sequencer.state import SequencerState
from tests.relay.carrying import Carrier, relays_in_memory

DATA = Topic("g", "data", "far")


def own(seqno: int) -> Data:
    return Data("message", 1, seqno, 0, "far/a", 1, seqno, b"x", Source("abcast.g.forward.far", 0, seqno))


def linked(seqno: int) -> Data:
    """Return the copy of `own` that the neighbour has ordered."""
    source = Source("abcast.g.relayed-far.here", 0, seqno)
    return Data("message", 1, seqno, 0, "far/a", 1, seqno, b"x", source, link=Link(0, 1, seqno, seqno))


def all_carried(_: str) -> bool:
    return True


class Ends:
    """A site `far` whose 9 messages `here` has ordered."""

    def __init__(self) -> None:
        self.far, self.here = MemoryConnection(), MemoryConnection()
        self.far.create("g", "far")
        self.here.create("g", "here")
        self.write(self.far, "far", [seal(1), *map(own, range(1, 10))])
        self.write(self.here, "here", [seal(1), *map(linked, range(1, 10))])
        connections = {"far": self.far, "here": self.here}
        self.sites = Sites("mesh", None, "micro-batch", connections, frozenset([frozenset(connections)]))

    def write(self, kafka: MemoryConnection, site: str, records: Iterable[Data]) -> None:
        for record in records:
            key, value, headers = encode_data(record)
            kafka.producer().send(f"abcast.g.data.{site}", key=key, value=value, headers=headers, partition=0)

    @property
    def data(self) -> list[Any]:
        return self.far.topics.partitions[TopicPartition(str(DATA), 0)]

    def begin(self) -> int:
        """Begin a session; return the offset of DATA where it begins."""
        carrier = Carrier(MeshData, self.sites, Direction("far", "here"), "g")
        carrier.end()
        [position] = carrier.positions.values()
        return position


@pytest.fixture
def ends() -> Iterator[Ends]:
    with relays_in_memory():
        yield Ends()


def test_a_neighbour_that_has_all_gets_nothing_again(ends: Ends) -> None:
    assert ends.begin() == 10


@pytest.mark.parametrize("left", [0, 1, 6, 9])
def test_a_source_that_has_lost_its_end_is_refused(ends: Ends, left: int) -> None:
    """The source gives the lost seqnos again, and the neighbour would drop these messages as repeats."""
    del ends.data[left:]
    told = rf"ends at seqno {max(0, left - 1)} of its own.*up to 9.*let far join under another name.*site add NAME"
    for _ in range(2):
        with pytest.raises(HistoryChanged, match=told):
            ends.begin()
        if left < 9:
            ends.write(ends.far, "far", [seal(2)])


def test_a_source_that_a_former_leader_tells_is_asked_for_again(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """A former leader is cut off from the other brokers, so its log ends too low."""
    end_offsets = MemoryConsumer.end_offsets

    def ends_of_a_former_leader(
        self: MemoryConsumer,
        places: Iterable[TopicPartition],
        timeout_ms: int | None = None,
        reached: Mapping[TopicPartition, int] | None = None,
    ) -> dict[TopicPartition, int]:
        found = end_offsets(self, places, timeout_ms)
        return {place: end if (reached or {}).get(place, 0) > 4 else min(end, 4) for place, end in found.items()}

    monkeypatch.setattr(MemoryConsumer, "end_offsets", ends_of_a_former_leader)
    with DataLog(ends.far, "g", "far") as here:
        assert here.end() == 4
        assert find_session_start(here, {"far": 9}, all_carried).offset == 10


def test_the_oldest_snapshot_is_found_without_the_rest(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """DATA may have millions of records, and a relay asks again and again."""
    every = 4
    monkeypatch.setattr(link_start, "SNAPSHOT_EVERY_RECORDS", every)
    monkeypatch.setattr("connectors.kafka.log.log_state._FIRST_WINDOW", every)
    records, state = [seal(1)], SequencerState("g")
    for seqno in range(1, 200):
        records.append(own(seqno))
        if not seqno % every:
            state = absorb(state, records[-every - 1 :])
            records.append(snapshot(state))
    ends.data.clear()
    ends.write(ends.far, "far", records)
    ends.far.topics.drop(str(DATA), 6)  # right behind the first snapshot
    value, headers = encode_claim(0)
    ends.far.producer().send("abcast.g.epoch.far", value=value, headers=headers, partition=0)
    read = set[int]()
    records_of = DataLog.records

    def noted(log: DataLog, start: int, end: int) -> Iterator[Any]:
        for stored in records_of(log, start, end):
            read.add(stored.offset)
            yield stored

    monkeypatch.setattr(DataLog, "records", noted)
    with DataLog(ends.far, "g", "far") as here:
        oldest = link_start._oldest(here, here.end())
        assert oldest is not None
        assert (oldest.offset, oldest.state.own_seqno) == (11, 2 * every)
        assert max(read) < 6 + 2 * every
        assert find_session_start(here, {"far": 2 * every}, all_carried).offset == 11
        with pytest.raises(HistoryUnavailable):
            find_session_start(here, {"far": 2 * every - 1}, all_carried)
