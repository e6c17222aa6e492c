"""A group whose members send in all orders at once, at one or two sites: one seed, one history.

It runs what ships, an actor at a time, on Kafkas in memory: processes with a member each (`tests.world.casts_member`),
the sequencer (`tests.world.jobs`), the hub's relays of DATA, FORWARD and casts. Members join, are killed, start again
with an outbox or without one, and pause for so long that the group goes on without them. Applications get the state
from each other. Casts are refused, are on their way for long, and come twice; relays are killed, repeat, and run twice;
links are cut. In some histories partitions have powers (`tests.world.powers`) and a retention: it drops a cast once
every reader has delivered it, every joiner will get a state that has it, and every relay has carried it. In some,
members hold few casts; in some, the group has no flush. In a quarter, a member's client counts casts that do not exist.

    python -m tests.simulator --casts --seeds 1000
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from connectors.client.casts import caster
from connectors.kafka.codec.codec import forward_headers
from ordering.base.records import SETTINGS
from ordering.casts import merging
from ordering.casts.causal import CausalReceiver, CausalState
from ordering.casts.unwritten_casts import Course, InheritedCast
from ordering.checker.anomalies import LOST, Anomaly
from ordering.membership.settings import Settings
from tests.relay.carrying import relays_in_memory
from tests.simulator.mutation import NONE, Mutation
from tests.world.casts_actions import MOST_MEMBERS, STEP_MS, SUSPECT_AFTER_MS, CastActions
from tests.world.jobs import in_format
from tests.world.kafka import partition
from tests.world.threads import parked

COUNT = 220
"""The actions of a history."""
ROUNDS = 400
"""The rounds after the last fault until nothing may wait any more."""
QUIET_ROUNDS = 12
"""The rounds without progress that end a calm: a reader skips each with `casts_kafka.SKIPPED`."""
STALL_S = 0.4
"""The seconds after which a reader looks whether it waits in vain."""


class CastWorld(CastActions):
    """A history."""

    def run(self) -> list[Anomaly]:
        """Act, settle, judge."""
        settings = Settings(
            flush=self.has_flush,
            suspect_after_ms=SUSPECT_AFTER_MS,
            flush_timeout_ms=4_000,
            closed=self.guests.has("closed"),
        )
        self.sites["n"].kafka.topics.append(
            partition("forward", "n"), b"n/abcast.admin", settings.to_json(), forward_headers(1, 1, kind=SETTINGS)
        )
        for _ in range(3):
            self._decide()
        self._relay_all()
        for _ in range(self.dice.randint(2, 4)):
            self._start()
        self.calm(30)
        self._begin_to_lie()
        for _ in range(COUNT):
            self.act()
            if self.anomalies:
                return self.anomalies
        return self.end()

    # --- the end ---

    def _begin_to_lie(self) -> None:
        joined = [each for each in self.members if each.joined is not None]
        if self.lies and len(joined) > 2:
            self.liar = self.dice.choice(joined)
            self.liar.lie(self.dice.choices((1, 2, 1_000), k=self.dice.randint(1, 4)))

    def calm(self, rounds: int) -> bool:
        """Let all go on for so many rounds; return whether nothing has happened in the last ones."""
        quiet, before, self.later = 0, "", 0
        for number in range(rounds):
            self.pass_time(STEP_MS * 4, (), 0.0)
            if number % 12 == 0:
                self._beat()
                self._look()
            self._decide()
            self._relay_all()
            self._ask()
            for member in list(self.members):
                for part in ("tail", "read", "deliver", "call", "rejoin", "read_for_application", "take", "take"):
                    if member.is_alive:
                        self.turn(part, member)
            if self.anomalies:
                return False
            now = self._progress()
            quiet, before = (quiet + 1 if now == before else 0), now
            if quiet > QUIET_ROUNDS and self._is_settled():
                return True
        return False

    def _progress(self) -> str:
        return str([each.progress for each in self.members])

    def _is_settled(self) -> bool:
        return all(each.is_settled for each in self.members)

    def end(self) -> list[Anomaly]:
        """Heal all; let everything go on until nothing happens any more; judge."""
        self.cut.clear()
        self.slow.clear()
        for at in self.sites.values():
            at.kafka.heal()
            for place in list(at.kafka.topics.away):
                at.kafka.topics.bring_back(place.topic, place.partition)
        for member in self.members:
            member.is_paused = False
            member.connection.lies.clear()
        self.tell("all heals")
        is_settled = self.calm(ROUNDS // 2) or (self._start_again_by_hand() and self.calm(ROUNDS))
        if not self.anomalies and not is_settled:
            waiting = [each.name for each in self.members if not each.is_settled]
            self.blame(LOST, f"these wait for ever: {waiting or 'all go on without end'}")
        if not self.anomalies:
            self._judge()
        return self.anomalies

    def _start_again_by_hand(self) -> bool:
        """Start anew what waits for casts of another site in vain, as a warning there says; return whether to go on.

        Another start makes a view, which casts of an outbox may wait for.
        """
        self._start(2 * MOST_MEMBERS)
        for member in list(self.members) if self.liar is not None else ():
            stalls = [stall for log in member.logs for stall in log.merger.causal.stalls()]
            if any(stall.missing is not None and stall.missing.address[0] != member.address[0] for stall in stalls):
                self.seen["started again by hand"] += 1
                self.end_process(member)
                self._start()
        return not self.anomalies

    def _judge(self) -> None:
        readers = []
        for member in self.members:
            if member.joined is not None and member.application is not None:
                readers += [member.hub_seen, member.application.seen]
        self.judge.end(readers, lambda process: any(process is each for each in self.members))
        self.anomalies += self.guests.check_ledger(self.sites["n"].connection)

    def close(self) -> None:
        """End all processes."""
        self._end_job()
        for member in self.members:
            member.kill()


@contextmanager
def playing(seed: int, mutation: Mutation = NONE) -> Iterator[CastWorld]:
    """Provide a world in which a history can be played."""
    with TemporaryDirectory(dir="/dev/shm", prefix="abcast-") as folder, ExitStack() as stack:
        world = CastWorld(seed, mutation, folder)
        for context in (relays_in_memory(), world.actors.installed(), parked(), in_format(seed, mutation)):
            stack.enter_context(context)
        stack.enter_context(patch("secrets.randbelow", world.dice.randrange))
        stack.enter_context(patch("time.time_ns", lambda: round(time.time() * 10**9)))
        stack.enter_context(patch("connectors.client.tail.merged_log.STALL_S", STALL_S))
        stack.enter_context(patch("connectors.client.tail.merged_log.AGAIN_AFTER_S", STALL_S / 4))
        for target, replacement in world.guests.patches().items():
            stack.enter_context(patch(target, replacement))
        stack.enter_context(mutation.broken())
        stack.enter_context(patch("ordering.casts.merging.CausalReceiver", partial(_receiver(), world)))
        stack.enter_context(patch("connectors.client.casts.caster.course_of", partial(_course_of(), world)))
        try:
            yield world
        finally:
            world.close()


def _receiver() -> Any:
    broken: type[CausalReceiver] = vars(merging)["CausalReceiver"]

    def receiver(world: CastWorld, state: CausalState) -> CausalReceiver:
        return broken(state, world.max_held, max_waiting=5 if world.max_held < 1_000 else 10_000)

    return receiver


def _course_of() -> Any:
    broken = vars(caster)["course_of"]

    def course_of(world: CastWorld, inherited: InheritedCast, *where: Any) -> Course:
        """Let others lack a cast that counts as delivered, perhaps by a wrong clock."""
        course: Course = broken(inherited, *where)
        if course is Course.DELIVERED and world.liar is not None:
            world.judge.may_lack(int(inherited.payload))
        return course

    return course_of


def run(seed: int, mutation: Mutation = NONE) -> list[Anomaly]:
    """Run one history; return what it breaks."""
    with playing(seed, mutation) as world:
        return world.run()
