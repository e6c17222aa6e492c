"""Handovers in a group's world: an operator asks a standby to take over, and the request is lost, late or repeated.

Each job of such a world is a process of its own, whose end the others on the host see.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from connectors.engine import standby
from connectors.engine.standby import Seen
from connectors.kafka.codec.epochs import Handover, StrayClaim, decode
from connectors.kafka.groups.topic_finder import TopicFinder
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.epoch_log import Epochs
from connectors.kafka.transport import Producer
from connectors.takeover import takeover
from connectors.takeover.handover import AGAIN_S, hand_over
from connectors.takeover.survey import Survey
from connectors.takeover.takeover import Claimer
from ordering.base.errors import UsageError
from ordering.sequencer.state import SequencerState
from tests.world.group_job import GROUP, SITE
from tests.world.kafka import partition
from tests.world.stepping import InTurn, Stepped

if TYPE_CHECKING:
    from tests.world.group import GroupWorld

CLAIMS = partition("epoch", SITE)
UNASKED = "unasked"
"""A standby follows a request that is not for it, or no more, or claims behind a newer claim than the request names."""
UNHEARD = "unheard"
"""A standby that waits does not follow a request."""
LATE_MS = 15_000
"""The age of a request that no standby may follow any more."""
PAUSES_MS = (0, 0, 0, 0, 0, 0, 300, 5_000, LATE_MS)
ROUNDS = 600
OPERATOR = 1


class Handovers:
    """The operators of a world, its processes, and the requests."""

    def __init__(self, world: GroupWorld) -> None:
        self._world = world
        self._followed = 0
        self._epochs: dict[str, int] = {}
        """The epoch that the request names, by the process that follows it."""

    def patches(self) -> Mapping[str, Any]:
        """Return the patches for a history: each job has a pid of its own, if some stand by."""
        if not self._world.shape.standbys:
            return {}
        world, handovers = self._world, self

        class Watched(standby._Lookout):
            def look(self, finder: TopicFinder) -> Seen:
                seen = super().look(finder)
                handovers._epochs.pop(world.actors.actor, None)
                if seen.is_asked:
                    handovers.check(self._logs[GROUP].epochs.known)
                return seen

        def claim(found: Survey, producer: Producer, by: Claimer, *looks: Any) -> SequencerState:
            newest, own = world.newest_epoch(), by.claimed.get(GROUP, 0)
            state = claims(found, producer, by, *looks)
            asked = handovers._epochs.pop(world.actors.actor, newest)
            if newest > max(asked, own):
                world.blame(UNASKED, f"{world.actors.actor} replaces epoch {newest}, asked to replace {asked}.")
            return state

        claims = takeover._claim

        def this_process() -> tuple[str, int]:
            kind, _, number = world.actors.actor.partition(" ")
            return "host", 100 + int(number) if kind == "job" else OPERATOR

        def is_there(pid: int) -> bool:
            return any(job is not None and job.process.name == f"job {pid - 100}" for job in world.jobs)

        return {
            "connectors.engine.standby._Lookout": Watched,
            "connectors.takeover.takeover._claim": claim,
            "connectors.takeover.groups.SideBySide": InTurn,
            "connectors.kafka.codec.epochs.this_host": lambda: "host",
            "connectors.kafka.codec.epochs.this_process": this_process,
            "connectors.engine.standby.this_process": this_process,
            "connectors.kafka.log.standby_sign.this_process": this_process,
            "connectors.kafka.codec.epochs._is_there": is_there,
        }

    def check(self, known: Epochs) -> None:
        """Check that the standby that acts may follow the newest request."""
        self._followed += 1
        world, asked, pid = self._world, known.handover, int(self._world.actors.actor.split()[1]) + 100
        assert asked is not None
        self._epochs[world.actors.actor] = asked.epoch
        age_ms = world.actors.now_ms - asked.signed_ms
        if asked.pid != pid or asked.epoch != known.newest_epoch or age_ms >= LATE_MS:
            world.blame(UNASKED, f"process {pid} follows {asked} in epoch {known.newest_epoch}, {age_ms} ms old.")

    def ask(self, *, has_faults: bool) -> bool:
        """Ask the standby to take over, while all jobs go on. Whether it has."""
        world, dice = self._world, self._world.dice

        def sleep(seconds: float) -> None:
            world.actors.sleep(seconds)
            process.call()

        process = Stepped("operator", lambda: hand_over(world.connect(process), [GROUP], SITE, sleep=sleep))
        for _ in range(ROUNDS):
            with world.actors.acting(process.name):
                if not process.step(dice.randint(1, 6)):
                    break
            if has_faults and dice.random() < 0.03:
                break
            for who in range(len(world.jobs)):
                world._step(who, dice.randint(1, 10))
            world.pass_time(dice.choice(PAUSES_MS) if has_faults else 100, (), 0.0)
        is_done = process.has_ended and process.error is None
        process.kill()
        if not (is_done or has_faults or isinstance(process.error, UsageError)):
            world.tell(f"the operator ends: {process.error}")
        return is_done

    def repeat(self) -> None:
        """Write the newest request again: a retry that nobody waits for."""
        for record in reversed(self._world.kafka.topics.partitions[CLAIMS]):
            try:
                entry = decode("", record.offset, record.value, record.headers, 0)
            except StrayClaim:
                continue
            if isinstance(entry, Handover):
                self._world.kafka.topics.append(CLAIMS, record.key, record.value, record.headers)
                return

    def check_the_end(self) -> None:
        """Check that a standby is heard, started beside a sequencer, and takes over."""
        world = self._world
        world._start(1)
        before = self._followed
        for _ in range(4):  # a standby may be in the midst of a takeover, which wins over a request for another one
            world.pass_time(int(AGAIN_S * 1_000), (), 0.0)
            if self.ask(has_faults=False) and self._followed > before:
                break
        else:
            world.blame(UNHEARD, "a standby waits, and does not follow the request.")
        with DataLog(world.operator, GROUP, SITE) as log:
            claim = log.epochs.read().newest_claim
        assert claim is not None
        for who, job in enumerate(world.jobs):
            if job is not None and job.process.name != f"job {claim.pid - 100}":
                world._kill(who)
        world.kafka.leftovers.clear()
        world.jobs.sort(key=lambda job: job is None)
        for _ in range(20):
            world._step(0, 20)
            job = world.jobs[0]
            if job is None or (job.pipeline is not None and job.pipeline.state.epoch == claim.epoch):
                break
        world._settle_job()
