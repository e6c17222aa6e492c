"""Sites that agree, on one Kafka in memory: the same DATA everywhere, whichever part stops at any time."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from kafka.structs import TopicPartition

from connectors import Member
from connectors.diagnosis import status
from connectors.engine import agreeing
from connectors.engine.agreeing import Agreeing, _Buffers
from connectors.engine.exclusion import exclude
from connectors.engine.forward_partitions import Starts
from connectors.engine.group_supervisor import Taken
from connectors.engine.loop import Loop
from connectors.engine.options import EngineOptions, JobState
from connectors.engine.site_job import AgreeingSites, SiteSupervisor
from connectors.engine.writing import WriteFailed
from connectors.kafka.codec.codec import encode_data, forward_headers
from connectors.kafka.codec.entry_codec import read_entry
from connectors.kafka.codec.inputs import Input, Neighbours
from connectors.kafka.connection.sending import append
from connectors.kafka.groups.suspended_groups import SuspendedGroups
from connectors.kafka.log import entries
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.entries import last_state
from connectors.kafka.topics.purge import purge_group
from connectors.kafka.topics.senders import Forgotten, forget_senders
from connectors.kafka.transport import PlainRecord
from connectors.sequencer import kept_records
from connectors.sequencer.agreeing_query import GroupStep, begun
from connectors.sequencer.spill_store import SpillStore
from connectors.takeover.agreement import AgreementSettings
from connectors.takeover.rows import Output
from connectors.takeover.takeover import Claimer, take_over, take_over_groups
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.memory_topics import WRITES
from ordering.agreement.formation import ProcessIncarnation
from ordering.agreement.group import after_takeover
from ordering.agreement.log import OrderedRun, Range, ReadReport, counting, run_of
from ordering.agreement.site_state import CopyMark, Place, SiteState, first_state
from ordering.agreement.site_state import state_of as told
from ordering.base.errors import (
    BrokerUnreachable,
    Disagreement,
    Fenced,
    HistoryChanged,
    HistoryUnavailable,
    ProtocolViolation,
    UsageError,
)
from ordering.base.names import Role, Topic
from ordering.base.reader import Reader, Verdict
from ordering.base.records import ENTRY, EPOCH, FORGET, HEARTBEAT, JOIN, MESSAGE, VIEW, Data, Source
from ordering.membership.forgetting import SenderRow
from ordering.sequencer import sequencer
from ordering.sequencer.state import SequencerState
from tests.engine.operator import Operators, next_run
from tests.waiting import eventually

SITES = ("nyc", "sfo", "lax")
PROCESS, SPARK = "process", "spark"
each_engine = pytest.mark.parametrize("engine", [PROCESS, pytest.param(SPARK, marks=pytest.mark.slow)])
long_on_spark = pytest.mark.parametrize("engine", [PROCESS, pytest.param(SPARK, marks=pytest.mark.long)])
SUSPECT_AFTER_MS = 2_000


def forward(site: str, group: str = "g") -> TopicPartition:
    return TopicPartition(str(Topic(group, "forward", site)), 0)


@pytest.fixture
def kafka() -> MemoryConnection:
    connection = MemoryConnection()
    for site in SITES:
        connection.create("g", site)
    return connection


def starts(inputs: Mapping[str, Iterable[TopicPartition]]) -> Starts:
    """Return the inputs of groups as a supervisor tells them to the loop."""
    return {place: (group, 0) for group, places in inputs.items() for place in places}


class Running:
    """The loop of a site in a thread, which has just taken over: of the process engine, or the operator on Spark."""

    def __init__(
        self,
        kafka: MemoryConnection,
        site: str,
        names: tuple[str, ...] = SITES,
        groups: tuple[str, ...] = ("g",),
        engine: str = PROCESS,
        *,
        is_deaf: bool = False,
    ) -> None:
        """`is_deaf`: the loop does not read the others' logs."""
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        neighbours = Neighbours(site, names, frozenset(names) - {site})
        inputs: dict[str, dict[TopicPartition, Input]] = {}
        for place in kafka.topics.partitions:
            topic = Topic.parse(place.topic)
            source = neighbours.input(topic, place.partition) if topic is not None else None
            if source is not None and topic is not None and (source.place or not is_deaf):
                inputs.setdefault(topic.group, {})[place] = source
        self.site = site
        self.changes: list[Taken] = []
        self.supervisor: Any = SimpleNamespace(raise_failure=lambda: None, changes=self._told, pipelines={})
        self.starts = starts(inputs)
        self.failed: list[str] = []
        self.why: list[str] = []
        self.supervisor.report_failure = self._report
        topics = {group: [forward(site, group).topic] for group in groups}
        states = take_over_groups(Claimer(kafka, site, agreement="isis"), topics)
        agreement = AgreementSettings(neighbours, SUSPECT_AFTER_MS)
        self.deciders: Any = Operators(kafka, agreement) if engine == SPARK else AgreeingSites(kafka, agreement)
        self.loop: Loop[Any] = Loop(kafka, site, self.deciders, self._stop)
        self.loop.take(Taken(states, self.starts))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _told(self) -> Iterator[Taken]:
        while self.changes:
            yield self.changes.pop(0)

    def _report(self, group: str, _: int, error: Exception) -> None:
        self.failed.append(group)
        self.why.append(str(error))

    def _run(self) -> None:
        try:
            self.loop.run(self.supervisor)
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.failure = error

    def end(self) -> None:
        self._stop.set()
        self._thread.join(10)
        self.loop.close()
        if isinstance(self.deciders, Operators):
            self.deciders.directory.cleanup()


@contextmanager
def running(
    kafka: MemoryConnection,
    *sites: str,
    names: tuple[str, ...] = SITES,
    groups: tuple[str, ...] = ("g",),
    engine: str = PROCESS,
    is_deaf: bool = False,
) -> Iterator[list[Running]]:
    with ExitStack() as stack:
        started = [Running(kafka, site, names, groups, engine, is_deaf=is_deaf) for site in sites]
        for each in started:
            stack.callback(each.end)
        yield started


def written(kafka: MemoryConnection, site: str, group: str = "g") -> list[Data]:
    with DataLog(kafka, group, site) as data:
        return [stored.data for stored in data.records(0, data.end())]


def effective(kafka: MemoryConnection, site: str, group: str = "g") -> list[Data]:
    """Return the site's order, without its epochs, which are its own."""
    reader = Reader()
    log = written(kafka, site, group)
    taken = [each for each in log if reader.accept(each.kind, each.epoch, each.seqno) is Verdict.TAKE]
    return [Data(**{**{name: getattr(each, name) for name in Data.__slots__}, "epoch": 0}) for each in taken]


def state_of(kafka: MemoryConnection, site: str) -> SiteState | None:
    """Return the state that the site's log tells."""
    with DataLog(kafka, "g", site) as data:
        return last_state(data, data.end())


def send(kafka: MemoryConnection, site: str, numbers: range, kind: str = MESSAGE, group: str = "g") -> None:
    for number in numbers:
        payload = b"%d" % number if kind == MESSAGE else b""
        kafka.topics.append(
            forward(site, group), f"{site}/alice".encode(), payload, forward_headers(1, number, kind=kind)
        )


