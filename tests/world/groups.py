"""Three groups at a site, on one job of the process engine: one seed, one history.

It runs the shipped takeovers, supervisor, loop and maintenance on a Kafka in memory
(`connectors.testing.memory_kafka`). It replaces only the pool of threads that asks groups side by side: here each is
asked in turn. Guests come to all groups (`tests.world.guests`). One group has troubles: a partition is away, or a part
of it; its writes are refused; the job loses the right to a topic; a log is cut or made anew; records are no messages,
or no DATA; a sender floods it. What must hold:

* isolation: the job goes on, claims no other group again, signs for the others, and orders their messages within some
  turns;
* progress: once the trouble is over, all messages of that group are ordered, too, or `suspended` says why not.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest.mock import patch

from kafka.structs import TopicPartition

from connectors.engine.options import EngineOptions
from connectors.engine.writing import Writer
from connectors.kafka.codec.codec import decode_data, forward_headers
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.sign_of_life import SIGN_EVERY_S
from connectors.kafka.topics.data_purge import purge_data
from connectors.kafka.topics.senders import forget_senders, known_senders
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.memory_topics import OFFSETS, READS, WRITES, MemoryTopics
from ordering.base.errors import AbcastError
from ordering.base.names import Role
from ordering.base.packs import unpacked
from ordering.base.reader import Reader, Verdict
from ordering.base.records import JOIN, MAX_NUMBER, MESSAGE, SETTINGS
from ordering.checker.anomalies import DUPLICATE, LOST, Anomaly
from ordering.membership.settings import Settings
from tests.simulator.mutation import NONE, Mutation
from tests.world import jobs
from tests.world.actors import Actors
from tests.world.clock import Clock
from tests.world.guests import DAY_MS, OFTEN, Guests
from tests.world.jobs import in_format
from tests.world.kafka import WorldConnection, WorldKafka, partition
from tests.world.powers import LIMITS
from tests.world.stepping import InTurn

SITE = "s"
GROUPS = ("a", "b", "c")
ROLES: tuple[Role, ...] = ("data", "epoch", "forward")
SENDER = b"s/m"
GUESTS = (
    "ledger",
    "counts",
    "format",
    "day",
    "closed",
    "forget",
    "purge",
    "two",
    "own clock",
    "clock",
    "marker",
    "limits",
)
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
UNSIGNED = "unsigned"
"""The trouble of one group costs another one its signs of life."""
CLAIMED = "claimed again"
"""The trouble of one group fences the epoch of another."""


class Job(jobs.Job):
    """An attempt of the job. Its writer is the one that ships, as a group that can't be written ends no other."""

    def writer(self, connection: Connection) -> Writer:
        """Return the writer of all groups."""
        return Writer(connection)


class OneJob(Actors):
    """The time of a world whose only actor is the job: its waits let time pass."""

    sleep, monotonic = Clock.sleep, Clock.monotonic


