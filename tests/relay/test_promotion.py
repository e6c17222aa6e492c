"""A copy becomes the home of a hub, on a Kafka in memory: with the old home, without it, and cut off midway."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka.structs import TopicPartition

from connectors import Member
from connectors.kafka.codec.codec import encode_data
from connectors.kafka.codec.epochs import Move, encode_claim, encode_move, this_host
from connectors.kafka.connection.sending import append
from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.log.acts import Act
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.topics.data_purge import purge_data
from connectors.relay.beginning import beginning_of
from connectors.relay.bootstrap import bootstrap
from connectors.relay.home_copy import HomeCopy
from connectors.relay.hub import HomeData
from connectors.relay.process.job import ProcessRelay
from connectors.relay.promotion import Promotion, copy_rest, fence, fence_former_home, promote
from connectors.relay.spark.job import SparkRelay
from connectors.spark.job import JobOptions
from connectors.takeover.fencing import check_not_fenced
from connectors.takeover.takeover import Claimer, take_over, take_over_groups
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from jobs.terminal.streaming import working
from ordering.base.errors import BrokerUnreachable, HistoryChanged, HistoryUnavailable, NotOrderedInTime, UsageError
from ordering.base.names import Topic
from ordering.base.records import MESSAGE, Data
from ordering.sequencer import sequencer
from ordering.sequencer.state import SequencerState
from tests.ledger.ledger_of import write_ledger

GROUP = "g"


class Hub:
    """Three sites with a Kafka each; nyc was the home, sfo is to be."""

    def __init__(self) -> None:
        self.connections = {name: MemoryConnection() for name in ("nyc", "sfo", "lax")}
        for name, connection in self.connections.items():
            connection.create(GROUP, name)
        links = frozenset(frozenset(("sfo", other)) for other in ("nyc", "lax"))
        self.sites = Sites("hub", "sfo", "micro-batch", dict(self.connections), links)

    def log(self, site: str) -> DataLog:
        return DataLog(self.connections[site], GROUP, site)

    def order(self, site: str, name: str, count: int) -> None:
        """Order some messages by the site's own sequencer."""
        connection = self.connections[site]
        with SequencerThread(connection, GROUP, site), Member(GROUP, f"{site}/{name}", connection=connection) as member:
            for number in range(count):
                member.broadcast(b"%d" % number)
            member.wait_ordered(10)

    def copy(self, source: str, target: str) -> None:
        with self.log(source) as other, self.log(target) as copy:
            copy_rest(other, copy)

    def messages(self, site: str) -> list[tuple[str, int]]:
        with self.log(site) as log, Member(GROUP, f"{site}/reader", connection=self.connections[site]) as member:
            last = log.state().seqno
            found = []
            for delivery in member.deliveries(from_seqno=1, timeout=0.3) if last else ():
                found.append((delivery.sender, delivery.local_seqno))
            return found


@pytest.fixture
def hub() -> Hub:
    made = Hub()
    made.order("nyc", "a", 5)
    made.copy("nyc", "sfo")
    return made


@pytest.mark.slow
def test_a_home_that_answers_is_replaced_without_a_loss(hub: Hub) -> None:
    """The messages that the copy lacked are added; the old sequencer can't start again; the order goes on."""
    hub.order("nyc", "b", 3)
    assert promote(hub.sites, GROUP, "sfo") == Promotion(8, 3, ())
    with pytest.raises(UsageError, match="the home of group g is sfo now"):
        take_over(hub.connections["nyc"], GROUP, "nyc")
    hub.order("sfo", "c", 2)
    expected = [("nyc/a", n + 1) for n in range(5)] + [("nyc/b", n + 1) for n in range(3)]
    assert hub.messages("sfo") == [*expected, ("sfo/c", 1), ("sfo/c", 2)]
    with hub.log("sfo") as log:
        assert log.state().seqno == 10
        assert not log.is_copy()