def all_have(kafka: MemoryConnection, count: int, sites: tuple[str, ...] = SITES, *, without: str = "") -> list[Data]:
    """Wait until all have so many records, and the same. Records of the kind `without` do not count."""

    def counted(site: str) -> list[Data]:
        return [record for record in effective(kafka, site) if record.kind != without]

    eventually(lambda: all(len(counted(site)) >= count for site in sites), 60)
    first, *others = (counted(site) for site in sites)
    assert all(other == first for other in others)
    assert len(first) == count
    return first


@pytest.mark.slow
@each_engine
def test_all_sites_have_the_same_order(kafka: MemoryConnection, engine: str) -> None:
    """Messages of all sites, many at once and one by one, a bad one among them, and a member."""
    with running(kafka, *SITES, engine=engine) as loops:
        for site in SITES:
            send(kafka, site, range(1, 2), JOIN)
            send(kafka, site, range(2, 150))
        kafka.topics.append(forward("sfo"), b"nyc/mallory", b"", forward_headers(1, 1))
        all_have(kafka, 3 * 149, without=VIEW)  # a slow machine suspects silent members: there are more views then
        joined = [record for record in effective(kafka, "nyc") if record.kind == VIEW]
        assert len(joined) >= 3
        for number in range(150, 155):
            send(kafka, "nyc", range(number, number + 1))
            all_have(kafka, 2 * 149 + number, without=VIEW)
        assert [loop.failure for loop in loops] == [None] * 3
    dead = {site: kafka.topics.partitions[TopicPartition(str(Topic("g", "dead-letter", site)), 0)] for site in SITES}
    assert {site: len(letters) for site, letters in dead.items()} == {"nyc": 0, "sfo": 1, "lax": 0}


@pytest.mark.slow
@long_on_spark
def test_a_sender_is_forgotten_at_all_sites(kafka: MemoryConnection, engine: str) -> None:
    """By the order, each site drops the row, and takes no old record and no further one of that incarnation."""
    with running(kafka, *SITES, engine=engine):
        for site in SITES:
            send(kafka, site, range(1, 4))
        all_have(kafka, 9)
        assert forget_senders(kafka, "g", "sfo", [SenderRow("sfo/alice", 1, 3)]) == Forgotten(["sfo/alice"], [])
        send(kafka, "sfo", range(1, 6))
        send(kafka, "nyc", range(4, 5))
        assert [record.kind for record in all_have(kafka, 11) if record.kind != MESSAGE] == [FORGET]
        for site in SITES:
            with DataLog(kafka, "g", site) as data:
                received = data.state().received
            assert ("sfo/alice" in received, received["nyc/alice"], received["lax/alice"]) == (False, (1, 4), (1, 3))


@long_on_spark
def test_members_of_all_sites_are_in_one_view(kafka: MemoryConnection, engine: str) -> None:
    """The members deliver each other's messages under the same seqnos."""
    with running(kafka, *SITES, engine=engine), ExitStack() as stack:
        members = [stack.enter_context(Member("g", f"{site}/bob", connection=kafka)) for site in SITES]
        for member in members:
            member.connect(timeout=20)
        eventually(lambda: all(member.view and len(member.view.members) == 3 for member in members), 20)
        receipts = [member.broadcast(site.encode()) for member, site in zip(members, SITES, strict=True)]
        seqnos = sorted(receipt.result(20) for receipt in receipts)
        for member in members:
            taken = list(islice(member.deliveries(from_seqno=1, timeout=20), 3))
            assert [delivery.seqno for delivery in taken] == seqnos
            assert {(delivery.sender, delivery.payload) for delivery in taken} == {
                (f"{site}/bob", site.encode()) for site in SITES
            }


@pytest.mark.slow
def test_a_refused_write_ends_the_epoch(kafka: MemoryConnection) -> None:
    """Writes of entries and DATA are refused now and then: a takeover goes on, and the order is one."""
    with running(kafka, "sfo", "lax") as others:
        for attempt in range(6):
            with running(kafka, "nyc") as (nyc,):
                send(kafka, "nyc", range(attempt * 3 + 1, attempt * 3 + 4))
                send(kafka, "sfo", range(attempt * 2 + 1, attempt * 2 + 3))
                if attempt % 2:
                    kafka.topics.refuse(f"abcast.g.data.{'sfo' if attempt == 3 else 'nyc'}", 1)
                    eventually(lambda: nyc.failure or any(other.failure for other in others), 10)
                all_have(kafka, 5 * (attempt + 1)) if not attempt % 2 else None
            failed = [other for other in others if other.failure]
            for other in failed:
                assert isinstance(other.failure, WriteFailed)
                other.end()
                others[others.index(other)] = Running(kafka, other.site)
        with running(kafka, "nyc"):
            all_have(kafka, 30)
        for other in others:
            other.end()


@pytest.mark.slow
@long_on_spark
def test_the_others_go_on_and_the_site_comes_back(kafka: MemoryConnection, engine: str) -> None:
    """A site is away for long: when it is back it has all that was ordered, and its members' messages are ordered."""
    with running(kafka, "nyc", "sfo", engine=engine):
        with running(kafka, "lax", engine=engine):
            send(kafka, "lax", range(1, 4))
            all_have(kafka, 3)
        send(kafka, "lax", range(4, 6))
        send(kafka, "nyc", range(1, 4))
        all_have(kafka, 6, ("nyc", "sfo"))
        assert len(effective(kafka, "lax")) == 3
        with running(kafka, "lax", engine=engine):
            order = all_have(kafka, 8)
    assert [record.local_seqno for record in order if record.sender == "lax/alice"] == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_members_leave_with_their_site_and_are_back_with_it(kafka: MemoryConnection) -> None:
    """The others' view goes on without them, though they live. Their messages are ordered once, when the site is
    back.
    """
    addresses = [f"{site}/bob" for site in SITES]

    def is_seen_by(members: list[Member], *expected: str) -> bool:
        views = [member.view for member in members]
        return all(view is not None and sorted(view.members) == sorted(expected) for view in views)

    with ExitStack() as stack:
        stack.enter_context(running(kafka, "nyc", "sfo"))
        with running(kafka, "lax"):
            members = [stack.enter_context(Member("g", address, connection=kafka)) for address in addresses]
            for member in members:
                member.connect(timeout=20)
            eventually(lambda: is_seen_by(members, *addresses), 20)
        pending = [members[2].broadcast(b"%d" % number) for number in range(3)]
        eventually(lambda: is_seen_by(members[:2], *addresses[:2]), 20)
        assert members[0].broadcast(b"without lax").result(20)
        assert not any(receipt.done() for receipt in pending)
        stack.enter_context(running(kafka, "lax"))
        seqnos = [receipt.result(20) for receipt in pending]
        eventually(lambda: is_seen_by(members, *addresses), 20)
        members[0].wait_ordered(20)
        taken = list(islice(members[0].deliveries(from_seqno=1, timeout=20), 4))
        assert [delivery.payload for delivery in taken] == [b"without lax", b"0", b"1", b"2"]
        assert [delivery.seqno for delivery in taken[1:]] == seqnos
        for member in members:
            member.close(timeout=20)
    first, *others = (effective(kafka, site) for site in SITES)
    assert all(other == first for other in others)


