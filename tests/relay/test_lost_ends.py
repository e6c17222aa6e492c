"""The only broker of a hub's copy loses the end of DATA. The relay copies the records again, or says that it can't."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing, nullcontext, suppress

import pytest
from kafka.structs import TopicPartition

from connectors.engine.options import EngineOptions
from connectors.kafka.codec.codec import decode_data, encode_data, forward_headers
from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.groups.unservable_groups import UnservableGroups
from connectors.kafka.log.data_log import DataLog
from connectors.relay.home_copy import EndLost, HomeCopy
from connectors.relay.hub import HomeData
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.errors import (
    AbcastError,
    EnvironmentProblem,
    HistoryUnavailable,
    KafkaRefused,
    LaterVersion,
    TopicMissing,
    UsageError,
)
from ordering.base.names import Topic
from ordering.base.reader import Reader, Verdict
from ordering.base.records import MESSAGE, Data, Source
from ordering.sequencer.sequencer import absorb
from ordering.sequencer.state import SequencerState
from tests.packed import pack_log
from tests.relay.carrying import Carrier, relays_in_memory
from tests.world.clock import Clock
from tests.world.jobs import Job

WAY = Direction("nyc", "sfo")
COPY = str(Topic("g", "data", "sfo"))


class Ends:
    """A home, and its copy."""

    def __init__(self) -> None:
        self.kafkas = {name: MemoryConnection() for name in WAY}
        for name, kafka in self.kafkas.items():
            kafka.create("g", name)
        self.sites = Sites("hub", "nyc", "micro-batch", dict(self.kafkas), frozenset([frozenset(WAY)]))
        self.sent = 0
        self.take_over()

    def take_over(self) -> None:
        self.sequencer = Job(EngineOptions(self.kafkas["nyc"], "nyc"), Clock())

    def order(self, count: int) -> None:
        forward = TopicPartition(str(Topic("g", "forward", "nyc")), 0)
        for _ in range(count):
            self.sent += 1
            self.kafkas["nyc"].topics.append(forward, b"nyc/a", b"", forward_headers(1, self.sent))
            self.sequencer.decide(None)

    def start(self) -> Carrier:
        return Carrier(HomeData, self.sites, WAY, "g")

    def lose(self, count: int) -> None:
        end = len(self.kafkas["sfo"].topics.partitions[TopicPartition(COPY, 0)])
        self.kafkas["sfo"].topics.truncate(COPY, end - count)

    def records(self, site: str) -> list[Data]:
        log = self.kafkas[site].topics.partitions[TopicPartition(str(Topic("g", "data", site)), 0)]
        return [decode_data(record.key, record.value, record.headers) for record in log]

    def effective(self, site: str) -> list[Data]:
        reader = Reader()
        return [data for data in self.records(site) if reader.judge(data) is Verdict.TAKE]

    def knows(self, site: str) -> int:
        with DataLog(self.kafkas[site], "g", site) as data:
            return data.state().seqno


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    monkeypatch.setattr("connectors.relay.home_copy.SNAPSHOT_EVERY_RECORDS", 1)
    with relays_in_memory():
        yield Ends()


@pytest.mark.parametrize(
    ("lost", "goes_on", "before", "after"), [*itertools.product((1, 2, 4, 7), (False, True), (0, 3), (0, 3))]
)
def test_a_copy_is_whole_again_or_is_refused(ends: Ends, lost: int, goes_on: bool, before: int, after: int) -> None:
    """The result is the same with any base, for a running and a new relay, and with takeovers between.

    `before`, `after`: messages ordered before and after another takeover.
    """
    ends.order(2)
    ends.take_over()
    ends.order(before)
    relay = ends.start()
    relay.carry()
    relay.job.check()
    assert ends.knows("sfo") == 2 + before
    ends.lose(lost)
    assert ends.knows("sfo") == len(ends.effective("sfo")), "the base counts what is lost"
    if after:
        ends.take_over()
    ends.order(after)
    if goes_on:
        relay.carry()
        with suppress(AbcastError):
            relay.job.check()
    assert ends.knows("sfo") == len(ends.effective("sfo"))
    refused = None
    try:
        ends.start().carry()
    except UsageError as error:
        refused = str(error)
    if refused is None:
        assert ends.effective("sfo") == ends.effective("nyc")
    else:
        assert goes_on, refused
        assert after, refused
        assert "delete the group's topics at sfo" in refused


@pytest.mark.parametrize("lost", [1, 2, 4])
def test_a_relay_that_goes_on_finds_what_was_lost(ends: Ends, lost: int) -> None:
    """The relay finds the lost records at its next look, or when its next base is due."""
    ends.order(5)
    relay = ends.start()
    relay.carry()
    relay.job.check()
    ends.lose(lost)
    ends.order(1)
    relay.carry()
    with pytest.raises(UnservableGroups, match="copying"):
        relay.job.check()


@pytest.mark.parametrize("lost", [1, 2])
def test_a_hole_is_found_before_the_next_base(ends: Ends, lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy loses what it got since the last look, and is carried on. A small group gets no base for months."""
    monkeypatch.setattr("connectors.relay.home_copy.SNAPSHOT_EVERY_RECORDS", 16_384)
    ends.order(5)
    relay = ends.start()
    relay.carry()
    relay.job.check()
    ends.order(2)
    relay.carry()
    ends.lose(lost)
    ends.order(3)
    relay.carry()
    with pytest.raises(UnservableGroups, match="has lost records"):
        relay.job.check()
    ends.start().carry()
    assert ends.effective("sfo") == ends.effective("nyc")