def test_a_new_home_does_not_begin_anew(hub: Hub) -> None:
    """A site with the new file, not yet promoted, refuses. A group without any order may begin, although a site
    is away.
    """
    empty, sites = hub.connections["lax"], replace(hub.sites, home="lax")
    claimer = Claimer(empty, "lax", check_group=beginning_of(sites, "lax"))
    forward = {GROUP: [f"abcast.{GROUP}.forward.lax"]}
    with pytest.raises(UsageError, match=r"nyc has an order of group g already.*abcast site promote lax"):
        take_over_groups(claimer, forward)
    assert promote(sites, GROUP, "lax") == Promotion(5, 5, ())
    assert take_over_groups(claimer, forward)[GROUP].seqno == 5
    for name, connection in hub.connections.items():
        connection.create("new", name)
    del hub.connections["nyc"].topics.partitions[TopicPartition("abcast.new.data.nyc", 0)]
    assert take_over_groups(claimer, {"new": ["abcast.new.forward.lax"]})["new"].seqno == 0
    assert beginning_of(sites, "sfo") is None


@pytest.mark.slow
def test_a_home_whose_last_messages_are_sealed_off_is_named() -> None:
    """The old home did not answer an earlier promotion. Nobody else has its last messages."""
    hub = Hub()
    hub.order("nyc", "a", 3)
    hub.copy("nyc", "lax")
    hub.order("nyc", "b", 2)
    hub.copy("nyc", "sfo")
    hub.order("nyc", "c", 4)
    without = {name: hub.connections[name] for name in ("sfo", "lax")}
    promote(replace(hub.sites, connections=without), GROUP, "sfo")
    assert promote(replace(hub.sites, home="lax"), GROUP, "lax") == Promotion(5, 2, ("nyc",))
    assert len(hub.messages("lax")) == 5


def test_a_home_that_has_lost_all_of_its_data_names_a_site_to_promote(hub: Hub) -> None:
    """A site with claims of its own can't be promoted."""
    check = beginning_of(replace(hub.sites, home="nyc"), "nyc")
    assert check is not None
    with pytest.raises(
        UsageError, match=r"and nyc has lost all of it. Promote (sfo|lax) first: `abcast site promote \1 "
    ):
        check(SequencerState(GROUP))


def test_the_home_moves_before_anybody_has_sent_anything(hub: Hub) -> None:
    """The new home has no record of the group, as there is none."""
    for name, connection in hub.connections.items():
        connection.create("new", name)
    take_over(hub.connections["nyc"], "new", "nyc")
    promote(hub.sites, "new", "sfo")
    claimer = Claimer(hub.connections["sfo"], "sfo", check_group=beginning_of(hub.sites, "sfo"))
    assert take_over_groups(claimer, {"new": ["abcast.new.forward.sfo"]})["new"].seqno == 0


@pytest.mark.parametrize("engine", ["spark", "process"])
def test_a_relay_that_serves_the_refused_group_alone_goes_on(
    hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture, engine: str
) -> None:
    """The relay leaves the group out and serves others; its file names the home before."""
    promote(hub.sites, GROUP, "sfo")
    no_spark: Any = None
    options = JobOptions(hub.connections["nyc"], "nyc", tmp_path, look_every_s=0.05)
    sites, direction = replace(hub.sites, home="nyc"), Direction("nyc", "sfo")
    relay: SparkRelay | ProcessRelay = (
        SparkRelay(no_spark, options, HomeData, sites, direction)
        if engine == "spark"
        else ProcessRelay(HomeData, sites, direction, look_every_s=0.05)
    )
    with working([relay]) as [thread]:
        assert relay.ready.wait(20)
        assert f"The other groups go on; {GROUP} is tried again" in caplog.text
        assert list(relay.suspended.reasons) == [GROUP]
        assert not thread.done.is_set()


