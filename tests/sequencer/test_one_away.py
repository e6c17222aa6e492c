"""A part of one group's partition is away: the other groups are taken over and maintained all the same."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.codec.inputs import Neighbours
from connectors.kafka.codec.plain_record import UNREAD_HEADER
from connectors.kafka.connection.sending import append_all
from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.groups.troubles import SEQUENCER, Troubles
from connectors.kafka.groups.unservable_groups import UnservableGroups
from connectors.kafka.log.beats import Beats
from connectors.kafka.log.sign_of_life import SIGN_EVERY_S, read_signs
from connectors.kafka.transport import kafka_python
from connectors.relay.agreed import Agreed
from connectors.relay.spark.job import SparkRelay
from connectors.sequencer.agreeing_shard import AgreeingShard
from connectors.sequencer.shard import SequencerShard
from connectors.spark.job import BatchTooLarge, JobOptions
from connectors.spark.progress import BatchReport
from connectors.takeover.agreement import ISIS, AgreementSettings
from connectors.takeover.feud import seconds_for_rival
from connectors.takeover.group_maintenance import GroupMaintenance
from connectors.takeover.groups import positions_of
from connectors.takeover.rows import Output, OutputTopics, by_rows
from connectors.takeover.takeover import Claimer, Takeover, take_over, take_over_groups
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.memory_topics import OFFSETS, READS, WRITES
from ordering.agreement.group import Group
from ordering.agreement.site_state import CopyMark
from ordering.base.errors import AbcastError, BrokerUnreachable, KafkaRefused, UsageError
from ordering.base.names import Role, Topic
from ordering.base.records import Partition
from ordering.sequencer.state import SequencerState
from tests.waiting import eventually

GROUPS = ("away", "fine", "other")
ROLES: tuple[Role, ...] = ("data", "epoch", "forward")
PARTS = [(READS,), (WRITES,), (OFFSETS,), ()]
SLOW_S = 3.0
"""Time that a client waits for a partition that is away. A client that does not wait takes less, on any machine."""


def name(role: Role, group: str = "away") -> str:
    return str(Topic(group, role, "nyc"))


FORWARD = {group: [name("forward", group)] for group in GROUPS}


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> MemoryConnection:
    connection = MemoryConnection(timeout=SLOW_S)
    for group in GROUPS:
        connection.create(group, "nyc")
    take_over_groups(Claimer(connection, "nyc"), FORWARD)  # there is something to read
    connection.topics.silence_s = SLOW_S
    monkeypatch.setattr("connectors.takeover.takeover._WRITTEN_S", SLOW_S)
    return connection


@pytest.mark.slow
@pytest.mark.parametrize("what", PARTS)
@pytest.mark.parametrize("role", ROLES)
def test_a_takeover(kafka: MemoryConnection, role: Role, what: tuple[str, ...]) -> None:
    """The others are served without a wait; the one fails when its time is over, unless it needs no answer."""
    kafka.topics.take_away(name(role), *what)
    started, found, took = time.monotonic(), dict[str, SequencerState | AbcastError](), dict[str, float]()
    with closing(Takeover(Claimer(kafka, "nyc"), FORWARD)) as takeover:
        while takeover.is_running:
            for group, result in takeover.results(0.1).items():
                found[group], took[group] = result, time.monotonic() - started
    for group in ("fine", "other"):
        assert isinstance(found[group], SequencerState)
        assert took[group] < SLOW_S
    needed = role != "forward" or OFFSETS in what or not what
    assert isinstance(found["away"], BrokerUnreachable if needed else SequencerState)
    assert what or took["away"] < SLOW_S, "that it has no leader is known at once"


@pytest.mark.slow
@pytest.mark.parametrize("what", PARTS)
def test_the_look_for_a_rival(kafka: MemoryConnection, what: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A group without an answer delays no start."""
    monkeypatch.setattr("connectors.takeover.feud.find_groups", lambda *_: list(GROUPS))
    kafka.topics.take_away(name("epoch"), *what)
    started = time.monotonic()
    assert not seconds_for_rival(kafka, "nyc"), "there is no rival"
    assert time.monotonic() - started < SLOW_S


