"""The site of a world of members: its Kafka, its sequencer's job as it ships, and its operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kafka.structs import TopicPartition

from connectors.engine.options import EngineOptions
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.topics.data_purge import purge_data
from connectors.kafka.transport.partitioner import partition_of
from ordering.base.errors import AbcastError, HistoryUnavailable, ProtocolViolation, UsageError
from ordering.base.records import FORGET, MAX_NUMBER, SETTINGS
from ordering.membership.flush import FlushPhase
from ordering.membership.forgetting import idle_rows, to_payload
from ordering.membership.membership import ReceivedRow
from ordering.membership.settings import Settings
from ordering.participant.participant import Participant, ParticipantStep, step
from ordering.participant.participant_events import Event
from tests.world.guests import Guests
from tests.world.jobs import Job
from tests.world.kafka import Log, WorldConnection, WorldKafka, partition
from tests.world.member_parts import GROUP, SITE, SteppedRejoin, Tailer, count_incarnations
from tests.world.membership_checks import ENDED_JOB, OTHER_STATE, MembershipChecks, decided
from tests.world.threads import StillAfterCallbacks, StillBeats

IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""The place of outboxes: a disk in memory, where there is one."""
LONGEST_SKEW_MS = 10 * 3_600_000
ADMIN = f"{SITE}/abcast.admin"
OWN_FORWARD = partition("forward", SITE)


@dataclass
class Site:
    """The group's site."""

    kafka: WorldKafka
    connection: WorldConnection


class MembershipKafka(WorldKafka):
    """A Kafka whose clocks are hours apart at most."""

    def _clock(self, log: Log) -> None:
        super()._clock(log)
        log.skew_ms = max(-LONGEST_SKEW_MS, min(LONGEST_SKEW_MS, log.skew_ms))


