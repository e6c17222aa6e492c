"""A part of one group's partition is away: the process engine orders the other groups."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import TopicAuthorizationFailedError
from kafka.structs import TopicPartition

from connectors.engine import site_job
from connectors.engine.sequencing import HELD_RECORDS
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.codec.epochs import this_host
from connectors.kafka.codec.inputs import Neighbours
from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.group_backlog import backlog_of_groups
from connectors.kafka.groups.suspended_groups import SuspendedGroups
from connectors.kafka.log.sign_of_life import Sign, SignsOfLife, read_signs
from connectors.takeover.agreement import AgreementSettings, known_state
from connectors.takeover.end_offsets import EndOffsets
from connectors.takeover.group_maintenance import GroupMaintenance
from connectors.takeover.takeover import Claimer, Takeover, take_over_groups
from connectors.testing.memory_clients import MemoryConsumer
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.memory_topics import OFFSETS, READS, WRITES
from ordering.agreement.site_state import SiteState
from ordering.base.errors import BrokerUnreachable, Fenced
from ordering.base.names import Role, Topic
from ordering.sequencer.state import SequencerState
from tests.engine.serving import no_rival as no_rival
from tests.engine.serving import serving, serving_on_spark
from tests.waiting import eventually

GROUPS = ("away", "fine")
PARTS = [(READS,), (WRITES,), (OFFSETS,), ()]
TOPICS: tuple[Role, ...] = ("data", "epoch", "forward")
SILENCE_S = 6.0
"""Time that a client waits for a partition that is away."""
QUICK_S = SILENCE_S / 2
"""The most that the other group waits, also on a busy machine."""
ENGINES = ["process", "agreeing"]


def name(role: Role, group: str = "away") -> str:
    return str(Topic(group, role, "nyc"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.engine.group_supervisor.WATCH_S", 0.2)
    monkeypatch.setattr("connectors.takeover.takeover._WRITTEN_S", 3.0)


@dataclass(frozen=True, slots=True)
class Kafka(MemoryConnection):
    """A Kafka with the groups; it counts each group's sent and ordered messages."""

    timeout: float = 3.0
    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(GROUPS, 0))

    def __post_init__(self) -> None:
        for group in GROUPS:
            self.create(group, "nyc")
        self.topics.silence_s = SILENCE_S

    def send(self, group: str) -> None:
        self.sent[group] += 1
        place = TopicPartition(name("forward", group), 0)
        self.topics.append(place, b"nyc/a", b"x", forward_headers(5, self.sent[group]))

    def is_ordered(self, group: str) -> bool:
        records = self.topics.partitions[TopicPartition(name("data", group), 0)]
        found = {int(record.headers[0][1].split()[3]) for record in records if b" message " in record.headers[0][1]}
        return found == set(range(1, self.sent[group] + 1))


@pytest.fixture
def kafka() -> Kafka:
    return Kafka()


def the_other_is_ordered(kafka: Kafka) -> None:
    kafka.send("fine")
    started = time.monotonic()
    eventually(lambda: kafka.is_ordered("fine"), 20)
    assert time.monotonic() - started < QUICK_S


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("what", PARTS)
@pytest.mark.parametrize("role", TOPICS)
def test_while_it_runs(kafka: Kafka, role: Role, what: tuple[str, ...], engine: str) -> None:
    with serving(kafka, engine) as job:
        assert job.ready.wait(20)
        for group in GROUPS:
            kafka.send(group)
        eventually(lambda: all(map(kafka.is_ordered, GROUPS)), 20)
        kafka.topics.take_away(name(role), *what)
        for _ in range(4):
            kafka.send("away")
            the_other_is_ordered(kafka)
        time.sleep(0.5)  # the supervisor has looked in that time
        the_other_is_ordered(kafka)
        kafka.topics.bring_back(name(role))
        eventually(lambda: kafka.is_ordered("away"), 20)