def _drop(ends: Ends, seqno: int) -> None:
    """Let retention drop all records of the copy up to that seqno."""
    log = ends.kafkas["sfo"].topics.partitions[TopicPartition(COPY, 0)]
    found = (decode_data(record.key, record.value, record.headers) for record in log)
    ends.kafkas["sfo"].topics.drop(COPY, next(at for at, data in enumerate(found) if data.seqno == seqno) + 1)


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_copy_with_a_retention_is_whole_again(ends: Ends, lost: int) -> None:
    """An earlier base replaces the one that counts lost records."""
    relay = ends.start()
    for _ in range(3):
        ends.order(3)
        relay.carry()
        relay.job.check()
    _drop(ends, 4)
    ends.lose(lost)
    assert ends.knows("sfo") < 9
    ends.start().carry()
    assert [data.seqno for data in ends.effective("sfo")][-5:] == [5, 6, 7, 8, 9]
    assert ends.knows("sfo") == 9


def test_a_copy_whose_state_is_lost_must_join_again(ends: Ends) -> None:
    """Retention drops its beginning before it has a base, or EPOCH is recreated behind a retention."""
    ends.order(5)
    ends.start().carry()
    ends.kafkas["sfo"].topics.drop(COPY, len(ends.kafkas["sfo"].topics.partitions[TopicPartition(COPY, 0)]))
    with pytest.raises(UsageError, match=r"the state of .*: delete the group's topics at sfo"):
        ends.start()


@pytest.mark.parametrize("takes_over", [False, True])
@pytest.mark.parametrize("goes_on", [False, True])
def test_retention_is_no_loss(ends: Ends, takes_over: bool, goes_on: bool) -> None:
    """An idle group's retention may drop the records behind the newest base, and a takeover."""
    relay = ends.start()
    ends.order(3)
    relay.carry()
    relay.job.check()
    ends.order(3)
    if takes_over:
        ends.take_over()
    ends.order(3)
    relay.carry()
    _drop(ends, 7)
    if not goes_on:
        relay = ends.start()
        relay.carry()
    ends.order(1)
    relay.carry()
    relay.job.check()
    assert ends.knows("sfo") == 10


def test_a_copy_tells_each_earlier_state(ends: Ends) -> None:
    """A base counts only records below its offset: otherwise a reader that goes on there would miss messages."""
    relay = ends.start()
    for _ in range(8):
        ends.order(3)
        relay.carry()
        relay.job.check()
    with DataLog(ends.kafkas["sfo"], "g", "sfo") as copy:
        log = [stored.data for stored in copy.records(0, copy.end())]
        told = [copy.state(end).seqno for end in range(len(log) + 1)]
    assert told == [absorb(SequencerState("g"), log[:end]).seqno for end in range(len(log) + 1)]
    assert told[-1] == 24