@pytest.mark.slow
def test_a_minority_waits(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The site says so until it is in a majority again."""
    topics = [topic for topic in map(Topic.parse, {place.topic for place in kafka.topics.partitions}) if topic]
    monkeypatch.setattr(status, "find_topics", lambda _: topics)
    with running(kafka, "nyc"):
        send(kafka, "nyc", range(1, 2))
        eventually(lambda: (state := state_of(kafka, "nyc")) is not None and state.process.attempt is not None, 20)
        assert effective(kafka, "nyc") == []
        shown = status.read_status(kafka, "g", "nyc")
        assert shown.agreement is not None
        assert set(shown.agreement.silent) <= {"lax", "sfo"}
        assert shown.agreement[:3] == (1, ("lax", "nyc", "sfo"), True)
        eventually(lambda: (now := status.read_status(kafka, "g", "nyc").agreement) and len(now.silent) == 2, 20)
        assert (shown.lag, shown.is_stuck) == (1, True)
        with running(kafka, "lax"):
            all_have(kafka, 1, ("nyc", "lax"))
            shown = status.read_status(kafka, "g", "nyc")
            assert shown.agreement == status.AgreementStatus(2, ("lax", "nyc"), waits=False)
            assert shown.lag == 0


@each_engine
def test_what_breaks_the_protocol_is_told(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    topics = [topic for topic in map(Topic.parse, {place.topic for place in kafka.topics.partitions}) if topic]
    monkeypatch.setattr(status, "find_topics", lambda _: topics)
    for record in (Data(EPOCH, 1), Data(ENTRY, 1, local_seqno=1, payload=b"no entry")):
        kafka.topics.append(TopicPartition(str(Topic("g", "data", "sfo")), 0), *encode_data(record))
    with running(kafka, "nyc", engine=engine):
        send(kafka, "nyc", range(1, 2))
        eventually(lambda: (state := state_of(kafka, "nyc")) is not None and state.rejected == 1, 20)
        shown = status.read_status(kafka, "g", "nyc").agreement
    assert shown is not None
    assert shown.rejected == 1
    assert str(shown).endswith("1 inputs of other sites, which break the protocol")


@pytest.mark.slow
def test_exclusions_are_read_by_the_operator(kafka: MemoryConnection) -> None:
    """The operator reads them from EPOCH as they come, and from its beginning."""
    both = ("nyc", "sfo")
    with running(kafka, "nyc", names=both, engine=SPARK):
        send(kafka, "nyc", range(1, 3))
        eventually(lambda: state_of(kafka, "nyc"), 20)
        assert exclude(kafka, "g", "nyc", "sfo", 20).sites == ("nyc",)
        all_have(kafka, 2, ("nyc",))
        with running(kafka, "sfo", names=both, engine=SPARK):
            eventually(lambda: (state := state_of(kafka, "sfo")) and len(state.process.view.members) == 2, 20)
            with running(kafka, "nyc", names=both, engine=SPARK):
                send(kafka, "sfo", range(1, 3))
                all_have(kafka, 4, both)


@pytest.mark.slow
def test_one_engine_takes_over_from_the_other(kafka: MemoryConnection) -> None:
    """Engines change at each site in turn, several times, while messages are under way."""
    with ExitStack() as stack:
        sites = {site: stack.enter_context(running(kafka, site))[0] for site in SITES}
        for attempt in range(6):
            site, engine = SITES[attempt % 3], (SPARK, PROCESS)[(attempt // 3) % 2]
            for name in SITES:
                send(kafka, name, range(attempt * 40 + 1, attempt * 40 + 41))
            eventually(lambda attempt=attempt: len(effective(kafka, "nyc")) > attempt * 120, 60)  # type: ignore[misc]
            sites[site].end()
            sites[site] = stack.enter_context(running(kafka, site, engine=engine))[0]
        all_have(kafka, 6 * 120)
        assert [each.failure for each in sites.values()] == [None] * 3


@pytest.mark.slow
def test_what_was_left_out_is_read_when_there_is_room(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site on Spark waits for the other, and keeps no more than it may. Then it asks for a new query."""
    monkeypatch.setattr(kept_records, "BUFFER_BYTES", 20_000)
    monkeypatch.setattr(kept_records, "_MERGED_BYTES", 0)
    both = ("nyc", "sfo")
    with running(kafka, "nyc", names=both, engine=SPARK) as (nyc,):
        for first in range(1, 601, 20):
            send(kafka, "nyc", range(first, first + 20))
            steps = len(nyc.deciders.reports)
            eventually(lambda steps=steps: len(nyc.deciders.reports) > steps + 1, 20)  # type: ignore[misc]
        assert not any(report.has_room for report in nyc.deciders.reports)
        with running(kafka, "sfo", names=both):
            # A step may end with room whose records are not in DATA yet.
            eventually(lambda: nyc.deciders.reports[-1].has_room and effective(kafka, "nyc"), 60)
            assert len(effective(kafka, "nyc")) < 600
            monkeypatch.undo()
            with running(kafka, "nyc", names=both, engine=SPARK):
                order = all_have(kafka, 600, both)
    assert [record.local_seqno for record in order] == list(range(1, 601))


@each_engine
def test_a_site_alone_agrees_with_itself(kafka: MemoryConnection, engine: str) -> None:
    """Its proposals are final: a sequencer would write the same DATA, except for the entries."""
    alone = ("nyc",)
    with running(kafka, "nyc", names=alone, engine=engine):
        send(kafka, "nyc", range(1, 2), JOIN)
        send(kafka, "nyc", range(2, 100))
        kafka.topics.append(forward("nyc"), b"sfo/mallory", b"", forward_headers(1, 1))
        order = all_have(kafka, 100, alone)
    assert [record.seqno for record in order] == list(range(1, 101))
    assert [record.local_seqno for record in order if record.sender] == list(range(1, 100))
    with running(kafka, "nyc", names=alone, engine=engine):
        send(kafka, "nyc", range(90, 110))
        assert all_have(kafka, 110, alone)[:100] == order
    letters = kafka.topics.partitions[TopicPartition(str(Topic("g", "dead-letter", "nyc")), 0)]
    assert {letter.key for letter in letters} == {b"sfo/mallory"}


@pytest.mark.slow
@each_engine
def test_dead_letters_are_written_once(kafka: MemoryConnection, engine: str) -> None:
    """The site begins again and again, with and without new records, on either engine."""
    letters = kafka.topics.partitions[TopicPartition(str(Topic("g", "dead-letter", "nyc")), 0)]
    alone = ("nyc",)
    for number in range(1, 4):
        with running(kafka, "nyc", names=alone, engine=engine):
            kafka.topics.append(forward("nyc"), b"sfo/mallory", b"", forward_headers(1, number))
            eventually(lambda number=number: len(letters) >= number, 20)  # type: ignore[misc]
            eventually(lambda: (now := state_of(kafka, "nyc")) and now.complete == now.position, 20)
        with running(kafka, "nyc", names=alone):
            send(kafka, "nyc", range(number, number + 1))
            all_have(kafka, number, alone)
    assert len(letters) == 3


def append_unheard(*each: Any) -> int:
    """Write the record, and let the writer miss the answer."""
    append(*each)
    raise BrokerUnreachable("no broker answers.")


@pytest.mark.slow
def test_an_operator_excludes_a_site(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site of two goes on alone, though the command is cut off and repeated; the other comes back, both have
    one order, and EPOCH names the operator.
    """
    both = ("nyc", "sfo")
    with pytest.raises(UsageError, match="no entry"):
        exclude(kafka, "g", "nyc", "sfo", 0)
    with running(kafka, *both, names=both):
        send(kafka, "sfo", range(1, 3))
        all_have(kafka, 2, both)
    with running(kafka, "nyc", names=both) as (nyc,):
        send(kafka, "nyc", range(1, 3))
        send(kafka, "sfo", range(3, 4))
        with pytest.raises(UsageError, match="can't exclude itself"):
            exclude(kafka, "g", "nyc", "nyc", 0)
        with monkeypatch.context() as cut:
            cut.setattr("connectors.engine.exclusion.append", append_unheard)
            with pytest.raises(BrokerUnreachable):
                exclude(kafka, "g", "nyc", "sfo", 0, "sfo burns")
        told = exclude(kafka, "g", "nyc", "sfo", 0, "sfo burns")
        assert not told.is_done
        with DataLog(kafka, "g", "nyc") as data:
            data.epochs.read()
            assert [(act.act, act.why) for act in data.epochs.known.acts] == [("exclude", "sfo burns")] * 2
            nyc.changes.append(Taken(decisions={"g": data.epochs.known.exclusions}))
        assert exclude(kafka, "g", "nyc", "sfo", 20).sites == ("nyc",)
        all_have(kafka, 4, ("nyc",))
        with running(kafka, "sfo", names=both):
            order = all_have(kafka, 5, both)
    assert order[-1].sender == "sfo/alice"


def test_two_of_four_are_excluded_while_the_others_are_down(kafka: MemoryConnection) -> None:
    """Two commands, one after the other, in one view: the job that starts later carries out both."""
    four = (*SITES, "fra")
    kafka.create("g", "fra")
    with running(kafka, *four, names=four):
        send(kafka, "nyc", range(1, 3))
        all_have(kafka, 2, four)
    assert not any(exclude(kafka, "g", "nyc", gone, 0).is_done for gone in ("lax", "fra"))
    with running(kafka, "nyc", "sfo", names=four) as (nyc, _):
        with DataLog(kafka, "g", "nyc") as data:
            data.epochs.read()
            nyc.changes.append(Taken(decisions={"g": data.epochs.known.exclusions}))
        send(kafka, "nyc", range(3, 4))
        all_have(kafka, 3, ("nyc", "sfo"))


def test_a_sequencer_does_not_go_on_with_it(kafka: MemoryConnection) -> None:
    """A site that agrees does not go on with a sequencer's order either, nor with other sites."""
    with running(kafka, *SITES):
        send(kafka, "nyc", range(1, 2))
        all_have(kafka, 1)
    with pytest.raises(UsageError, match="mode 'isis'"):
        take_over(kafka, "g", "nyc")
    with pytest.raises(UsageError, match="other sites than nyc, sfo"):
        Running(kafka, "nyc", ("nyc", "sfo"))
    kafka.create("h", "nyc")
    take_over(kafka, "h", "nyc")
    with pytest.raises(UsageError, match="a sequencer has ordered"):
        take_over_groups(Claimer(kafka, "nyc", agreement="isis"), {"h": [str(Topic("h", "forward", "nyc"))]})


@pytest.mark.slow
@each_engine
def test_two_jobs_of_a_site(kafka: MemoryConnection, engine: str) -> None:
    """The older job is not told, and writes on: no site counts its records."""
    with running(kafka, *SITES, engine=engine) as (first, *_):
        send(kafka, "nyc", range(1, 3))
        all_have(kafka, 2)
        with running(kafka, "nyc", engine=engine):
            for number in range(3, 12):
                send(kafka, "nyc", range(number, number + 1))
                send(kafka, "sfo", range(number - 2, number - 1))
                all_have(kafka, 2 * number - 2)
        epochs = {record.epoch for record in written(kafka, "nyc") if record.kind == MESSAGE}
        assert len(epochs) == 2
        assert first.failure is None or isinstance(first.failure, Fenced)


def test_a_job_that_was_replaced_does_not_say_that_its_log_was_lost(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is told, it may read entries of its successor."""

    def read(*_: object, **__: object) -> None:
        raise ProtocolViolation("site sfo has read entry 4 of the log of nyc, which ends at 2 now")

    with running(kafka, "nyc") as (first,):
        take_over_groups(Claimer(kafka, "nyc", agreement="isis"), {"g": [forward("nyc").topic]})
        monkeypatch.setattr(Agreeing, "tick", read)
        eventually(lambda: first.failure, 10)
        assert isinstance(first.failure, Fenced)


def test_a_group_that_goes_and_comes_back_is_read_again(kafka: MemoryConnection) -> None:
    """The group is read from its state's position, also if the loop is told of both at once."""
    with running(kafka, *SITES) as loops:
        send(kafka, "nyc", range(1, 6))
        send(kafka, "sfo", range(1, 6))
        all_have(kafka, 10)
        states = take_over_groups(Claimer(kafka, "nyc", agreement="isis"), {"g": [forward("nyc").topic]})
        loops[0].changes += [Taken(gone=frozenset("g")), Taken(states, loops[0].starts)]
        eventually(lambda: not loops[0].changes, 10)
        send(kafka, "nyc", range(6, 8))
        send(kafka, "sfo", range(6, 8))
        all_have(kafka, 14)
        assert [loop.failure for loop in loops] == [None] * 3


def lose_log(kafka: MemoryConnection, site: str, *roles: Role) -> None:
    for place, records in kafka.topics.partitions.items():
        if place.topic in (str(Topic("g", role, site)) for role in roles):
            records.clear()


@each_engine
def test_a_site_whose_log_is_lost(kafka: MemoryConnection, engine: str) -> None:
    """The site no longer knows its promises. The others, and claims in EPOCH, tell that its log was longer."""
    with running(kafka, "sfo", "lax"):
        with running(kafka, "nyc"):
            send(kafka, "nyc", range(1, 3))
            all_have(kafka, 2)
        lose_log(kafka, "nyc", "data")
        with pytest.raises(HistoryChanged, match="was it deleted"):
            take_over_groups(Claimer(kafka, "nyc", agreement="isis"), {"g": [str(Topic("g", "forward", "nyc"))]})
        lose_log(kafka, "nyc", "epoch")
        with running(kafka, "nyc", engine=engine) as (nyc,):
            eventually(lambda: nyc.failure, 20)
            assert "was lost" in str(nyc.failure)


@pytest.mark.slow
@each_engine
def test_a_site_whose_log_is_lost_and_that_has_gone_on(kafka: MemoryConnection, engine: str) -> None:
    """The site hears no other, ends, begins again, and has a longer log than the lost one. No site reads that log."""
    with running(kafka, "sfo", "lax"), running(kafka, "nyc"):
        send(kafka, "nyc", range(1, 3))
        all_have(kafka, 2)
    before = state_of(kafka, "nyc")
    assert before is not None
    lose_log(kafka, "nyc", "data", "epoch")
    numbers = iter(range(3, 1_000))

    def has_grown(entries: int) -> bool:
        number = next(numbers)
        send(kafka, "nyc", range(number, number + 1))
        state = state_of(kafka, "nyc")
        return state is not None and state.number > entries

    for longer_than in (0, before.number // 2, before.number):
        with running(kafka, "nyc", engine=engine, is_deaf=True) as (nyc,):
            eventually(partial(has_grown, longer_than), 30, pause=0.1)
            assert nyc.failure is None
    with running(kafka, "sfo", "lax") as others:
        send(kafka, "sfo", range(1, 3))
        with running(kafka, "nyc", engine=engine) as (nyc,):
            eventually(lambda: nyc.failure, 20)
            assert "was lost" in str(nyc.failure)
        assert [other.failure for other in others] == [None, None]
        all_have(kafka, 4, ("sfo", "lax"))


def test_sites_that_were_told_of_other_sites(kafka: MemoryConnection) -> None:
    with running(kafka, "nyc") as (nyc,), running(kafka, "sfo", names=("nyc", "sfo")) as (sfo,):
        send(kafka, "nyc", range(1, 3))
        eventually(lambda: nyc.failure or sfo.failure, 20)
        assert "give both the same sites' file" in str(nyc.failure or sfo.failure)


@each_engine
def test_what_nobody_of_the_agreement_wrote_is_dropped(kafka: MemoryConnection, engine: str) -> None:
    with running(kafka, *SITES, engine=engine) as loops:
        data = TopicPartition(str(Topic("g", "data", "sfo")), 0)
        for header in (b"rubbish", b"2 entry - 1 - 9 - -", b"2 entry - x - 1 - - -", b"2 entry - 7 - 1 - - -"):
            kafka.topics.append(data, None, b"{}", [("abcast", header)])
        send(kafka, "sfo", range(1, 4))
        all_have(kafka, 3, ("nyc", "lax"))
        assert all(loop.failure is None for loop in loops)


def test_the_last_group_that_goes_is_read_no_more(kafka: MemoryConnection) -> None:
    place, names = forward("nyc"), Neighbours("nyc", ("nyc",), frozenset())
    loop = Loop(kafka, "nyc", AgreeingSites(kafka, AgreementSettings(names)), threading.Event())
    states = take_over_groups(Claimer(kafka, "nyc", agreement="isis"), {"g": [place.topic]})
    loop.take(Taken(states, starts({"g": [place]})))
    loop.step()
    assert loop._intake.positions
    loop.take(Taken(gone=frozenset({"g"})))
    send(kafka, "nyc", range(1, 4))
    loop.step()
    assert not loop._intake.positions
    loop.close()


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 7, 512])
def test_the_log_read_back_tells_what_it_tells_from_its_beginning(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """The log has several epochs, with entries without a snapshot, and with one that a fenced job left behind."""
    monkeypatch.setattr(entries, "_FIRST_WINDOW", window)
    monkeypatch.setattr(Loop, "finish", lambda _: None)  # each job is killed
    with running(kafka, "sfo", "lax"):
        for attempt in range(4):
            with running(kafka, "nyc"):
                send(kafka, "nyc", range(attempt + 1, attempt + 2))
                all_have(kafka, attempt + 1)
    log = [record for record in written(kafka, "nyc") if record.kind in (ENTRY, EPOCH)]
    left = next(record for record in log if record.kind == ENTRY and record.local_seqno > 2)
    kafka.topics.append(TopicPartition(str(Topic("g", "data", "nyc")), 0), *encode_data(left))
    expected = told(counting([*log, left], read_entry))
    assert expected.base < expected.number
    assert state_of(kafka, "nyc") == expected


@pytest.mark.parametrize("log", [(), (Data(ENTRY, 1, local_seqno=1, payload=b"no entry"),)])
def test_a_group_that_comes_later_and_can_not_go_on_ends_no_other(
    kafka: MemoryConnection, log: tuple[Data, ...]
) -> None:
    """A group of another kind: it has an order, and no entry of an agreement, or none that can be read."""
    kafka.create("h", "nyc")
    for record in log:
        kafka.topics.append(TopicPartition(str(Topic("h", "data", "nyc")), 0), *encode_data(record))
    with running(kafka, *SITES) as loops:
        loops[0].changes.append(Taken({"h": SequencerState("h", epoch=1, seqno=3)}))
        eventually(lambda: loops[0].failed == ["h"], 10, "the next attempt does not fail for it")
        assert "entry" in loops[0].why[0]
        send(kafka, "nyc", range(1, 3))
        all_have(kafka, 2)
        assert loops[0].failure is None


def supervisor_of(kafka: MemoryConnection, sites: tuple[str, ...], finder: Any) -> SiteSupervisor:
    state = JobState(finder, SuspendedGroups("sequence"))
    return SiteSupervisor(EngineOptions(kafka, "nyc"), state, AgreementSettings(Neighbours("nyc", sites)))


def test_a_group_of_a_sequencer_keeps_nobody_from_the_others(
    kafka: MemoryConnection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job starts beside the group and says so; alone with it, it does not start."""
    kafka.create("h", "nyc")
    take_over(kafka, "h", "nyc")
    monkeypatch.setattr("connectors.engine.takeovers.check_topics", lambda *_: None)
    roles: tuple[Role, ...] = ("forward", "data", "epoch")
    topics = {Topic(group, role, "nyc"): 1 for group in "gh" for role in roles}
    finder: Any = SimpleNamespace(find=lambda **_: list(topics), count_partitions=lambda: topics)
    suspended = SuspendedGroups("sequence")
    agreement = AgreementSettings(Neighbours("nyc", SITES))
    state = JobState(finder, suspended)
    with closing(SiteSupervisor(EngineOptions(kafka, "nyc"), state, agreement)) as supervisor:
        assert list(supervisor.take_all().states) == ["g"]
        assert "a sequencer has ordered" in caplog.text
        assert list(suspended.reasons) == ["h"]
    for role in roles:
        del topics[Topic("g", role, "nyc")]
    with (
        closing(supervisor_of(kafka, SITES, finder)) as supervisor,
        pytest.raises(UsageError, match="a sequencer has ordered"),
    ):
        supervisor.take_all()


def test_a_job_with_other_sites_stops_nobody(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job whose group was begun with other sites ends before its claim, which would fence the serving job."""
    monkeypatch.setattr("connectors.engine.takeovers.check_topics", lambda *_: None)
    roles: tuple[Role, ...] = ("forward", "data", "epoch")
    topics = {Topic("g", role, "nyc"): 1 for role in roles}
    finder: Any = SimpleNamespace(find=lambda **_: list(topics), count_partitions=lambda: topics)
    with running(kafka, *SITES), DataLog(kafka, "g", "nyc") as data:
        send(kafka, "nyc", range(1, 2))
        all_have(kafka, 1)
        before = data.epochs.read().newest_claim
        with (
            closing(supervisor_of(kafka, SITES[:2], finder)) as supervisor,
            pytest.raises(UsageError, match="other sites than nyc, sfo"),
        ):
            supervisor.take_all()
        assert data.epochs.read().newest_claim == before


@pytest.mark.slow
def test_nobody_is_told_that_a_group_is_alive_that_was_left(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor gives no sign of life for it, until it is due again."""
    kafka.create("h", "nyc")
    monkeypatch.setattr("connectors.engine.takeovers.check_topics", lambda *_: None)
    roles: tuple[Role, ...] = ("forward", "data", "epoch")
    topics = {Topic(group, role, "nyc"): 1 for group in "gh" for role in roles}
    finder: Any = SimpleNamespace(find=lambda **_: list(topics), count_partitions=lambda: topics)
    with closing(supervisor_of(kafka, SITES, finder)) as supervisor:
        assert sorted(supervisor.take_all().states) == ["g", "h"]
        signs: list[Mapping[str, int]] = []
        monkeypatch.setattr(supervisor._maintenance._signs, "give", lambda epochs, *_: signs.append(epochs))
        monkeypatch.setattr(supervisor._maintenance, "tick", lambda *_: None)
        supervisor._look()
        supervisor.report_failure("h", 1, ProtocolViolation("it can't go on."))
        supervisor._look()
        assert signs == [{"g": 1, "h": 1}, {"g": 1}]
        assert list(supervisor.changes()) == []
        assert list(supervisor._maintenance.forward) == ["g"]

        def is_back() -> bool:
            supervisor._look()
            supervisor._finish_takeovers()
            return list(supervisor._maintenance.forward) == ["g", "h"]

        eventually(is_back, 20)


def test_a_suspended_group_that_is_made_anew_is_taken_at_once(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait was that of the former group."""
    kafka.create("h", "nyc")
    monkeypatch.setattr("connectors.engine.takeovers.check_topics", lambda *_: None)
    monkeypatch.setattr(SuspendedGroups.__init__, "__defaults__", ((300.0,),))
    roles: tuple[Role, ...] = ("forward", "data", "epoch")
    topics = {Topic(group, role, "nyc"): 1 for group in "gh" for role in roles}
    finder: Any = SimpleNamespace(find=lambda **_: list(topics), count_partitions=lambda: topics)
    with closing(supervisor_of(kafka, SITES, finder)) as supervisor:
        supervisor.report_failure("h", supervisor.take_all().states["h"].epoch, ProtocolViolation("it failed."))
        supervisor._look()
        assert list(supervisor._state.suspended.reasons) == ["h"]
        of_h = {topic: 1 for topic in topics if topic.group == "h"}
        for topic in of_h:
            del topics[topic]
        supervisor._look()
        topics |= of_h

        def is_back() -> bool:
            supervisor._look()
            supervisor._finish_takeovers()
            return list(supervisor._maintenance.forward) == ["g", "h"]

        eventually(is_back, 20)


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_failure_of_an_earlier_epoch_suspends_no_group(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, *, comes_back: bool
) -> None:
    """The loop fails with a group just when the supervisor has taken it again, or has found that it is gone."""
    kafka.create("h", "nyc")
    monkeypatch.setattr("connectors.engine.takeovers.check_topics", lambda *_: None)
    roles: tuple[Role, ...] = ("forward", "data", "epoch")
    topics = {Topic(group, role, "nyc"): 1 for group in "gh" for role in roles}
    finder: Any = SimpleNamespace(find=lambda **_: list(topics), count_partitions=lambda: topics)
    with closing(supervisor_of(kafka, SITES, finder)) as supervisor:
        epoch = supervisor.take_all().states["h"].epoch
        del topics[Topic("h", "forward", "nyc")]
        supervisor._look()
        assert list(supervisor._maintenance.forward) == ["g"]
        if comes_back:
            topics[Topic("h", "forward", "nyc")] = 1

            def is_back() -> bool:
                supervisor._look()
                supervisor._finish_takeovers()
                return list(supervisor._maintenance.forward) == ["g", "h"]

            eventually(is_back, 20)
        maintained = list(supervisor._maintenance.forward)
        supervisor.report_failure("h", epoch, ProtocolViolation("it failed."))
        supervisor._look()
        assert list(supervisor._maintenance.forward) == maintained
        assert not supervisor._state.suspended.reasons


@pytest.mark.slow
def test_a_group_that_retention_has_hit_ends_no_other(kafka: MemoryConnection) -> None:
    """A site was away for so long that records of one of two groups are gone which it has to put into DATA."""
    groups = ("g", "h")
    for site in SITES:
        kafka.create("h", site)
    with running(kafka, "nyc", "sfo", groups=groups):
        with running(kafka, "lax", groups=groups):
            for group in groups:
                send(kafka, "nyc", range(1, 3), group=group)
            eventually(lambda: all(len(effective(kafka, "lax", group)) == 2 for group in groups), 20)
        for group in groups:
            send(kafka, "nyc", range(3, 6), group=group)
        eventually(lambda: all(len(effective(kafka, "sfo", group)) == 5 for group in groups), 20)
        kafka.topics.drop(forward("nyc").topic, 4)
        with running(kafka, "lax", groups=groups) as (lax,):
            eventually(lambda: len(effective(kafka, "lax", "h")) == 5, 20)
            eventually(lambda: lax.failed == ["g"], 20)
            assert "retention has dropped some of it here" in lax.why[0]
            send(kafka, "lax", range(1, 2), group="h")
            eventually(lambda: all(len(effective(kafka, site, "h")) == 6 for site in SITES), 20)
            assert lax.failure is None
        assert len(effective(kafka, "lax")) == 2
        with running(kafka, "lax") as (lax,):
            eventually(lambda: isinstance(lax.failure, HistoryUnavailable), 20)


@pytest.mark.slow
@long_on_spark
@pytest.mark.parametrize("sites", [("nyc",), SITES], ids=["alone", "three"])
def test_what_all_have_in_data_may_be_dropped_between_two_starts(
    kafka: MemoryConnection, sites: tuple[str, ...], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few messages, then silence: a stop leaves a snapshot of them, and so does some time of work before a kill."""
    if engine == SPARK:
        monkeypatch.setattr("ordering.agreement.sites.own_log.SNAPSHOT_AFTER_MS", 200)
    for start in range(1, 7, 3):
        with running(kafka, *sites, names=sites, engine=engine) as loops:
            for site in sites:
                send(kafka, site, range(start, start + 3))
            all_have(kafka, len(sites) * (start + 2), sites)
            if engine == SPARK:
                eventually(lambda: all(is_in_a_snapshot(kafka, site) for site in sites), 20)
            assert [loop.failure for loop in loops] == [None] * len(sites)
        assert all(is_in_a_snapshot(kafka, site) for site in sites)
        for site in sites:
            kafka.drop(Topic("g", "forward", site))
    with running(kafka, *sites, names=sites, engine=engine) as loops:
        send(kafka, "nyc", range(7, 8))
        all_have(kafka, 6 * len(sites) + 1, sites)
        assert [loop.failure for loop in loops] == [None] * len(sites)


def is_in_a_snapshot(kafka: MemoryConnection, site: str) -> bool:
    """Whether a snapshot has all that is ordered."""
    state = state_of(kafka, site)
    return state is not None and not state.since and state.sequenced == state.position


def test_what_was_never_ordered_may_be_dropped_too(kafka: MemoryConnection) -> None:
    """The sender sends the message again, and no run names the dropped one."""
    send(kafka, "nyc", range(1, 4))
    kafka.drop(Topic("g", "forward", "nyc"))
    with running(kafka, *SITES) as loops:
        send(kafka, "nyc", range(1, 4))
        all_have(kafka, 3)
        assert [loop.failure for loop in loops] == [None] * 3


def go_on_without_lax(kafka: MemoryConnection) -> None:
    """Order two messages everywhere, and three more while lax is away."""
    with running(kafka, "nyc", "sfo"):
        with running(kafka, "lax"):
            send(kafka, "nyc", range(1, 3))
            all_have(kafka, 2)
        send(kafka, "nyc", range(3, 6))
        all_have(kafka, 5, ("nyc", "sfo"))


@pytest.mark.slow
def test_records_that_are_gone_before_they_were_ordered_everywhere_are_missed_at_once(kafka: MemoryConnection) -> None:
    """The site notices without a later record behind them."""
    go_on_without_lax(kafka)
    kafka.drop(Topic("g", "forward", "nyc"))
    with running(kafka, *SITES) as (nyc, sfo, lax):
        eventually(lambda: isinstance(lax.failure, HistoryUnavailable), 20)
        assert "dropped some of it here, and DATA may lack it" in str(lax.failure)
        assert (nyc.failure, sfo.failure) == (None, None)


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_copy_that_was_made_anew_ends_the_work_before_anything_of_it_is_in_data(is_whole: bool) -> None:
    """The mark of the old copy names an offset at which the new copy has another record."""
    place = "abcast.g.forward.nyc-0"
    run = OrderedRun(101, ProcessIncarnation("nyc"), run_of((Range(place, 100, 160),)))
    begun = first_state("g", "sfo", ("nyc", "sfo"))
    here = Place(place, 160, 160, 160, (CopyMark(100, 150), CopyMark(160, 210)))
    told = {place: ReadReport(place, 0, 160)}
    known = replace(begun, position=160, sequenced=100, since=deque([run]), places={place: here}, told=told)
    machine = Agreeing(after_takeover(known, SequencerState("g", epoch=2)))
    copy = TopicPartition(str(Topic("g", "relayed", "sfo", "nyc")), 0)
    machine.sources[copy] = Input("nyc", place, is_copy=True)
    start = machine.group.start_of(place, 0, is_copy=True)
    name, text = forward_headers(1, 1)[0]
    for offset in range(100 if is_whole else start, 170):
        headers = [(name, text + f" nyc/{place}:{offset} - 5".encode())]
        machine.take(copy, [PlainRecord(copy.topic, 0, offset, 1, b"nyc/m%d" % offset, b"", headers)])
    if is_whole:
        assert len(next_run(machine)) == 60
        return
    with pytest.raises(Disagreement, match="site nyc has read 60 records of it, and sfo 10"):
        next_run(machine)


@pytest.mark.parametrize("beginning", [80, 100])
def test_what_is_gone_of_what_was_read_and_not_submitted_is_in_no_run(beginning: int) -> None:
    """A site that was cut off has read more than it has submitted. Other sites have copies of records that are
    gone here.
    """
    begun, name = first_state("g", "nyc", ("nyc", "sfo")), "abcast.g.forward.nyc-0"
    places = {name: Place(name, 100, 50, 50, (CopyMark(40, 40),))}
    known = replace(begun, position=50, sequenced=50, places=places)
    machine = Agreeing(after_takeover(known, SequencerState("g", epoch=2)))
    machine.sources[forward("nyc")] = Input("nyc", name)
    assert machine.group.start_of(name, beginning, is_copy=False) == beginning
    records = [PlainRecord("abcast.g.forward.nyc", 0, at, 9, b"", b"", []) for at in range(beginning, 101)]
    for read in (records[:-1], records[-1:]):
        machine.take(forward("nyc"), read)
        next_run(machine)
    assert [told[1:] for told in machine.group.site.state.told.values()] == [(beginning, 101, ())]


@long_on_spark
def test_offsets_without_records_are_the_same_at_all_sites(kafka: MemoryConnection, engine: str) -> None:
    """A site that submits a run names the offsets without records, as of transactions; the others have none there."""
    with running(kafka, "nyc", "sfo", engine=engine) as before:
        with running(kafka, "lax", engine=engine):
            for start in range(1, 60, 3):
                send(kafka, "nyc", range(start, start + 3))
                kafka.topics.mark(forward("nyc"))
            all_have(kafka, 60)
        send(kafka, "nyc", range(61, 63))
        with running(kafka, "lax", engine=engine) as after:
            all_have(kafka, 62)
            assert [loop.failure for loop in (*before, *after)] == [None] * 3
    state = state_of(kafka, "sfo")
    assert state is not None
    assert state.told[f"{forward('nyc').topic}-0"].end == 82


@pytest.mark.slow
@long_on_spark
def test_heartbeats_alone_are_ordered_now_and_then_and_a_message_at_once(kafka: MemoryConnection, engine: str) -> None:
    """Heartbeats alone make a run in a quarter of the suspicion time, however many come."""
    with running(kafka, *SITES, engine=engine) as loops:
        send(kafka, "nyc", range(1, 2), JOIN)
        send(kafka, "nyc", range(2, 3))
        all_have(kafka, 3)
        began, before = time.monotonic(), len([each for each in written(kafka, "nyc") if each.kind == ENTRY])
        for number in range(120):
            send(kafka, "nyc", range(3 + number, 4 + number), HEARTBEAT)
            time.sleep(0.02)
        taken_s = time.monotonic() - began
        entries_written = len([each for each in written(kafka, "nyc") if each.kind == ENTRY]) - before
        runs = 1 + taken_s / (SUSPECT_AFTER_MS / 4000)
        assert entries_written < 12 * runs, "it would be some hundred"
        send(kafka, "nyc", range(3, 4))
        all_have(kafka, 4)
        assert [loop.failure for loop in loops] == [None] * 3


@pytest.mark.slow
def test_what_is_gone_of_another_log_is_missed_aloud(kafka: MemoryConnection) -> None:
    """A site that went on behind it would take no record of that log any more, and wait for ever."""
    go_on_without_lax(kafka)
    kafka.drop(Topic("g", "data", "sfo"))
    agreement = AgreementSettings(Neighbours("lax", SITES, frozenset({"nyc", "sfo"})))
    states = take_over_groups(Claimer(kafka, "lax", agreement="isis"), {"g": [forward("lax").topic]})
    with (
        closing(Loop(kafka, "lax", AgreeingSites(kafka, agreement), threading.Event())) as loop,
        pytest.raises(HistoryUnavailable, match="lax has read the log of sfo up to offset"),
    ):
        loop.take(Taken(states, starts({"g": [TopicPartition(str(Topic("g", "data", "sfo")), 0)]})))


@pytest.mark.slow
def test_care_deletes_nothing_that_a_site_needs(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a site is away, the others delete dead letters, and no FORWARD."""

    def delete(below: Mapping[TopicPartition, int]) -> None:
        for place, offset in below.items():
            kafka.topics.drop(place.topic, offset)

    monkeypatch.setattr(sequencer, "SNAPSHOT_EVERY_RECORDS", 10)
    names = [place.topic for place in kafka.topics.partitions]
    admin = SimpleNamespace(
        list_topics=lambda: names, describe_log_dirs=lambda _: [], delete_records=delete, close=lambda: None
    )
    monkeypatch.setattr(MemoryConnection, "admin", lambda _: nullcontext(admin))
    with running(kafka, "nyc", "sfo"):
        with running(kafka, "lax"):
            send(kafka, "lax", range(1, 3))
            all_have(kafka, 2)
        send(kafka, "lax", range(3, 5))
        send(kafka, "nyc", range(1, 50))
        kafka.topics.append(forward("nyc"), b"sfo/mallory", b"", forward_headers(1, 1))
        all_have(kafka, 51, ("nyc", "sfo"))
        send(kafka, "nyc", range(50, 60))
        all_have(kafka, 61, ("nyc", "sfo"))
        time.sleep(0.01)
        purged = [each for site in SITES for each in purge_group(kafka, "g", site, dead_letters_s=0.001)]
        assert {each.topic: each.records for each in purged if each.records} == {
            str(Topic("g", "dead-letter", "nyc")): 1
        }
        with running(kafka, "lax"):
            all_have(kafka, 63)


def test_records_that_come_while_data_is_on_its_way_are_in_the_next_entry(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise they would wait for the entry after that: a step more, at each site that an answer passes."""
    monkeypatch.setattr("connectors.engine.loop.STEP_S", 1_000.0)  # no step without records
    alone = AgreementSettings(Neighbours("nyc", ("nyc",), frozenset()), SUSPECT_AFTER_MS)
    states = take_over_groups(Claimer(kafka, "nyc", agreement="isis"), {"g": [forward("nyc").topic]})
    loop: Loop[Any] = Loop(kafka, "nyc", AgreeingSites(kafka, alone), threading.Event())
    loop.take(Taken(states, {forward("nyc"): ("g", 0)}))
    supervisor: Any = SimpleNamespace(raise_failure=lambda: None, changes=lambda: (), pipelines={})
    machine = loop._groups["g"].machine

    def turn_until(is_so: Callable[[], object]) -> None:
        for _ in range(100):
            if is_so():
                return
            loop.turn(supervisor)
        raise AssertionError

    def last_entry() -> int:
        return max((each.local_seqno for each in written(kafka, "nyc") if each.kind == ENTRY), default=0)

    with closing(loop):
        send(kafka, "nyc", range(1, 2))
        turn_until(last_entry)
        first = last_entry()
        kafka.topics.take_away("abcast.g.data.nyc", WRITES)
        turn_until(lambda: not machine.is_due)
        send(kafka, "nyc", range(2, 3))
        turn_until(lambda: machine.is_due)
        send(kafka, "nyc", range(3, 4))
        kafka.topics.bring_back("abcast.g.data.nyc")
        turn_until(lambda: len(effective(kafka, "nyc")) == 3)
        assert last_entry() == first + 1


def test_what_is_in_the_snapshot_is_read_over_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark may be far below the first needed record: the records between would exceed the site's limit."""
    monkeypatch.setattr(agreeing, "OWN_BYTES", 2_000)
    place = forward("nyc")
    begun, name, run = first_state("g", "nyc", SITES), "abcast.g.forward.nyc-0", run_of((Range("x-0", 0, 1),))
    places = {name: Place(name, 90, 90, 90, (CopyMark(0, 0),)), "x-0": Place("x-0", 1, 0, 1)}
    since = (OrderedRun(90, begun.process.me, run_of((Range(name, 80, 90),))), OrderedRun(100, begun.process.me, run))
    known = replace(begun, position=100, sequenced=89, since=deque(since), places=places)
    machine = Agreeing(after_takeover(known, SequencerState("g", 1)))
    machine.sources[place] = Input("nyc", name)
    assert machine.group.start_of(name, 0, is_copy=False) == 0
    records = [PlainRecord(place.topic, 0, offset, 9, b"", b"", []) for offset in range(90)]
    machine.take(place, records[:80])
    assert machine.wants(place)
    machine.take(place, records[80:89])
    monkeypatch.setattr(agreeing, "OWN_BYTES", 1_000)
    assert machine.wants(place), "the next run is larger, and has one more"
    machine.take(place, records[89:])
    assert not machine.wants(place)
    assert next_run(machine)
    assert machine.writes() is None
    assert machine.wants(place)


def test_what_is_told_of_a_run_takes_no_look_at_all_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that waits has very many chunks in its spill store, and each run has some records of one or two."""
    monkeypatch.setattr(kept_records, "_MERGED_BYTES", 0)
    read: list[int] = []
    get = SpillStore.get

    def counted(spill: SpillStore, number: int) -> bytes:
        read.append(number)
        return get(spill, number)

    monkeypatch.setattr(SpillStore, "get", counted)
    place, alone = f"{forward('nyc').topic}-0", Neighbours("nyc", ("nyc",))
    group = after_takeover(first_state("g", "nyc", ["nyc"]), SequencerState("g", epoch=1))
    step = GroupStep(begun(group), alone, SpillStore(tmp_path, "query"))
    rows = pd.DataFrame([dict.fromkeys(kept_records._KEPT.names)] * 10)
    for first in range(0, 200, 10):
        step.kept.add(place, rows.assign(offset=range(first, first + 10)))
    for first, end, chunks in ((0, 10, 1), (95, 115, 3), (199, 300, 1), (300, 301, 1)):
        again = GroupStep(step.stored(), alone, SpillStore(tmp_path, "query"))
        found = again.kept.offsets(Range(place, first, end))
        assert [offset for offset, _ in found] == list(range(first, min(end, 200)))
        assert len(read) <= chunks
        read.clear()


def test_written_data_is_counted_in_seqnos() -> None:
    """A later version's record may take several. Spark leaves out the same records."""
    data = [
        Data("later", 2, 5, payload=b"x", count=3),
        Data(MESSAGE, 2, 8, sender="nyc/a", incarnation=1, local_seqno=1, source=Source("f", 0, 0)),
        Data(MESSAGE, 2, 9, sender="nyc/a", incarnation=1, local_seqno=2, source=Source("f", 0, 1)),
    ]
    outputs: list[Output] = [("abcast.g.data.nyc", encode_data(each)) for each in data]
    dead_letter: Output = ("abcast.g.dead-letter.nyc", (None, b"", []))
    missing = partial(_Buffers("g", "nyc")._missing, [dead_letter, *outputs])
    assert list(missing(8, True)) == [dead_letter, outputs[2]]
    assert list(missing(7, False)) == outputs[1:]
    assert list(missing(0, False)) == outputs