@pytest.mark.slow
@pytest.mark.parametrize("lacks", ["nothing", "what is there", "what is gone"])
def test_a_failover_from_a_home_whose_data_was_purged(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lacks: str
) -> None:
    """Messages that the old home dropped and the copy lacks come from the ledger, before any sequencer is fenced."""
    monkeypatch.setattr(sequencer, "SNAPSHOT_EVERY_RECORDS", 1)
    monkeypatch.setattr(sequencer, "SNAPSHOT_RECORDS_PER_SENDER", 0)
    hub.order("nyc", "b", 0 if lacks == "nothing" else 6)
    for name in "cde":
        hub.order("nyc", name, 1)  # a batch each
    with hub.log("nyc") as log:
        rows = [stored.data for stored in log.records(0, log.end()) if stored.data.seqno]
        write_ledger(tmp_path / "ledger", rows, GROUP)
    if lacks == "nothing":
        hub.copy("nyc", "sfo")
    in_ledger = {"nothing": 7, "what is there": 4, "what is gone": len(rows) - 1}[lacks]
    nyc = hub.connections["nyc"]
    [gone] = purge_data(nyc, GROUP, "nyc", kept_s=0.0, in_ledger=in_ledger, lacking=lambda *_: "")
    assert gone.records
    if lacks == "what is gone":
        with pytest.raises(UsageError, match=r"lacks seqno 6.*abcast site add sfo --group g --ledger"):
            promote(hub.sites, GROUP, "sfo")
        hub.order("nyc", "f", 1)
        before = replace(hub.sites, home="nyc")
        assert bootstrap(before, GROUP, tmp_path / "ledger", Direction("nyc", "sfo")) == len(rows)
    promote(hub.sites, GROUP, "sfo")
    hub.order("sfo", "g", 2)
    with hub.log("sfo") as log, Member(GROUP, "sfo/r", connection=hub.connections["sfo"]) as member:
        last = log.state().seqno
        seen = [delivery.sender for delivery in member.deliveries(from_seqno=1, timeout=0.5)]
    assert last == len(seen) == len(rows) + 2 + (lacks == "what is gone")
    assert seen[: len(rows)] == [row.sender for row in rows]
    with pytest.raises(UsageError, match="the home of group g is sfo now"):
        take_over(nyc, GROUP, "nyc")