@pytest.mark.parametrize("lost", [0, 1])
def test_a_look_at_packs_reads_only_those(ends: Ends, lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy's state, which may read many records, is computed only after a loss. `lost`: packs."""
    monkeypatch.setattr("connectors.relay.home_copy.SNAPSHOT_EVERY_RECORDS", 16_384)
    ends.order(20)
    pack_log(ends.kafkas["nyc"], "g", "nyc", seed=3)
    log, place = ends.records("nyc"), TopicPartition(COPY, 0)
    states: list[int] = []
    with closing(HomeCopy(ends.kafkas["nyc"], ends.kafkas["sfo"], "g", WAY)) as known:
        tell = known.copy.state

        def counted(end: int | None = None) -> SequencerState:
            states.append(1)
            return tell(end)

        known.start()
        middle = len(log) // 2
        for record in log[:middle]:
            ends.kafkas["sfo"].topics.append(place, *encode_data(record))
        known.post_base()
        monkeypatch.setattr(known.copy, "state", counted)
        for record in log[middle + lost :]:
            ends.kafkas["sfo"].topics.append(place, *encode_data(record))
        with pytest.raises(EndLost, match="has lost records") if lost else nullcontext():
            known.post_base()
    assert len(states) == lost


def test_a_base_that_ends_with_a_pack_is_posted(ends: Ends) -> None:
    """The group is idle behind the pack."""
    ends.order(9)
    pack_log(ends.kafkas["nyc"], "g", "nyc", seed=3)
    assert ends.records("nyc")[-1].count > 1
    relay = ends.start()
    relay.carry()
    relay.job.check()
    with DataLog(ends.kafkas["sfo"], "g", "sfo") as copy:
        assert [base.seqno for base in copy.epochs.bases_where(lambda base: True)] == [9]


def test_bases_come_more_and_more_seldom(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reader of the copy reads all of them, and nothing deletes any."""
    monkeypatch.setattr("connectors.relay.home_copy.BASES_PER_STEP", 5)
    relay, posted = ends.start(), list[int]()
    with DataLog(ends.kafkas["sfo"], "g", "sfo") as copy:
        for _ in range(60):
            ends.order(1)
            relay.carry()
            relay.job.check()
            posted.append(len(copy.epochs.read().bases))
    assert [posted.index(count) + 1 for count in range(1, 21)] == [
        *range(1, 6),
        *range(7, 17, 2),
        *range(18, 31, 3),
        *range(34, 51, 4),
    ]
    assert ends.knows("sfo") == 60


def _recreate(ends: Ends, *, also_epoch: bool) -> None:
    """Delete the copy's topics and create them again, while the relay runs."""
    for role in ("data", "epoch") if also_epoch else ("data",):
        ends.kafkas["sfo"].topics.partitions[TopicPartition(str(Topic("g", role, "sfo")), 0)] = []


@pytest.mark.parametrize(
    ("before", "seen", "also_epoch", "takes_over", "goes_on"),
    [*itertools.product((0, 1, 5), (False, True), (False, True), (False, True), (False, True))],
)
def test_a_recreated_copy_begins_with_seqno_1_or_is_refused(
    ends: Ends, before: int, seen: bool, also_epoch: bool, takes_over: bool, goes_on: bool
) -> None:
    """The copy may be empty when the relay notices, or have got records from the middle.

    `seen`: whether a look came before. `goes_on`: whether the relay looks afterwards; otherwise it is killed.
    """
    relay = ends.start()
    ends.order(before)
    relay.carry()
    if seen:
        relay.job.check()
    _recreate(ends, also_epoch=also_epoch)
    if takes_over:
        ends.take_over()
    ends.order(3)  # a look compares the copy once its end has changed
    relay.carry()
    if goes_on and before:
        with pytest.raises(AbcastError, match="was recreated"):
            relay.job.check()
    if before == 0:
        ends.start().carry()
        assert ends.effective("sfo") == ends.effective("nyc")
        return
    with pytest.raises(UsageError, match=r"begins in the middle of the order.*delete the group's topics at sfo"):
        ends.start()
    _recreate(ends, also_epoch=True)
    ends.start().carry()
    assert ends.effective("sfo") == ends.effective("nyc")


def test_a_recreated_copy_is_carried_anew_while_the_group_is_idle(ends: Ends) -> None:
    relay = ends.start()
    ends.order(5)
    relay.carry()
    relay.job.check()
    _recreate(ends, also_epoch=True)
    with pytest.raises(UnservableGroups, match="was recreated"):
        relay.job.check()
    ends.start().carry()
    assert ends.effective("sfo") == ends.effective("nyc")


def test_seals_alone_are_no_beginning(ends: Ends) -> None:
    """A look sees a recreated copy that has got a later epoch, and no message yet."""
    relay = ends.start()
    ends.order(3)
    relay.carry()
    _recreate(ends, also_epoch=True)
    first = ends.kafkas["nyc"].topics.partitions[TopicPartition(str(Topic("g", "data", "nyc")), 0)][0]
    ends.kafkas["sfo"].topics.append(TopicPartition(COPY, 0), first.key, first.value, first.headers)
    relay.job.check()
    ends.order(1)
    relay.carry()
    with pytest.raises(UnservableGroups, match="begins in the middle"):
        relay.job.check()


def interrupted(ends: Ends) -> Carrier:
    """Interrupt the home's first write, and have a relay carry its end, which is ahead of seqno 1."""
    relay = ends.start()
    home = TopicPartition(str(Topic("g", "data", "nyc")), 0)
    source = Source(str(Topic("g", "forward", "nyc")), 0, 1)
    ends.kafkas["nyc"].topics.append(home, *encode_data(Data(MESSAGE, 1, 2, 0, "nyc/a", 1, 2, source=source)))
    relay.carry()
    assert (MESSAGE, 2) in [(data.kind, data.seqno) for data in ends.records("sfo")]
    return relay


@pytest.mark.parametrize("last", [False, True])
def test_records_ahead_of_seqno_1_are_no_hole_if_it_follows(ends: Ends, last: bool) -> None:
    """The home's first write was interrupted, and the copy has its end; or an earlier version's relay went on in a
    recreated copy, and began anew later.

    `last`: a look comes before seqno 1.
    """
    relay = interrupted(ends)
    if last:
        relay.job.check()
    ends.take_over()
    ends.order(2)
    relay.carry()
    relay.job.check()
    ends.start()
    assert ends.effective("sfo") == ends.effective("nyc")


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_copy_of_an_interrupted_first_write_alone_goes_on(ends: Ends, has_ended: bool) -> None:
    """The relay looks, or begins anew, when the home has seqno 1 and the copy does not."""
    relay = interrupted(ends)
    ends.take_over()
    ends.order(2)
    if has_ended:
        relay = ends.start()
    relay.job.check()
    relay.carry()
    relay.job.check()
    ends.start()
    assert len(ends.effective("sfo")) == 2
    assert ends.effective("sfo") == ends.effective("nyc")


@pytest.mark.parametrize("wrong", ["record", "epoch"])
def test_a_copy_that_has_more_than_the_interrupted_write_is_refused(ends: Ends, wrong: str) -> None:
    """A record that is not ahead of seqno 1 at home, or an epoch behind that of seqno 1: readers would skip seqno 1."""
    relay = interrupted(ends)
    ends.take_over()
    ends.order(2)
    if wrong == "record":
        other = Data(MESSAGE, 1, 3, 0, "nyc/a", 1, 3, source=Source(str(Topic("g", "forward", "nyc")), 0, 2))
    else:
        ends.take_over()
        other = next(data for data in reversed(ends.records("nyc")) if not data.payload)
    ends.kafkas["sfo"].topics.append(TopicPartition(COPY, 0), *encode_data(other))
    for act in (ends.start, relay.job.check):
        with pytest.raises((UsageError, UnservableGroups), match="begins in the middle"):
            act()


def test_a_new_copy_of_an_idle_home_is_whole(ends: Ends) -> None:
    """Seals, and snapshots that count nothing, come before the first message."""
    ends.take_over()
    relay = ends.start()
    relay.carry()
    relay.job.check()
    ends.take_over()
    relay.carry()
    relay.job.check()
    ends.order(2)
    relay.carry()
    relay.job.check()
    ends.start()
    assert ends.effective("sfo") == ends.effective("nyc")


@pytest.mark.parametrize(
    "error",
    [EndLost, HistoryUnavailable, KafkaRefused, LaterVersion, TopicMissing, UsageError],
    ids=lambda it: it.__name__,
)
def test_a_copy_that_fails_a_look_stops_no_other(error: type[AbcastError], monkeypatch: pytest.MonkeyPatch) -> None:
    """The other copies are looked at, too; an error of the whole job ends the look."""
    looked = set[str]()
    fails: type[AbcastError] = error

    def look(copy: HomeCopy) -> None:
        looked.add(copy.home.topic.group)
        if copy.home.topic.group == "b":
            raise fails("it fails.")

    monkeypatch.setattr(HomeCopy, "post_base", look)
    kafkas = {name: MemoryConnection() for name in WAY}
    for name, kafka in kafkas.items():
        for group in "abc":
            kafka.create(group, name)
    relay = HomeData(Sites("hub", "nyc", "micro-batch", dict(kafkas), frozenset([frozenset(kafkas)])), WAY)
    with relays_in_memory(), closing(relay.finder), closing(relay.target_finder):
        relay.positions([Topic(group, "data", "nyc") for group in "abc"])
        with pytest.raises(UnservableGroups) as raised:
            relay.check()
        assert (looked, {*raised.value.errors}) == ({*"abc"}, {"b"})
        fails = EnvironmentProblem
        with pytest.raises(EnvironmentProblem):
            relay.check()
        relay.end(is_stopped=True)