@pytest.mark.slow
@pytest.mark.parametrize("what", PARTS)
def test_while_the_others_records_are_purged(kafka: Kafka, what: tuple[str, ...]) -> None:
    """The lost connection makes the job look for its last record, which is gone; a transaction's marker, too."""
    with serving(kafka, "process") as job:
        assert job.ready.wait(20)
        for group in GROUPS:
            kafka.send(group)
        eventually(lambda: all(map(kafka.is_ordered, GROUPS)), 20)
        forward, epoch = name("forward", "fine"), TopicPartition(name("epoch", "fine"), 0)
        end = kafka.topics.mark(TopicPartition(forward, 0)) + 1
        time.sleep(0.3)  # the job passes over the marker
        claims = len(kafka.topics.partitions[epoch])
        kafka.topics.take_away(name("forward"), *what)
        kafka.topics.drop(forward, end)
        kafka.topics.restart()
        the_other_is_ordered(kafka)
        kafka.topics.bring_back(name("forward"))
        kafka.send("away")
        eventually(lambda: kafka.is_ordered("away"), 20)
        assert len(kafka.topics.partitions[epoch]) == claims, "it was taken over anew"


@pytest.mark.slow
def test_while_its_log_is_made_anew_and_tells_no_offsets(kafka: Kafka) -> None:
    """Each poll says that the position is out of range, and nothing says where the log begins."""
    with serving(kafka, "process") as job:
        assert job.ready.wait(20)
        for group in (*GROUPS, *GROUPS):
            kafka.send(group)
        eventually(lambda: all(map(kafka.is_ordered, GROUPS)), 20)
        kafka.topics.take_away(name("forward"), OFFSETS)
        kafka.topics.make_anew([name("forward")])
        the_other_is_ordered(kafka)
        the_other_is_ordered(kafka)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("what", PARTS)
@pytest.mark.parametrize("role", TOPICS)
def test_at_the_start(kafka: Kafka, role: Role, what: tuple[str, ...], engine: str) -> None:
    with serving(kafka, engine) as job:
        assert job.ready.wait(20)
        kafka.send("away")
        eventually(lambda: kafka.is_ordered("away"), 20)
    kafka.topics.take_away(name(role), *what)
    with serving(kafka, engine) as job:
        started = time.monotonic()
        assert job.ready.wait(20)
        the_other_is_ordered(kafka)
        assert time.monotonic() - started < SILENCE_S
        kafka.topics.bring_back(name(role))
        kafka.send("away")
        eventually(lambda: kafka.is_ordered("away"), 30)