@pytest.mark.slow
def test_an_old_home_that_returns_is_fenced(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old home had ordered messages that no other site has: they are named, and its sequencer stops."""

    def away(*_: object) -> None:
        raise BrokerUnreachable("nyc is away.")

    hub.order("nyc", "b", 3)
    with monkeypatch.context() as cut:
        cut.setattr(hub.connections["nyc"].__class__, "consumer", _only(hub.connections["nyc"], away))
        assert promote(hub.sites, GROUP, "sfo") == Promotion(5, 0, ("nyc",))
    hub.order("sfo", "c", 2)
    with hub.log("sfo") as home, hub.log("nyc") as former:
        running = take_over(hub.connections["nyc"], GROUP, "nyc").epoch  # it does not know yet
        assert fence_former_home(home, former)
        newest = former.epochs.read().newest_claim
        assert newest is not None
        assert newest.epoch > running
    with pytest.raises(UsageError, match="the home of group g is sfo now"):
        take_over(hub.connections["nyc"], GROUP, "nyc")
    assert hub.messages("sfo")[5:] == [("sfo/c", 1), ("sfo/c", 2)]


def test_the_copy_that_reaches_furthest_counts(hub: Hub) -> None:
    """The home is gone for good; another copy has more than the one that is promoted."""
    hub.order("nyc", "b", 3)
    hub.copy("nyc", "lax")
    hub.connections["nyc"].topics.partitions.clear()
    assert promote(hub.sites, GROUP, "sfo") == Promotion(8, 3, ("nyc",))


def test_a_copy_without_its_beginning_is_no_source(hub: Hub, tmp_path: Path) -> None:
    """The copy at lax was recreated while a relay ran, and reaches further than sfo's. Neither may follow it."""
    hub.order("nyc", "b", 3)
    with hub.log("nyc") as home:
        rows = [stored.data for stored in home.records(0, home.end())]
    middle = [data for data in rows if not data.seqno or data.seqno > 6]
    for data in middle:
        append(hub.connections["lax"], str(Topic(GROUP, "data", "lax")), encode_data(data))
    hub.connections["nyc"].topics.partitions.clear()
    begins = "data.lax begins in the middle of the order"
    with pytest.raises(UsageError, match=begins):
        promote(replace(hub.sites, home="lax"), GROUP, "lax")
    write_ledger(tmp_path / "ledger", [data for data in rows if data.seqno], GROUP)
    with pytest.raises(UsageError, match=begins):
        bootstrap(replace(hub.sites, home="nyc"), GROUP, tmp_path / "ledger", Direction("nyc", "lax"))
    assert promote(hub.sites, GROUP, "sfo") == Promotion(5, 0, ("nyc", "lax"))


def _lose_the_last_message(hub: Hub, site: str, source: str) -> None:
    """Let a copy lose its end, and get what the source decides in its next epoch."""
    place = TopicPartition(str(Topic(GROUP, "data", site)), 0)
    topics = hub.connections[site].topics
    topics.truncate(place.topic, len(topics.partitions[place]) - 1)
    with hub.log(source) as home:
        before = home.end()
        hub.order(source, "later", 2)
        for stored in home.records(before, home.end()):
            append(hub.connections[site], place.topic, encode_data(stored.data))


@pytest.mark.slow
def test_a_copy_that_has_lost_a_message_fences_nobody(hub: Hub) -> None:
    """The copy can't become the home, and is no source for another. The home that runs goes on, or is replaced."""
    _lose_the_last_message(hub, "sfo", "nyc")
    with pytest.raises(UsageError, match=r"sfo has another seqno 5 than .*nyc.*delete the group's topics at sfo"):
        promote(hub.sites, GROUP, "sfo")
    assert take_over(hub.connections["nyc"], GROUP, "nyc").seqno == 7
    assert promote(replace(hub.sites, home="lax"), GROUP, "lax") == Promotion(7, 7, ("sfo",))
    assert hub.messages("lax") == hub.messages("nyc")


@pytest.mark.slow
def test_a_home_that_has_lost_all_is_the_home_again(hub: Hub) -> None:
    """Only a copy has the order. The errors lead there; with no copy in reach the promotion is refused."""
    empty, sites = MemoryConnection(), replace(hub.sites, home="nyc")
    empty.create(GROUP, "nyc")
    hub.connections["nyc"] = empty
    sites = replace(sites, connections=dict(hub.connections))
    forward = {GROUP: [f"abcast.{GROUP}.forward.nyc"]}
    with pytest.raises(UsageError, match=r"sfo has an order of group g already.*abcast site promote nyc"):
        take_over_groups(Claimer(empty, "nyc", check_group=beginning_of(sites, "nyc")), forward)
    alone = {name: hub.connections[name] for name in ("nyc", "lax")}
    with pytest.raises(UsageError, match="no site with one answers"):
        promote(replace(sites, connections=alone), GROUP, "nyc")
    assert promote(sites, GROUP, "nyc") == Promotion(5, 5, ())
    hub.order("nyc", "z", 2)
    assert hub.messages("nyc")[:5] == hub.messages("sfo")
    assert len(hub.messages("nyc")) == 7


@pytest.mark.slow
def test_an_old_home_whose_state_is_lost_is_replaced(hub: Hub) -> None:
    """Its retention, or a power failure behind a purge, has taken the last snapshot. It is fenced all the same."""
    data = str(Topic(GROUP, "data", "nyc"))
    nyc = hub.connections["nyc"]
    nyc.topics.drop(data, len(nyc.topics.partitions[TopicPartition(data, 0)]))
    with hub.log("nyc") as log, pytest.raises(HistoryUnavailable):
        log.state()
    assert promote(hub.sites, GROUP, "sfo") == Promotion(5, 0, ("nyc",))
    with pytest.raises(UsageError, match="the home of group g is sfo now"):
        take_over(nyc, GROUP, "nyc")
    hub.order("sfo", "c", 2)
    assert len(hub.messages("sfo")) == 7


@pytest.mark.slow
def test_an_old_home_with_other_messages_holds_up_no_promotion(hub: Hub) -> None:
    """The old home did not answer when the last one was made the home, and has ordered more than that one since."""
    hub.copy("nyc", "lax")
    without = {name: hub.connections[name] for name in ("sfo", "lax")}
    promote(replace(hub.sites, connections=without), GROUP, "sfo")
    hub.order("nyc", "b", 4)
    hub.order("sfo", "c", 2)
    assert promote(replace(hub.sites, home="lax"), GROUP, "lax") == Promotion(7, 2, ("nyc",))
    assert hub.messages("lax") == hub.messages("sfo")
    with pytest.raises(UsageError, match="the home of group g is lax now"):
        take_over(hub.connections["nyc"], GROUP, "nyc")


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_site_that_stayed_behind_replaces_no_home(hub: Hub, count: int) -> None:
    """The site has other messages than the home, however many. Members have delivered the home's."""
    hub.order("nyc", "b", 3)
    hub.copy("nyc", "lax")
    promote(replace(hub.sites, connections={"sfo": hub.connections["sfo"]}), GROUP, "sfo")
    hub.order("sfo", "c", count)
    known = hub.messages("sfo")
    without_nyc = {name: hub.connections[name] for name in ("sfo", "lax")}
    with pytest.raises(UsageError, match="another seqno 6"):
        promote(replace(hub.sites, home="lax", connections=without_nyc), GROUP, "lax")
    hub.order("sfo", "d", 1)
    assert hub.messages("sfo") == [*known, ("sfo/d", 1)]


def test_a_copy_with_other_messages_is_refused(hub: Hub) -> None:
    """A copy that was left behind when the home moved has other messages under the same numbers."""
    hub.order("nyc", "b", 3)
    hub.copy("nyc", "lax")
    with hub.log("lax") as lax:
        beyond = lax.state().seqno
    lost = hub.connections["nyc"].topics.partitions
    kept = {place: list(records) for place, records in lost.items()}
    lost.clear()
    only_sfo = Sites("hub", "sfo", "micro-batch", {"sfo": hub.connections["sfo"]}, frozenset())
    promote(only_sfo, GROUP, "sfo")
    hub.order("sfo", "c", 4)
    lost.update(kept)
    with hub.log("sfo") as home, hub.log("lax") as lax:
        assert beyond == 8
        with pytest.raises(UsageError, match="different messages under seqno 6"):
            copy_rest(home, lax)


class Cut:
    """Every append of a failover is counted, and one of them fails: before Kafka has the record, or after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, *, is_written: bool) -> None:
        self.at = at
        self.is_written = is_written
        self.count = 0
        for module in ("promotion", "home_copy", "bootstrap"):
            monkeypatch.setattr(f"connectors.relay.{module}.append", self.append)

    def append(self, *args: Any, **options: Any) -> int:
        self.count += 1
        if self.count == self.at and not self.is_written:
            raise BrokerUnreachable("no answer, and nothing written.")
        offset = append(*args, **options)
        if self.count == self.at:
            raise BrokerUnreachable("no answer.")
        return offset


CUTS = [(at, is_written) for at in range(1, 9) for is_written in (False, True)]


def broadcast(hub: Hub, site: str, name: str) -> int | None:
    """The seqno that the receipt of a member's message says, if it comes soon."""
    member = Member(GROUP, f"{site}/{name}", connection=hub.connections[site])
    try:
        return member.broadcast(name.encode()).result(0.3)
    except NotOrderedInTime:
        return None
    finally:
        with suppress(NotOrderedInTime):
            member.close(timeout=0.1)


@pytest.mark.parametrize(("at", "is_written"), CUTS)
@pytest.mark.slow
def test_a_failover_is_cut_off_and_done_again(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, at: int, is_written: bool
) -> None:
    """Wherever it is cut off, and the old home's sequencer runs all the time: there is one home afterwards."""
    hub.copy("nyc", "lax")
    receipts: dict[str, int | None] = {}
    with SequencerThread(hub.connections["nyc"], GROUP, "nyc"):
        receipts["nyc/before"] = broadcast(hub, "nyc", "before")
        with monkeypatch.context() as context:
            cut = Cut(context, at, is_written=is_written)
            try:
                promote(hub.sites, GROUP, "sfo")
            except BrokerUnreachable:
                receipts["nyc/between"] = broadcast(hub, "nyc", "between")
            else:
                assert cut.count < at == max(at for at, _ in CUTS), "every append was cut off once"
        for _ in range(2):
            promote(hub.sites, GROUP, "sfo")
        assert broadcast(hub, "nyc", "after") is None, "a receipt of a site that is the home no more"
    with hub.log("nyc") as former, pytest.raises(UsageError, match="the home of group g is sfo now"):
        check_not_fenced(former, former.epochs.read().newest_epoch)
    with SequencerThread(hub.connections["sfo"], GROUP, "sfo"):
        receipts["sfo/late"] = broadcast(hub, "sfo", "late")
    order = {sender: seqno for seqno, (sender, _) in enumerate(hub.messages("sfo"), 1)}
    given = {sender: seqno for sender, seqno in receipts.items() if seqno is not None}
    assert {sender: order[sender] for sender in given} == given
    assert {"nyc/before", "sfo/late"} <= given.keys()


@pytest.mark.slow
@pytest.mark.parametrize("at", range(1, 5))
@pytest.mark.parametrize("is_written", [False, True])
def test_the_fence_of_a_relay_is_cut_off_and_done_again(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, at: int, is_written: bool
) -> None:
    """The old home was away, and runs on. The first relay that reaches it is killed midway; the next one fences it."""
    apart = Sites("hub", "sfo", "micro-batch", {"sfo": hub.connections["sfo"]}, frozenset())
    promote(apart, GROUP, "sfo")
    hub.order("sfo", "c", 2)

    def start() -> int:
        relay = HomeCopy(hub.connections["sfo"], hub.connections["nyc"], GROUP, Direction("sfo", "nyc"))
        with closing(relay):
            return relay.start()

    with SequencerThread(hub.connections["nyc"], GROUP, "nyc"):
        with monkeypatch.context() as context:
            Cut(context, at, is_written=is_written)
            with pytest.raises((BrokerUnreachable, UsageError)):
                start()
        for _ in range(2):
            with pytest.raises(UsageError, match="nyc was the home of the group before"):
                start()
        assert broadcast(hub, "nyc", "after") is None
    with hub.log("nyc") as former:
        assert len(former.epochs.read().claims_since_move()) <= 2, "what is fenced is left alone"


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_the_old_home_loses_its_move(hub: Hub, kept: int) -> None:
    """Its sequencer does not go on: only a promotion can have written the newest seal in DATA."""
    promote(hub.sites, GROUP, "sfo")
    hub.order("sfo", "c", 2)
    nyc = hub.connections["nyc"]
    nyc.topics.truncate(f"abcast.{GROUP}.epoch.nyc", kept)
    expected = (UsageError, "the home of group g is sfo now") if kept == 3 else (HistoryChanged, "only at 1")
    with pytest.raises(expected[0], match=expected[1]):
        take_over(nyc, GROUP, "nyc")
    assert len(nyc.topics.partitions[TopicPartition(f"abcast.{GROUP}.epoch.nyc", 0)]) == kept
    promote(hub.sites, GROUP, "sfo")
    with pytest.raises(UsageError, match="the home of group g is sfo now"):
        take_over(nyc, GROUP, "nyc")


def test_the_home_that_is_replaced_has_lost_its_claims(hub: Hub) -> None:
    """Records of its running sequencer behind the seal of the promotion do not count."""
    for name in "bcd":
        hub.order("nyc", name, 1)
    nyc = hub.connections["nyc"]
    state = take_over(nyc, GROUP, "nyc")
    nyc.topics.truncate(f"abcast.{GROUP}.epoch.nyc", 1)
    assert promote(hub.sites, GROUP, "sfo").last_seqno == 8
    late = Data(MESSAGE, state.epoch, 9, 0, "nyc/late", 5, 1)
    nyc.topics.append(TopicPartition(f"abcast.{GROUP}.data.nyc", 0), *encode_data(late))
    with hub.log("nyc") as log:
        assert log.state().seqno == 8


@pytest.mark.parametrize("site", ["nyc", "sfo"])
def test_the_home_has_lost_all_of_epoch(hub: Hub, site: str) -> None:
    """The promotion makes it the home again, as the error says."""
    if site == "sfo":
        promote(hub.sites, GROUP, "sfo")
        hub.order("sfo", "c", 2)
    home = hub.connections[site]
    epoch = take_over(home, GROUP, site).epoch
    home.topics.truncate(f"abcast.{GROUP}.epoch.{site}", 0)
    with pytest.raises(UsageError, match=f"abcast site promote {site}"):
        take_over(home, GROUP, site)
    promote(replace(hub.sites, home=site), GROUP, site)
    assert take_over(home, GROUP, site).epoch > epoch


def test_a_sequencer_that_runs_sees_a_move(hub: Hub) -> None:
    """Also before the claim behind it."""
    with hub.log("nyc") as log:
        check_not_fenced(log, log.epochs.read().newest_epoch)
        append(log.connection, log.epochs.topic, (None, *encode_move(Move("sfo"))))
        with pytest.raises(UsageError, match="the home of group g is sfo now"):
            check_not_fenced(log, log.epochs.read().newest_epoch)


def test_a_sequencer_that_starts_sees_a_move_before_its_claim(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sequencer looked at the group before the fence and claims behind it: it writes no seal."""

    def claim(*args: Any) -> Any:
        with hub.log("nyc") as log:
            fence(log, "sfo", Act("promote", "sfo is the home"))
        return encode_claim(*args)

    monkeypatch.setattr("connectors.takeover.takeover.encode_claim", claim)
    with pytest.raises(UsageError, match="the home of group g is sfo now"):
        take_over(hub.connections["nyc"], GROUP, "nyc")
    with hub.log("nyc") as log:
        before, claimed = log.epochs.read().claims[-2:]
        assert log.state().epoch == before.epoch < claimed.epoch


def test_epoch_tells_who_has_moved_the_home(hub: Hub) -> None:
    """At both sites."""
    promote(hub.sites, GROUP, "sfo", "nyc burns")
    with hub.log("nyc") as former, hub.log("sfo") as home:
        for log in (former, home):
            [act] = log.epochs.read().acts
            assert (act.act, act.what, act.why) == ("promote", "sfo is the home", "nyc burns")
            assert act.who.endswith(f"@{this_host()}")
            assert abs(act.at_ms / 1000 - time.time()) < 60


@pytest.mark.parametrize("knows", [False, True])
def test_the_later_of_two_homes_is_the_home(hub: Hub, monkeypatch: pytest.MonkeyPatch, knows: bool) -> None:
    """A home that was away while another was made one fences nobody when it is back. `knows`: the other one's copy had
    something of it."""
    hub.copy("nyc", "lax")

    def promote_alone(site: str, at: float) -> None:
        with monkeypatch.context() as context:
            context.setattr("connectors.relay.promotion.time.time", lambda: at)
            alone = {site: hub.connections[site]}
            promote(Sites("hub", site, "micro-batch", alone, frozenset()), GROUP, site)

    now = time.time()
    promote_alone("sfo", now)
    hub.order("sfo", "c", 2)
    if knows:
        hub.copy("sfo", "lax")
    promote_alone("lax", now - 100_000 if knows else now + 60)
    hub.order("lax", "d", 3)
    with hub.log("sfo") as sfo, hub.log("lax") as lax, hub.log("nyc") as nyc:
        with pytest.raises(UsageError, match="lax was made the home of group g after sfo"):
            fence_former_home(sfo, lax)
        with pytest.raises(UsageError, match="lax was made the home of group g after sfo"):
            promote(hub.sites, GROUP, "sfo")
        for former in (sfo, nyc):
            assert fence_former_home(lax, former)
            with pytest.raises(UsageError, match="the home of group g is lax now"):
                check_not_fenced(former, former.epochs.read().newest_epoch)
        check_not_fenced(lax, lax.epochs.read().newest_epoch)


def test_a_copy_that_two_homes_fill_is_told(hub: Hub) -> None:
    """The old home, which did not answer, brings one more message before the new home's relay has sealed its epoch."""
    hub.copy("nyc", "lax")
    apart = Sites("hub", "sfo", "micro-batch", {name: hub.connections[name] for name in ("sfo", "lax")}, frozenset())
    promote(apart, GROUP, "sfo")
    hub.order("sfo", "c", 2)
    hub.order("nyc", "b", 1)
    hub.copy("nyc", "lax")
    with hub.log("sfo") as home, hub.log("lax") as copy:
        for stored in home.records(0, home.end()):
            append(copy.connection, str(copy.topic), encode_data(stored.data))
        assert copy.state().seqno == home.state().seqno == 7
    relay = HomeCopy(hub.connections["sfo"], hub.connections["lax"], GROUP, Direction("sfo", "lax"))
    with (
        closing(relay),
        pytest.raises(UsageError, match=r"another seqno 6 than .*: delete the group's topics at lax"),
    ):
        relay.start()


def _only(one: MemoryConnection, away: object) -> object:
    original = MemoryConnection.consumer

    def consumer(self: MemoryConnection, **settings: object) -> object:
        return away() if self is one else original(self, **settings)  # type: ignore[operator]

    return consumer