@pytest.mark.parametrize("role", ROLES)
def test_a_takeover_of_all_or_none(kafka: MemoryConnection, role: Role) -> None:
    """An error that is found before the claims fences no sequencer."""
    kafka.topics.take_away(name(role))
    before = len(kafka.topics.partitions[TopicPartition(name("epoch", "fine"), 0)])
    with pytest.raises(UnservableGroups) as unservable:
        take_over_groups(Claimer(kafka, "nyc"), FORWARD)
    assert {group: type(error) for group, error in unservable.value.errors.items()} == {"away": BrokerUnreachable}
    assert len(kafka.topics.partitions[TopicPartition(name("epoch", "fine"), 0)]) == before
    kafka.topics.bring_back(name(role))
    assert list(take_over_groups(Claimer(kafka, "nyc"), FORWARD)) == list(GROUPS)


def test_a_claim_of_which_nothing_was_heard_is_no_rival_of_ours(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim may be written although it was given up."""
    monkeypatch.setattr("connectors.takeover.takeover._WRITTEN_S", 0.1)
    claimed: dict[str, int] = {}
    take_over(kafka, "away", "nyc", claimed=claimed)
    kafka.topics.take_away(name("epoch"), WRITES)
    monkeypatch.setattr("connectors.testing.memory_clients.MemoryProducer.abandon", lambda _: None)
    with pytest.raises(BrokerUnreachable):
        take_over(kafka, "away", "nyc", claimed=claimed)
    kafka.topics.bring_back(name("epoch"))
    assert take_over(kafka, "away", "nyc", claimed=claimed).epoch == claimed["away"]


@pytest.mark.parametrize("raw", [b"\x00", b"garbage" * 99])
def test_a_snapshot_that_can_not_be_read(kafka: MemoryConnection, raw: bytes) -> None:
    data = TopicPartition(name("data"), 0)
    newest = max(len(kafka.topics.partitions[data]) - 1, 0)
    stored = kafka.topics.partitions[data][newest]
    kafka.topics.partitions[data][newest] = stored._replace(value=raw)
    with pytest.raises(UnservableGroups) as unservable:
        take_over_groups(Claimer(kafka, "nyc"), FORWARD)
    assert list(unservable.value.errors) == ["away"]
    assert "away" in str(unservable.value)


def test_a_state_that_no_record_can_have(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is found before the claim."""
    monkeypatch.setattr("connectors.takeover.survey.MAX_SNAPSHOT_BYTES", 10)
    before = len(kafka.topics.partitions[TopicPartition(name("epoch"), 0)])
    with pytest.raises(UsageError, match="which are too many"):
        take_over(kafka, "away", "nyc")
    assert len(kafka.topics.partitions[TopicPartition(name("epoch"), 0)]) == before


class TestMaintenance:
    @pytest.fixture
    def maintenance(self, kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> GroupMaintenance:
        epochs: dict[str, int] = {}
        take_over_groups(Claimer(kafka, "nyc", claimed=epochs), FORWARD)
        maintenance = GroupMaintenance(kafka, "nyc", epochs, "process")
        maintenance.take(FORWARD)
        return maintenance

    def look(self, kafka: MemoryConnection, maintenance: GroupMaintenance) -> dict[str, int]:
        """Maintain the groups as both engines do; return the number of ticks in each."""
        before = {group: len(kafka.topics.partitions[TopicPartition(name("forward", group), 0)]) for group in GROUPS}
        maintenance.check_not_fenced()
        maintenance.sign({}, time.monotonic())
        maintenance.tick(dict.fromkeys(GROUPS, 1), time.monotonic())
        return {
            group: len(kafka.topics.partitions[TopicPartition(name("forward", group), 0)]) - before[group]
            for group in GROUPS
        }

    @pytest.mark.slow
    @pytest.mark.parametrize("what", PARTS)
    @pytest.mark.parametrize("role", ROLES)
    def test_the_others_get_ticks(
        self, kafka: MemoryConnection, maintenance: GroupMaintenance, role: Role, what: tuple[str, ...]
    ) -> None:
        kafka.topics.take_away(name(role), *what)
        for _ in range(3):
            assert self.look(kafka, maintenance)["fine"] == 1
        if role == "epoch" and OFFSETS in (what or (OFFSETS,)):
            assert list(maintenance.away.reasons) == ["away"]
            started = time.monotonic()
            maintenance.check_not_fenced()
            assert time.monotonic() - started < SLOW_S, "it is asked again each time"
        kafka.topics.bring_back(name(role))
        eventually(lambda: (self.look(kafka, maintenance), not maintenance.away.reasons)[1], 20)

    @pytest.mark.slow
    def test_signs_of_life(
        self, kafka: MemoryConnection, maintenance: GroupMaintenance, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A group without an answer gets no sign of life: another sequencer may have claimed it."""
        signed: list[set[str]] = []
        monkeypatch.setattr(maintenance._signs, "give", lambda epochs, *_: signed.append(set(epochs)))
        self.look(kafka, maintenance)
        kafka.topics.take_away(name("epoch"), OFFSETS)
        self.look(kafka, maintenance)
        assert signed == [set(GROUPS), {"fine", "other"}]

    @pytest.mark.parametrize("refuses", ["unknown", "forbidden"])
    def test_a_partition_that_kafka_refuses_costs_no_sign_of_the_others(
        self, kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, refuses: str
    ) -> None:
        """FORWARD of an earlier home, or with fewer partitions than it had; EPOCH of a group that is not served."""
        epochs, troubles, beats = dict[str, int](), Troubles(), Beats(kafka, "nyc")
        forward = {group: FORWARD[group] for group in ("fine", "other")}
        take_over_groups(Claimer(kafka, "nyc", claimed=epochs), forward)
        maintenance = GroupMaintenance(kafka, "nyc", epochs, "process", troubles, beats)
        maintenance.take(forward)
        signed: list[set[str]] = []
        monkeypatch.setattr(troubles, "signed", lambda groups: signed.append(set(groups)))
        troubles.put(SEQUENCER, {"away": "it may not be read."})
        if refuses == "forbidden":
            kafka.topics.forbidden.add(name("epoch"))
        considered = {TopicPartition("abcast.fine.forward.home", 0): 7, TopicPartition(name("forward", "fine"), 9): 7}
        read = TopicPartition(name("forward", "fine"), 0)
        maintenance.check_not_fenced()
        maintenance.sign({**considered, read: 5}, time.monotonic(), [Topic("away", "epoch", "nyc")])
        signs = read_signs(kafka, GROUPS, "nyc", [read])
        expected = {**epochs, "away": 0} if refuses == "unknown" else epochs
        assert {group: sign.epoch for group, sign in signs.of_groups.items()} == expected
        assert signs.considered == {read: 5}
        assert signed == [{"fine", "other"}]
        assert maintenance._signs.last == ("fine", signs.of_groups["fine"]._replace(every_s=SIGN_EVERY_S))

    @pytest.mark.slow
    def test_all_are_away(self, kafka: MemoryConnection, maintenance: GroupMaintenance) -> None:
        for group in GROUPS:
            kafka.topics.take_away(name("epoch", group), OFFSETS)
        with pytest.raises(BrokerUnreachable):
            maintenance.check_not_fenced()

    @pytest.mark.slow
    @pytest.mark.parametrize("led", [True, False], ids=["led", "not-known"])
    def test_many_groups_of_a_leader_that_hangs(
        self, kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch, *, led: bool
    ) -> None:
        """The others are maintained soon, and the hanging ones cost them no more time after that."""
        hanging = [f"a{number:02}" for number in range(20)]
        for group in hanging:
            kafka.create(group, "nyc")
        if not led:
            monkeypatch.setattr(MemoryConnection, "leaders", lambda *_: {})
        forward, epochs = {group: [name("forward", group)] for group in (*hanging, *GROUPS)}, dict[str, int]()
        take_over_groups(Claimer(kafka, "nyc", claimed=epochs), forward)
        maintenance = GroupMaintenance(kafka, "nyc", epochs, "process")
        maintenance.take(forward)
        maintenance.check_not_fenced()
        signed: list[set[str]] = []
        monkeypatch.setattr(maintenance._signs, "give", lambda epochs, *_: signed.append(set(epochs)))
        for group in hanging:
            kafka.topics.leaders[name("epoch", group)] = 1
            kafka.topics.take_away(name("epoch", group), OFFSETS)
        started = time.monotonic()
        while not signed or not set(GROUPS) <= signed[-1]:
            maintenance.check_not_fenced()
            maintenance.sign({}, time.monotonic())
            assert time.monotonic() - started < (10.0 if led else 45.0)
        if led:
            assert signed[-1] == set(GROUPS)
            take_over(kafka, "fine", "nyc")
            started = time.monotonic()
            with pytest.raises(UnservableGroups, match="newer sequencer"):
                maintenance.check_not_fenced()
            assert time.monotonic() - started < 5.0

    @pytest.mark.slow
    def test_rights_that_are_taken_behind_the_takeover(self, kafka: MemoryConnection) -> None:
        epochs: dict[str, int] = {}
        take_over_groups(Claimer(kafka, "nyc", claimed=epochs), FORWARD)
        maintenance = GroupMaintenance(kafka, "nyc", epochs, "process")
        kafka.topics.forbidden = {name("data"), name("epoch")}
        maintenance.take(FORWARD)
        assert self.look(kafka, maintenance)["fine"] == 1
        assert list(maintenance.away.reasons) == ["away"]
        assert "may not READ abcast.away" in maintenance.away.reasons["away"]
        assert set(maintenance.ends_of_data(["fine", "other"])) == {"fine", "other"}
        kafka.topics.forbidden.clear()
        eventually(lambda: (self.look(kafka, maintenance), not maintenance.away.reasons)[1], 20)

    def test_what_is_wrong_with_one_group(self, kafka: MemoryConnection, maintenance: GroupMaintenance) -> None:
        def refused(*_: object) -> None:
            raise KafkaRefused("no right to group away")

        log = maintenance.log
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(maintenance, "log", lambda group: refused() if group == "away" else log(group))
            with pytest.raises(UnservableGroups, match="no right"):
                maintenance.check_not_fenced()


def spoil(kafka: MemoryConnection, topic: str, by: str) -> type[AbcastError]:
    """Take a topic away, or the right to it; return the error that tells so."""
    if by == "right":
        kafka.topics.forbidden.add(topic)
        return KafkaRefused
    kafka.topics.take_away(topic, OFFSETS)
    return BrokerUnreachable


@pytest.mark.parametrize("by", ["right", "leader"])
class TestSparksSource:
    """Spark reads the topics of all groups with one query. Its job asks about the groups apart."""

    @pytest.mark.slow
    def test_of_any_job(self, kafka: MemoryConnection, tmp_path: Path, by: str) -> None:
        spark: Any = None
        shard = SequencerShard(spark, JobOptions(kafka, "nyc", tmp_path))
        names = [topic for topics in FORWARD.values() for topic in topics]
        kafka.topics.silence_s = 0.1
        error = spoil(kafka, name("forward"), by)
        with pytest.raises(UnservableGroups) as unservable:
            shard.kafka_source(names, {})
        assert {group: type(each) for group, each in unservable.value.errors.items()} == {"away": error}
        assert name("forward") in str(unservable.value)
        source = shard.kafka_source([topic for topic in names if topic != name("forward")], {})
        assert json.loads(source["startingOffsets"]).keys() == {name("forward", "fine"), name("forward", "other")}
        with pytest.raises(error):
            shard.kafka_source([name("forward")], {})

    def agreeing(self, kafka: MemoryConnection, tmp_path: Path) -> tuple[AgreeingShard, dict[str, SequencerState]]:
        for group in GROUPS:
            kafka.create(group, "nyc")
            copy = TopicPartition(copy_of(group), 0)
            kafka.topics.partitions[copy] = []
            kafka.topics.append(copy, None, None, [])
        spark: Any = None
        agreement = AgreementSettings(Neighbours("nyc", ("nyc", "sfo")))
        shard = AgreeingShard(spark, JobOptions(kafka, "nyc", tmp_path), agreement=agreement)
        return shard, take_over_groups(Claimer(kafka, "nyc", agreement=ISIS), FORWARD)

    def test_the_log_of_a_site_that_agrees(self, tmp_path: Path, by: str) -> None:
        kafka = MemoryConnection(timeout=0.5)
        shard, states = self.agreeing(kafka, tmp_path)
        error = spoil(kafka, name("data"), by)
        with pytest.raises(UnservableGroups) as unservable:
            shard._groups(states)
        assert {group: type(each) for group, each in unservable.value.errors.items()} == {"away": error}

    @pytest.mark.slow
    @pytest.mark.parametrize("what", ["forward", "copy", "record"])
    def test_the_inputs_of_a_site_that_agrees(
        self, tmp_path: Path, by: str, what: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kafka = MemoryConnection(timeout=0.5)
        shard, states = self.agreeing(kafka, tmp_path)
        groups = shard._groups(states)
        names = {group: [*FORWARD[group], copy_of(group)] for group in GROUPS}
        assert len(shard._starts(names, groups)) == 6
        error: type[AbcastError] = BrokerUnreachable
        if what == "record":  # the one before the mark of a copy
            monkeypatch.setattr(Group, "mark", lambda *_: CopyMark(1, 1))
            kafka.topics.take_away(copy_of("away"), READS)
        else:
            error = spoil(kafka, name("forward") if what == "forward" else copy_of("away"), by)
        with pytest.raises(UnservableGroups) as unservable:
            shard._starts(names, groups)
        assert {group: type(each) for group, each in unservable.value.errors.items()} == {"away": error}


def copy_of(group: str) -> str:
    return str(Topic(group, "relayed", "nyc", "sfo"))


LARGE = [(UNREAD_HEADER, b"")]


@pytest.fixture
def one_large(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> MemoryConnection:
    """Return a Kafka whose group "away" has a record too large for memory."""
    monkeypatch.setattr(kafka_python, "consumer", lambda *_, **__: kafka.consumer())
    kafka.topics.append(TopicPartition(name("forward"), 0), b"nyc/a", None, LARGE)
    return kafka


@pytest.mark.parametrize("job", ["agreeing", "relay"])
def test_a_large_record_that_may_not_be_skipped_ends_no_other_group(
    one_large: MemoryConnection, tmp_path: Path, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group's later starts fail without a look at its records, and without a claim."""
    kafka, spark, options = one_large, cast("Any", None), JobOptions(one_large, "nyc", tmp_path)
    if job == "relay":
        direction = Direction("nyc", "sfo")
        sites = Sites("isis", None, "micro-batch", dict.fromkeys(direction, kafka), frozenset({frozenset(direction)}))
        tried: Any = SparkRelay(spark, options, Agreed, sites, direction)
    else:
        tried = AgreeingShard(spark, options, agreement=AgreementSettings(Neighbours("nyc", ("nyc",))))
    names = [topic for topics in FORWARD.values() for topic in topics]
    tried._batches.shrink(BatchTooLarge("a batch did not fit into memory."))
    with pytest.raises(UnservableGroups, match="with more memory") as unservable:
        tried.kafka_source(names, {})
    assert {group: type(each) for group, each in unservable.value.errors.items()} == {"away": UsageError}
    tried.kafka_source([topic for topic in names if topic != name("forward")], {})
    monkeypatch.setattr("connectors.spark.batch_bound.find_large", lambda *_: pytest.fail("it looks again"))
    with pytest.raises(UnservableGroups, match="with more memory"):
        tried.kafka_source(names, {})
    if job == "agreeing":
        kafka.topics.partitions[TopicPartition(name("data"), 0)].clear()
        with pytest.raises(UsageError, match="with more memory"):
            tried.check_group(SequencerState("away"), [name("forward")])


def test_a_large_record_gets_one_dead_letter_while_another_group_fails(
    one_large: MemoryConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next query finds the record again: DATA does not tell that it has a dead letter."""
    kafka, spark = one_large, cast("Any", None)
    letters = kafka.topics.partitions[TopicPartition(name("dead-letter"), 0)]
    shard = SequencerShard(spark, JobOptions(kafka, "nyc", tmp_path))
    names = [topic for topics in FORWARD.values() for topic in topics]
    kafka.topics.append(TopicPartition(name("forward", "fine"), 0), b"nyc/a", None, LARGE)

    def refusing(connection: MemoryConnection, outputs: list[Output]) -> None:
        if any(topic == name("dead-letter", "fine") for topic, _ in outputs):
            raise KafkaRefused("no right to it")
        append_all(connection, outputs)

    monkeypatch.setattr("connectors.sequencer.shard.append_all", refusing)
    shard._batches.shrink(BatchTooLarge("a batch did not fit into memory."))
    for round_ in range(3):
        shard._begin({group: SequencerState(group, epoch=1 + round_) for group in GROUPS})
        with pytest.raises(UnservableGroups) as unservable:
            shard.kafka_source(names, {})
        assert list(unservable.value.errors) == ["fine"]
        assert len(letters) == 1
    kafka.topics.append(TopicPartition(name("forward"), 0), b"nyc/a", None, LARGE)
    shard._begin({group: SequencerState(group, epoch=9) for group in GROUPS})
    with pytest.raises(UnservableGroups):
        shard.kafka_source(names, {})
    assert [letter.headers[-1] for letter in letters].count(letters[0].headers[-1]) == 1
    assert len(letters) == 2
    shard._begin({"away": SequencerState("away", epoch=10, positions={Partition(name("forward"), 0): 2})})
    assert not shard._refused


def test_large_records_at_equal_distances_are_passed_one_after_the_other(
    one_large: MemoryConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query has gone on, though the same number of records lies before the next one."""
    kafka, spark, place = one_large, cast("Any", None), TopicPartition(name("forward"), 0)
    shard, state = SequencerShard(spark, JobOptions(kafka, "nyc", tmp_path)), SequencerState("away", epoch=1)
    for number in range(3):
        kafka.topics.append(place, f"nyc/{number}".encode(), b"x", forward_headers(1, 1))
        kafka.topics.append(place, b"nyc/a", None, LARGE)
    report = BatchReport(0, 1, "", 1, {}, {})
    monkeypatch.setattr("connectors.spark.batch_bound.newest", lambda _: report)
    shard._batches.shrink(BatchTooLarge("a batch did not fit into memory."))
    begun = []
    for _ in range(4):
        shard._begin({"away": state})
        source = shard.kafka_source([name("forward")], positions_of([state]))
        start = json.loads(source["startingOffsets"])[name("forward")]["0"]
        begun.append(start)
        message = kafka.topics.partitions[place][start : start + 1]
        state, _ = by_rows(shard._states["away"], [(place, message)], OutputTopics.of("away", "nyc"))
        shard._batches.has_come_to_large(spark)
    assert begun == [1, 3, 5, 7]