class Groups:
    """The world of a seed."""

    def __init__(self, seed: int, mutation: Mutation = NONE) -> None:
        self.dice = random.Random(seed)
        self.clock = OneJob(self.dice)
        self.guests = Guests(seed, GUESTS, mutation)
        self.kafka = WorldKafka(seed, self.clock, [power for power in ("clock", "marker") if self.guests.has(power)])
        self.topics = self.kafka.topics
        self.topics.clock = lambda: self.clock.now_ms / 1000
        self.topics.silence_s = MemoryTopics().silence_s
        self.connection = MemoryConnection(topics=self.topics)
        for group in GROUPS:
            self.connection.create(group, SITE)
        self.troubled = self.dice.choice(GROUPS)
        self.fine = [group for group in GROUPS if group != self.troubled]
        self.life = dict.fromkeys(GROUPS, 0)
        """By group: its sender's incarnation, and the last of its local seqnos. `sent`: its messages, each by both."""
        self.last = dict.fromkeys(GROUPS, 0)
        self.sent: dict[str, list[tuple[int, int]]] = {group: [] for group in GROUPS}
        self.is_damaged = False
        """Whether the troubled group has lost records."""
        self.job: Job | None = None
        self.zombie: Job | None = None
        """A job that goes on although another one has taken over."""
        self.anomalies: list[Anomaly] = []
        self.story: list[str] = []
        for group in GROUPS:
            self.begin_life(group)

    def log(self, role: Role, group: str) -> TopicPartition:
        """Return a group's partition."""
        return partition(role, SITE, group=group)

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
        if self.guests.has("closed"):
            self.close_groups()
        for act in self.dice.choices([act for _, act in acts], [weight for weight, _ in acts], k=ACTIONS):
            self.story.append(f"{self.clock.steady_s:>8.1f} s  {act.__name__}")
            act()
            self.let_guests_act()
            if self.anomalies:
                return self.anomalies
        self.end()
        return self.anomalies

    # The job.

    def start(self) -> None:
        """Start the job, whatever trouble a group has."""
        try:
            self.job = Job(EngineOptions(self.connection, SITE), self.clock)
        except AbcastError as error:
            self.blame(ENDED, f"no start: {error}")

    def start_again(self) -> None:
        """Start another job. The first one is killed, or goes on for a while."""
        if self.guests.has("two") and self.zombie is None:
            self.zombie, self.job = self.job, None
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
        later = self.guests.later()
        self._working(lambda job: job.decide(None, later))

    def look(self) -> None:
        """Let the supervisor take a turn."""
        self.clock.sleep(1)
        began_s = self.clock.steady_s
        self._working(lambda job: job.supervisor.turn(looks=True))
        assert self.job is not None
        supervisor, took_s = self.job.supervisor, self.clock.steady_s - began_s
        hangs = supervisor._has_told  # so it gives no sign
        unsigned_s = {} if hangs else supervisor._troubles.unsigned_s()
        for group in self.fine:
            if unsigned_s.get(group, 0.0) - took_s > SIGN_EVERY_S:
                self.blame(UNSIGNED, f"group {group}, which has no trouble, for {unsigned_s[group]:.1f} s")

    def wait(self) -> None:
        """Let time pass."""
        self.clock.sleep(self.dice.choice([0.1, 1.0, 10.0, 60.0]))

    # Messages.

    def send(self) -> None:
        """Send a message to a group."""
        self._send(self.dice.choice(GROUPS))

    def _send(self, group: str) -> None:
        self._write(group, MESSAGE)
        self.sent[group].append((self.life[group], self.last[group]))

    def _write(self, group: str, kind: str, payload: bytes = b"x") -> None:
        self.last[group] += 1
        headers = forward_headers(self.life[group], self.last[group], kind=kind)
        self.topics.append(self.log("forward", group), SENDER, payload, headers)

    def begin_life(self, group: str) -> None:
        """Let the group's sender begin an incarnation."""
        self.life[group], self.last[group] = self.life[group] + 1, 0

    def close_groups(self) -> None:
        """Close the groups, and let their senders join, which are never suspected."""
        settings = Settings(closed=True, suspect_after_ms=MAX_NUMBER).to_json()
        for group in GROUPS:
            headers = forward_headers(1, 1, kind=SETTINGS)
            self.topics.append(self.log("forward", group), b"s/abcast.admin", settings, headers)
            self._write(group, JOIN)
        for _ in range(TURNS):
            self.turn()

    def ordered(self, group: str) -> list[tuple[int, int]]:
        """Return the incarnations and local seqnos of the group's messages, in the order of DATA."""
        reader, found = Reader(), list[tuple[int, int]]()
        for record in self.topics.partitions[self.log("data", group)]:
            data = decode_data(record.key, record.value, record.headers)
            if reader.judge(data) is Verdict.TAKE:
                found += [each.id[1:] for each in unpacked(data) if each.kind == MESSAGE]
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
        if found != self.sent[group]:
            self.blame(name, f"group {group} has {len(found)} of {len(self.sent[group])} messages.")

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
        self.topics.limits.clear()
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

    # Guests.

    def let_guests_act(self) -> None:
        """Let guests do what they do in all groups, or in one."""
        guests, group = self.guests, self.guests.dice.choice(GROUPS)
        self.kafka.mishap(self.kafka.places(ROLES), 0.1)
        guests.keep_ledger(WorldConnection.to(self.kafka, SITE), self.fine[0])
        if guests.has("limits") and guests.dice.random() < OFTEN:
            self.topics.limits[self.log(guests.dice.choice(ROLES), self.troubled).topic] = guests.dice.choice(LIMITS)
        if guests.has("own clock") and guests.dice.random() < OFTEN:
            self.clock.jump(guests.dice.choice((3_600.0, -3_600.0)))
        if guests.lets_a_day_pass():
            self.clock.sleep(DAY_MS / 1000)
        with suppress(AbcastError):
            if guests.has("forget") and guests.dice.random() < OFTEN:
                rows = [each.row for each in known_senders(self.connection, group, SITE)]
                forget_senders(self.connection, group, SITE, rows, timeout_s=0.0)
                if not guests.has("closed"):  # members are kept
                    self.begin_life(group)
            if guests.has("purge") and guests.dice.random() < OFTEN:
                in_ledger = guests.table.last_seqno if guests.has("ledger") and group == self.fine[0] else MAX_NUMBER
                purge_data(self.connection, group, SITE, kept_s=0.0, in_ledger=in_ledger, lacking=lambda *_: "")
        self._let_the_zombie_act()

    def _let_the_zombie_act(self) -> None:
        if self.zombie is not None:
            with suppress(AbcastError):
                self.zombie.decide(None)
            if self.guests.dice.random() < OFTEN:
                self.zombie.close()
                self.zombie = None

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
        self.anomalies += self.guests.check_ledger(WorldConnection.to(self.kafka, SITE), self.fine[0])


@contextmanager
def playing(seed: int, mutation: Mutation = NONE) -> Iterator[Groups]:
    """Provide a world in which a history can be played."""
    world, level = Groups(seed, mutation), logging.root.manager.disable
    logging.disable(logging.ERROR)  # of the troubles
    with ExitStack() as stack:
        stack.callback(logging.disable, level)
        for context in (world.clock.installed(), in_format(seed, mutation), mutation.broken()):
            stack.enter_context(context)
        patches: dict[str, Any] = {
            "connectors.takeover.takeover.SideBySide": InTurn,
            "secrets.randbelow": world.guests.dice.randrange,
            "time.time_ns": lambda: round(world.clock.now_s * 1e9),
            **world.guests.patches(),
        }
        for target, replacement in patches.items():
            stack.enter_context(patch(target, replacement))
        yield world
        world.kill()


def run(seed: int, mutation: Mutation = NONE) -> list[Anomaly]:
    """Run a history; return its violations."""
    with playing(seed, mutation) as world:
        return world.run()