class MembershipJobs(MembershipChecks):
    """The work of sequencers and operators in a history."""

    settings: Settings

    def __init__(self, seed: int, actions: Mapping[str, int], powers: Sequence[str]) -> None:
        super().__init__(seed, actions)
        self.kafka = MembershipKafka(seed, self.actors, powers)
        self.connection = WorldConnection.to(self.kafka, SITE)
        self.sites = {SITE: Site(self.kafka, self.connection)}
        self.guests = Guests(seed, ())
        self.job: Job | None = None
        self.changes = self.spoken = self.last_incarnation = 0
        self.crashes = Counter[tuple[str, FlushPhase]]()
        """Crashes by process and phase of a flush."""

    def next_number(self) -> int:
        """Return the next broadcast's number: its local seqno may change until it is sent."""
        self.spoken += 1
        return self.spoken

    @contextmanager
    def shipping(self) -> Iterator[None]:
        """Run the parts that ship by turns, with this world's clock."""
        client = "connectors.client"
        numbers = f"{client}.memory.incarnation_numbers.IncarnationNumbers"
        patches = {
            f"{client}.tail.go_back_n.BUSY_RECORDS": 2,
            f"{client}.tail.sharing.LogTailer": Tailer,
            f"{client}.tail.sharing.Heartbeats": StillBeats,
            f"{client}.tail.sharing.AfterCallbacks": StillAfterCallbacks,
            f"{client}.incarnation.sender.Rejoin": SteppedRejoin,
            f"{client}.incarnation.driver.step": self._watched_step,
            f"{client}.incarnation.forwarder.step": self._watched_step,
            f"{numbers}.claim": lambda *claim: self._claim(*claim),
            f"{numbers}.is_of_a_wrong_clock": lambda *_: False,
        }
        with ExitStack() as stack:
            stack.enter_context(self.actors.installed())
            for target, replacement in patches.items():
                stack.enter_context(patch(target, replacement))
            yield

    def _claim(self, numbers: Any, above: int, note: Callable[[int], object]) -> int:
        """Claim the next incarnation of a name. A name that was forgotten needs a higher one than all forgotten."""
        above = max(above, self.last_incarnation) if self.guests.has("forget") else above
        self.last_incarnation = count_incarnations(numbers, above, note)
        return self.last_incarnation

    def _watched_step(self, before: Participant, event: Event) -> ParticipantStep:
        """Take a step of a participant, as it ships, and let the process see it."""
        after, actions = step(before, event)
        self.newest[after.member.address].stepped(before, event, after, actions)
        return ParticipantStep(after, actions)

    def close(self) -> None:
        """Kill all that runs."""
        for process in self.alive:
            process.die()
        self._sequencer_crash()

    def append(
        self, sender: str, incarnation: int, number: int, kind: str, payload: bytes, of: TopicPartition = OWN_FORWARD
    ) -> None:
        """Append a record, unless its partition is away."""
        if of not in self.kafka.topics.away:
            headers = forward_headers(incarnation, number, kind=kind)
            self.kafka.topics.append(of, sender.encode(), payload, headers)

    def _sequencer_crash(self) -> None:
        self.crashes["sequencer", self.known().membership.flush.phase] += 1
        if self.job is not None:
            self.job.close()
            self.job = None

    def _look(self) -> None:
        if self.job is not None:
            self._drive(self.job.look)

    def _sequence(self) -> None:
        """A batch; the process may die in the middle of writing it."""
        if self.job is None:
            self._drive(self._take_over)
            return
        cut = self.dice.randint(0, 3) if self.dice.random() < 0.05 and not self.is_steady else None
        job, later = self.job, self.guests.later()
        if self._drive(lambda: job.decide(cut, later)):
            self._check_state(job)

    def _take_over(self) -> None:
        self.job = Job(EngineOptions(self.connection, SITE), self.actors)

    def _drive(self, act: Callable[[], object]) -> bool:
        """Let the job act; return whether it goes on."""
        try:
            with self.actors.acting("job"):
                is_alive = act() is not False
        except AbcastError as error:
            self.note_error("job", error)
            if isinstance(error, ProtocolViolation | HistoryUnavailable | UsageError):
                self.blame(ENDED_JOB, str(error))
            is_alive = False
        if not is_alive:
            self._sequencer_crash()
        return is_alive

    def _check_state(self, job: Job) -> None:
        """Check that DATA tells the state that the sequencer has."""
        driver = job.loop._groups.get(GROUP)
        if driver is not None and not driver.in_flight:
            known, has = decided(self.known()), decided(driver.machine.pipeline.state)
            if known != has:
                self.blame(OTHER_STATE, f"DATA tells {known}, but the sequencer has {has}")

    def _settings(self) -> None:
        """The operator lets everybody send, or members only; and opens a group again at once, now and then."""
        if self.known().membership.settings == self.settings:  # one change after the other
            self.change_settings(replace(self.settings, closed=not self.settings.closed))

    def change_settings(self, settings: Settings) -> None:
        """Write the settings, unless FORWARD is away."""
        if OWN_FORWARD not in self.kafka.topics.away:
            self.settings = settings
            self.changes += 1
            self.append(ADMIN, self.changes, 1, SETTINGS, settings.to_json())

    def _forget(self, before: Mapping[str, ReceivedRow]) -> None:
        """The operator has senders forgotten whose rows are still these."""
        known, topic = self.known(), OWN_FORWARD.topic
        if known.membership.settings != self.settings:  # one change after the other
            return
        rows = [row for row in idle_rows(before, known.received, known.membership.keeps_row) if row.sender != ADMIN]
        count = len(self.kafka.topics.numbers(topic))
        for row in (row for row in rows if row.sender.startswith(f"{SITE}/")):
            place = TopicPartition(topic, partition_of(row.sender.encode(), count))
            self.changes += 1
            self.append(ADMIN, self.changes, 1, FORGET, to_payload([row]), place)
            self._sequence()

    def _purge(self) -> None:
        """Drop the parts of DATA and FORWARD that no start needs. Processes that have not read that have missed it."""
        in_ledger = self.guests.table.last_seqno if self.guests.has("ledger") else MAX_NUMBER
        if not self.kafka.topics.away:
            with self.actors.acting("operator"), suppress(HistoryUnavailable):
                purge_data(self.connection, GROUP, SITE, kept_s=0.0, in_ledger=in_ledger, lacking=lambda *_: "")
                for place, offset in self.known().positions.items():
                    self.kafka.log(*place).drop(offset)