@pytest.mark.slow
def test_a_write_that_fails_ends_no_other(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """Its group is taken over anew, again and again, with one warning."""
    with serving(kafka, "process") as job:
        assert job.ready.wait(20)
        epochs = len(kafka.topics.partitions[TopicPartition(name("epoch", "fine"), 0)])
        kafka.topics.refuse(name("data"), 3)
        kafka.send("away")
        eventually(lambda: "The other groups go on; away is tried again" in caplog.text, 20)
        the_other_is_ordered(kafka)
        eventually(lambda: kafka.is_ordered("away"), 30)
        assert len(kafka.topics.partitions[TopicPartition(name("epoch", "fine"), 0)]) == epochs


@pytest.mark.slow
def test_the_claim_of_a_running_sequencer_is_gone(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """EPOCH was made anew between two looks. The takeover refuses, and the other group goes on."""
    epoch = name("epoch")
    with serving(kafka, "process") as job:
        assert job.ready.wait(20)
        kafka.send("away")
        eventually(lambda: kafka.is_ordered("away"), 20)
        kafka.topics.make_anew([epoch])
        eventually(lambda: f"{epoch} no longer has this sequencer's claim" in caplog.text, what="the claim is missed")
        eventually(lambda: f"{epoch} was recreated, or a broker has lost all of it" in caplog.text, what="the refusal")
        the_other_is_ordered(kafka)
    assert not kafka.topics.partitions[TopicPartition(epoch, 0)]


@pytest.mark.slow
def test_the_log_of_a_site_is_away_when_it_was_just_taken_over(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop reads the site's log once more. Its error ends no other group, and no attempt."""
    is_away, asked = threading.Event(), threading.Event()

    def known(connection: Connection, agreement: AgreementSettings, state: SequencerState) -> SiteState:
        if is_away.is_set() and state.group == "away" and threading.current_thread().name == "job":
            asked.set()
            raise BrokerUnreachable("no broker that leads DATA answers.")
        return known_state(connection, agreement, state)

    monkeypatch.setattr(site_job, "known_state", known)
    with serving(kafka, "agreeing") as job:
        assert job.ready.wait(20)
        claims = len(kafka.topics.partitions[TopicPartition(name("epoch", "fine"), 0)])
        is_away.set()
        kafka.topics.refuse(name("data"), 1)
        kafka.send("away")
        assert asked.wait(20)
        the_other_is_ordered(kafka)
        is_away.clear()
        eventually(lambda: kafka.is_ordered("away"), 30)
        assert len(kafka.topics.partitions[TopicPartition(name("epoch", "fine"), 0)]) == claims, "it was taken anew"


@pytest.mark.slow
@pytest.mark.parametrize("role", ["relayed", "entries"])
def test_a_copy_that_is_away_is_not_asked_for_in_the_loop(kafka: Kafka, role: Role) -> None:
    """The loop would wait for an answer, and all groups with it."""
    copies = {group: str(Topic(group, role, "nyc", "sfo")) for group in GROUPS}
    counts = {topic: 1 for group in GROUPS for topic in map(Topic.parse, (copies[group], name("forward", group)))}
    for copy in copies.values():
        kafka.topics.partitions[TopicPartition(copy, 0)] = []
    kafka.topics.silence_s = 0.1
    kafka.topics.take_away(copies["away"], OFFSETS)
    finder: Any = SimpleNamespace(count_partitions=lambda: counts)
    partitions = site_job.InputPartitions(kafka, Neighbours("nyc", ("nyc", "sfo")), finder)
    found, lost = partitions.find({group: [name("forward", group)] for group in GROUPS}, {})
    assert {place.topic for place in found} == {copies["fine"], name("forward", "fine")}
    assert {group: type(error) for group, error in lost.items()} == {"away": BrokerUnreachable}
    kafka.topics.bring_back(copies["away"])
    assert len(partitions.find({group: [name("forward", group)] for group in GROUPS}, {})[0]) == 4


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["process", "spark"])
@pytest.mark.parametrize("what", ["away", "forbidden", "dropped"])
def test_an_input_that_can_not_be_read_costs_one_claim(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, what: str, engine: str
) -> None:
    """Each retry looks at the inputs before it claims: a claim is a snapshot in DATA, and two records in EPOCH.

    `dropped`: retention has dropped entries of the other site that this one has not read, so it is out for good.
    """
    monkeypatch.setattr(SuspendedGroups.__init__, "__defaults__", ((0.05,),))
    monkeypatch.setattr("connectors.sequencer.job.RETRY_S", 0.05)
    monkeypatch.setattr("connectors.kafka.groups.retrying.BACKOFF_S", (0.05,))
    kafka.topics.silence_s = 0.05
    for group in GROUPS:
        for role in ("relayed", "entries"):
            kafka.topics.partitions[TopicPartition(str(Topic(group, role, "nyc", "sfo")), 0)] = []
    log = TopicPartition(str(Topic("away", "entries", "nyc", "sfo")), 0)
    asked = list[str]()
    look_at = backlog_of_groups if engine == "spark" else site_job.InputPartitions.find
    if what == "away":
        kafka.topics.take_away(log.topic, OFFSETS)
    elif what == "forbidden":
        kafka.topics.forbidden.add(log.topic)
    else:
        kafka.topics.append(log, None, b"", [])
        kafka.topics.drop(log.topic, 1)

    def counting(of: Any, about: Any, *others: Any) -> Any:
        asked.extend(each for each in about if each in ("away", log.topic))
        return look_at(of, about, *others)

    for module in ("connectors.sequencer.agreeing_shard", "connectors.sequencer.shard"):
        monkeypatch.setattr(f"{module}.backlog_of_groups", counting, raising=False)
    monkeypatch.setattr(site_job.InputPartitions, "find", counting)
    claims, others = (kafka.topics.partitions[TopicPartition(name("epoch", group), 0)] for group in GROUPS)
    with ExitStack() as stack:
        job: Any = stack.enter_context(
            serving_on_spark(kafka, ("nyc", "sfo")) if engine == "spark" else serving(kafka, "agreeing", ("nyc", "sfo"))
        )
        eventually(lambda: len(asked) >= 6, 20)
        eventually(lambda: len(others) > 0, 20)
        assert len(claims) <= 2
        if what != "dropped":
            kafka.topics.bring_back(log.topic)
            kafka.topics.forbidden.discard(log.topic)
            before = len(claims)
            eventually(lambda: len(claims) == before + 2, 20)
        elif engine == "process":
            assert "retention has dropped" in job._state.suspended.reasons["away"]
        assert len(others) <= 4


@pytest.mark.slow
def test_what_is_held_is_bounded(kafka: Kafka) -> None:
    with serving(kafka, "process") as job:
        assert job.ready.wait(20)
        kafka.topics.take_away(name("data"), WRITES)
        for _ in range(4 * HELD_RECORDS):
            kafka.send("away")
        the_other_is_ordered(kafka)
        the_other_is_ordered(kafka)
        kafka.topics.bring_back(name("data"))
        eventually(lambda: kafka.is_ordered("away"), 30)


@pytest.mark.slow
def test_a_right_that_is_taken(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of a right, or records that retention dropped, end that group's service alone."""
    poll, is_refused = MemoryConsumer.poll, threading.Event()

    def refused(self: MemoryConsumer, timeout_ms: int = 0) -> Any:
        if is_refused.is_set() and TopicPartition(name("forward"), 0) in self.next:
            raise TopicAuthorizationFailedError({name("forward")})
        return poll(self, timeout_ms)

    with serving(kafka, "process") as job:
        assert job.ready.wait(20)
        monkeypatch.setattr(MemoryConsumer, "poll", refused)
        is_refused.set()
        the_other_is_ordered(kafka)
        is_refused.clear()
        kafka.send("away")
        eventually(lambda: kafka.is_ordered("away"), 30)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("by", ["takeover", "supervisor"])
def test_all_rights_to_forward_are_taken(
    kafka: Kafka, engine: str, by: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The group is suspended with the sentence of its right, and comes back with the right; the others go on.

    The supervisor finds the loss right behind a takeover, or as FORWARD grows.
    """
    poll, beginning_offsets = MemoryConsumer.poll, MemoryConsumer.beginning_offsets
    is_refused, asked = threading.Event(), threading.Event()

    def check(places: Iterable[TopicPartition]) -> None:
        if is_refused.is_set() and any(place.topic == name("forward") for place in places):
            raise TopicAuthorizationFailedError({name("forward")})

    def read(self: MemoryConsumer, timeout_ms: int = 0) -> Any:
        if by == "takeover":
            check(self.next)
        return poll(self, timeout_ms)

    def find(self: MemoryConsumer, places: Iterable[TopicPartition]) -> Any:
        asked_for = list(places)
        is_of_asker = threading.current_thread().name == "abcast-supervisor"
        if is_refused.is_set() and is_of_asker and any(place.topic == name("forward") for place in asked_for):
            asked.set()
        if is_of_asker or by == "supervisor":
            check(asked_for)
        return beginning_offsets(self, asked_for)

    monkeypatch.setattr(MemoryConsumer, "poll", read)
    monkeypatch.setattr(MemoryConsumer, "beginning_offsets", find)
    with serving(kafka, engine) as job:
        assert job.ready.wait(20)
        is_refused.set()
        if by == "supervisor":
            kafka.topics.partitions[TopicPartition(name("forward"), 1)] = []
            counts: Any = job._state.finder.count_partitions()
            counts[Topic("away", "forward", "nyc")] = 2
        deadline = time.monotonic() + 30
        while not (asked.is_set() and "may not READ abcast.away.forward.nyc" in caplog.text):
            assert time.monotonic() < deadline
            the_other_is_ordered(kafka)
        the_other_is_ordered(kafka)
        is_refused.clear()
        kafka.send("away")
        eventually(lambda: kafka.is_ordered("away"), 40)


def test_a_right_that_is_lost_right_behind_the_takeover(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The job suspends the one group that lacks the right; others were taken over together with it."""
    prepare, results, is_refused = EndOffsets.prepare, Takeover.results, threading.Event()

    def together(self: Takeover, timeout_s: float) -> Any:
        found: dict[str, Any] = {}
        while self.is_running:
            found |= results(self, timeout_s)
        return found

    def refused(self: EndOffsets, group: str) -> None:
        if group == "away" and is_refused.is_set():
            raise TopicAuthorizationFailedError({name("data")})
        prepare(self, group)

    monkeypatch.setattr(Takeover, "results", together)
    monkeypatch.setattr(EndOffsets, "prepare", refused)
    is_refused.set()
    with serving(kafka, "process") as job:
        assert job.ready.wait(20)
        the_other_is_ordered(kafka)
        assert "The other groups go on; away is tried again" in caplog.text
        assert "fine is tried again" not in caplog.text
        is_refused.clear()
        kafka.send("away")
        eventually(lambda: kafka.is_ordered("away"), 30)


def taken_by_another(kafka: Kafka, engine: str, *groups: str) -> dict[str, int]:
    epochs: dict[str, int] = {}
    forward = {group: [name("forward", group)] for group in groups}
    take_over_groups(Claimer(kafka, "nyc", epochs, agreement="isis" if engine == "agreeing" else ""), forward)
    return epochs


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_group_that_another_sequencer_takes_over(kafka: Kafka, engine: str, caplog: pytest.LogCaptureFixture) -> None:
    """The job leaves the group to that sequencer, in silence, until that sequencer falls silent."""
    with serving(kafka, engine) as job:
        assert job.ready.wait(20)
        kafka.topics.ahead_ms = -60_000  # else the claim alone is a sign of life
        epochs = taken_by_another(kafka, engine, "away")
        kafka.topics.ahead_ms = 0
        other = SignsOfLife(kafka, "nyc", "another")
        other.give(epochs, {}, 0.0)
        eventually(lambda: "took over with epoch" in caplog.text, 20)
        the_other_is_ordered(kafka)
        claims = len(kafka.topics.partitions[TopicPartition(name("epoch"), 0)])
        deadline = time.monotonic() + 5.0  # the group is tried again and signs of life are written in that time
        while time.monotonic() < deadline:
            the_other_is_ordered(kafka)
            assert read_signs(kafka, ["away"], "nyc").of_groups["away"].engine == "another"
        assert len(kafka.topics.partitions[TopicPartition(name("epoch"), 0)]) == claims
        late = Sign(epochs["away"], this_host(), "another", int(time.time() * 1000) - 60_000)
        kafka.topics.committed["abcast.sequencer.nyc", TopicPartition(name("epoch"), 0)] = late.encode()
        kafka.send("away")
        eventually(lambda: kafka.is_ordered("away"), 40)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.slow
def test_all_groups_are_taken_over(kafka: Kafka, engine: str) -> None:
    """Groups are taken over one by one: the job ends with the last."""

    def take_all_over() -> None:
        with serving(kafka, engine) as job:
            assert job.ready.wait(20)
            for group in GROUPS:
                taken_by_another(kafka, engine, group)
                time.sleep(1.2)
            eventually(lambda: all(thread.name != "job" for thread in threading.enumerate()), 20)

    with pytest.raises(Fenced):
        take_all_over()


@pytest.mark.slow
@pytest.mark.parametrize("what", [(OFFSETS,), ()])
def test_away_when_it_was_just_taken_over(kafka: Kafka, what: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The job does not report the group as served while it orders no message of it."""
    ends_of_data, is_first = GroupMaintenance.ends_of_data, [True]

    def away(self: GroupMaintenance, groups: Any) -> dict[str, int]:
        if "away" in groups and is_first and is_first.pop():
            kafka.topics.take_away(name("data"), *what)
        return ends_of_data(self, groups)

    with serving(kafka, "process") as job:
        assert job.ready.wait(20)
        kafka.topics.refuse(name("data"), 1)
        monkeypatch.setattr(GroupMaintenance, "ends_of_data", away)
        kafka.send("away")
        eventually(lambda: not is_first, 20)
        deadline = time.monotonic() + 5.0  # it was asked once more
        while time.monotonic() < deadline:
            the_other_is_ordered(kafka)
        kafka.topics.bring_back(name("data"))
        eventually(lambda: kafka.is_ordered("away"), 40)
