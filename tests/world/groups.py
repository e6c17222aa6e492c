"""Three groups at a site, on one job of the process engine: one seed, one history.

It runs the shipped takeovers, supervisor, loop and maintenance on a Kafka in memory
(`connectors.testing.memory_kafka`). It replaces only the pool of threads that asks groups side by side: here each is
asked in turn. One group has troubles: a partition is away, or a part of it; its writes are refused; the job loses the
right to a topic; a log is cut or made anew; records are no messages, or no DATA; a sender floods it. What must hold:

* isolation: the job goes on, claims no other group again, and orders the messages of the others within some turns;
* progress: once the trouble is over, all messages of that group are ordered, too, or `suspended` says why not.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from kafka.structs import TopicPartition

from connectors.engine.group_supervisor import GroupSupervisor
from connectors.engine.job import Sequencers
from connectors.engine.loop import Loop
from connectors.engine.options import EngineOptions, JobState
from connectors.kafka.codec.codec import decode_data, forward_headers
from connectors.kafka.groups.suspended_groups import SuspendedGroups
from connectors.kafka.groups.topic_finder import TopicFinder
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.memory_topics import OFFSETS, READS, WRITES
from ordering.base.errors import AbcastError
from ordering.base.names import Role, Topic
from ordering.base.reader import Reader, Verdict
from ordering.base.records import MESSAGE
from ordering.checker.anomalies import DUPLICATE, LOST, Anomaly
from tests.simulator.mutation import NONE, Mutation
from tests.world.clock import Clock
from tests.world.stepping import InTurn

SITE = "s"
GROUPS = ("a", "b", "c")
ROLES: tuple[Role, ...] = ("data", "epoch", "forward")
ACTIONS = 60
TURNS = 4
"""The turns after which a group without trouble has ordered a message. A turn reads once and decides once."""
FLOOD = 20_000
"""The records of a flood: more than the job holds, or reads at once."""
ROUNDS = 40
"""The looks, with some turns and seconds each, after which a healed group has ordered all."""
QUICK_S = 1.0
"""The seconds after which a group without trouble has ordered a message."""

DELAYED = "delayed"
"""The trouble of one group delays another group."""
ENDED = "ended"
"""The trouble of one group ends the job."""
CLAIMED = "claimed again"
"""The trouble of one group fences the epoch of another."""


class Job:
    """An attempt of the job: supervisor and loop take turns."""

    def __init__(self, connection: MemoryConnection, clock: Clock) -> None:
        """Take the groups over. Raises what ends the attempt."""
        self.suspended = SuspendedGroups("sequence")
        options = EngineOptions(connection, SITE)
        self.supervisor = GroupSupervisor(options, JobState(TopicFinder(connection), self.suspended))
        try:
            taken = self.supervisor.take_all()
            self.loop = Loop(connection, SITE, Sequencers(SITE), clock.event())
            self.loop.take(taken)
        except BaseException:
            self.supervisor.close()
            raise

    def close(self) -> None:
        """Kill it."""
        self.loop.close()
        self.supervisor.close()


class Groups:
    """The world of a seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.clock = Clock()
        self.connection = MemoryConnection()
        self.topics = self.connection.topics
        self.topics.changed, self.topics.longest_poll_s = self.clock.condition(), math.inf
        self.topics.clock = lambda: self.clock.now_s
        for group in GROUPS:
            self.connection.create(group, SITE)
        self.troubled = self.dice.choice(GROUPS)
        self.fine = [group for group in GROUPS if group != self.troubled]
        self.sent = dict.fromkeys(GROUPS, 0)
        self.is_damaged = False
        """Whether the troubled group has lost records."""
        self.job: Job | None = None
        self.anomalies: list[Anomaly] = []
        self.story: list[str] = []

    def log(self, role: Role, group: str) -> TopicPartition:
        """Return a group's partition."""
        return TopicPartition(str(Topic(group, role, SITE)), 0)

    def blame(self, name: str, detail: str) -> None:
        """Note an anomaly."""
        self.story.append(f"{name}: {detail}")
        self.anomalies.append(Anomaly(name, detail, ()))

    def run(self) -> list[Anomaly]:
        """Play the history."""
        acts: list[tuple[float, Callable[[], None]]] = [
            (30, self.send),
            (20, self.turn),
            (10, self.look),
            (6, self.see_that_the_others_go_on),
            (4, self.wait),
            (2, self.start_again),
            (6, self.heal),
            (5, self.take_away),
            (2, self.refuse_writes),
            (2, self.forbid),
            (1, self.truncate),
            (0.5, self.make_anew),
            (2, self.drop),
            (2, self.write_garbage),
            (0.5, self.flood),
        ]
        self.start()
        for act in self.dice.choices([act for _, act in acts], [weight for weight, _ in acts], k=ACTIONS):
            self.story.append(f"{self.clock.steady_s:>8.1f} s  {act.__name__}")
            act()
            if self.anomalies:
                return self.anomalies
        self.end()
        return self.anomalies

    # The job.

    def start(self) -> None:
        """Start the job, whatever trouble a group has."""
        try:
            self.job = Job(self.connection, self.clock)
        except AbcastError as error:
            self.blame(ENDED, f"no start: {error}")

    def start_again(self) -> None:
        """Kill the job and start another one."""
        self.kill()
        self.start()

    def kill(self) -> None:
        """Kill the job."""
        if self.job is not None:
            self.job.close()
        self.job = None

    def _working(self, work: Callable[[Job], object]) -> None:
        assert self.job is not None
        before = self._claims()
        try:
            work(self.job)
        except AbcastError as error:
            self.blame(ENDED, f"{type(error).__name__}: {error}")
        for group in self.fine:
            if self._claims()[group] != before[group]:
                self.blame(CLAIMED, f"group {group}, which has no trouble")

    def _claims(self) -> dict[str, int]:
        return {group: len(self.topics.partitions[self.log("epoch", group)]) for group in GROUPS}

    def turn(self) -> None:
        """Let the loop take a turn."""
        self._working(lambda job: job.loop.turn(job.supervisor))

    def look(self) -> None:
        """Let the supervisor take a turn."""
        self.clock.sleep(1)
        self._working(lambda job: job.supervisor.turn(looks=True))

    def wait(self) -> None:
        """Let time pass."""
        self.clock.sleep(self.dice.choice([0.1, 1.0, 10.0, 60.0]))

    # Messages.

    def send(self) -> None:
        """Send a message to a group."""
        self._send(self.dice.choice(GROUPS))

    def _send(self, group: str, size: int = 1) -> None:
        self.sent[group] += 1
        self.topics.append(self.log("forward", group), f"{SITE}/m".encode(), b"x" * size, self._header(group))

    def _header(self, group: str) -> list[tuple[str, bytes]]:
        return forward_headers(1, self.sent[group])

    def ordered(self, group: str) -> list[int]:
        """Return the local seqnos of the group's messages, in the order of DATA."""
        reader, found = Reader(), list[int]()
        for record in self.topics.partitions[self.log("data", group)]:
            data = decode_data(record.key, record.value, record.headers)
            if reader.judge(data) is Verdict.TAKE and data.kind == MESSAGE:
                found.append(data.local_seqno)
        return found

    def see_that_the_others_go_on(self) -> None:
        """Send a message to each of the other groups, and see it ordered within some turns."""
        for group in self.fine:
            self._send(group)
        began_s = self.clock.steady_s
        for _ in range(TURNS):
            self.turn()
        if (took_s := self.clock.steady_s - began_s) > QUICK_S:
            self.blame(DELAYED, f"{TURNS} turns have taken {took_s:.1f} s.")
        for group in self.fine:
            self._judge(group, DELAYED)

    def _judge(self, group: str, name: str) -> None:
        found = self.ordered(group)
        if len(found) > len(set(found)):
            self.blame(DUPLICATE, f"group {group}: {found}")
        if found != list(range(1, self.sent[group] + 1)):
            self.blame(name, f"group {group} has {len(found)} of {self.sent[group]} messages.")

    # Troubles.

    def take_away(self) -> None:
        """Take a partition away, or some of its operations."""
        what = self.dice.choice([(READS,), (WRITES,), (OFFSETS,), ()])
        self.topics.take_away(self.log(self.dice.choice(ROLES), self.troubled).topic, *what)

    def refuse_writes(self) -> None:
        """Refuse the next writes."""
        self.topics.refuse(self.log(self.dice.choice(ROLES), self.troubled).topic, self.dice.randint(1, 5))

    def forbid(self) -> None:
        """Take the right to a topic away."""
        self.topics.forbidden.add(self.log(self.dice.choice(ROLES), self.troubled).topic)

    def heal(self) -> None:
        """End the troubles that pass."""
        self.topics.forbidden.clear()
        self.topics.refusals.clear()
        for role in ROLES:
            self.topics.bring_back(self.log(role, self.troubled).topic)

    def truncate(self) -> None:
        """Lose the newest records of a log."""
        place = self.log(self.dice.choice(ROLES), self.troubled)
        end, begins = len(self.topics.partitions[place]), self.topics.beginnings.get(place, 0)
        self.topics.truncate(place.topic, max(begins, end - self.dice.choice([1, 5, 20])))
        self._restarted()

    def _restarted(self) -> None:
        """Let the job connect again: a log loses records when its broker restarts, which leads all groups."""
        self.is_damaged = True
        self.turn()

    def make_anew(self) -> None:
        """Make a topic anew."""
        self.topics.make_anew([self.log(self.dice.choice(ROLES), self.troubled).topic])
        self._restarted()

    def drop(self) -> None:
        """Drop records of FORWARD, as a retention does that is too short."""
        place = self.log("forward", self.troubled)
        self.is_damaged = True
        self.topics.drop(place.topic, self.dice.randint(0, len(self.topics.partitions[place])))

    def write_garbage(self) -> None:
        """Write a record that abcast did not encode."""
        junk: Any = self.dice.choice([None, b"", b"\xff\xfe", b"1 2 3 message 4"])
        headers = [] if self.dice.random() < 0.3 else [("abcast", junk or b"\x00")]
        self.topics.append(self.log(self.dice.choice(ROLES), self.troubled), junk, junk, headers)

    def flood(self) -> None:
        """Send more than the job holds."""
        for _ in range(FLOOD):
            self._send(self.troubled)

    # The end.

    def end(self) -> None:
        """Heal all, and judge."""
        self.heal()
        for _ in range(ROUNDS):
            self.clock.sleep(5)
            self.look()
            for _ in range(TURNS):
                self.turn()
            if self.anomalies:
                return
        for group in self.fine:
            self._judge(group, LOST)
        if not self.is_damaged:
            self._judge(self.troubled, LOST)


@contextmanager
def playing(seed: int) -> Iterator[Groups]:
    """A world in which a history can be played."""
    world, level = Groups(seed), logging.root.manager.disable
    logging.disable(logging.ERROR)  # of the troubles
    with world.clock.installed(), patch("connectors.takeover.takeover.SideBySide", InTurn):
        try:
            yield world
            world.kill()
        finally:
            logging.disable(level)


def run(seed: int, mutation: Mutation = NONE) -> list[Anomaly]:
    """Run a history; return its violations."""
    with mutation.broken(), playing(seed) as world:
        return world.run()


def explain(seed: int, mutation: Mutation, _: str) -> str:
    """Return the story of the history."""
    with mutation.broken(), playing(seed) as world:
        world.run()
        return "\n".join(world.story)
