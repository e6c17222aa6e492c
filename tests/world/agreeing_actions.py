"""Actions at sites that agree: of their jobs, members, relays and operators; and the checks beside them."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from kafka.structs import TopicPartition

from connectors.engine.exclusion import exclude
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.topics.data_purge import purge_data
from connectors.relay.agreed import Agreed
from connectors.takeover.agreement import AgreementSettings, known_state, neighbours_of
from ordering.agreement.formation import View
from ordering.agreement.log import OrderedRun, ranges_of
from ordering.base.errors import (
    AbcastError,
    BrokerUnreachable,
    HistoryUnavailable,
    KafkaRefused,
    ProtocolViolation,
    UsageError,
)
from ordering.base.records import HEARTBEAT, JOIN, MAX_NUMBER, MESSAGE, SETTINGS
from ordering.checker.anomalies import VIEW_VIOLATION
from ordering.membership.settings import Settings
from ordering.sequencer.state import SequencerState
from tests.relay.carrying import Carrier
from tests.world.actors import Killed
from tests.world.agreeing_jobs import Job
from tests.world.agreeing_sites import GROUP, AgreeingSite, Sender, made_from
from tests.world.guests import Guests
from tests.world.kafka import TooLarge, WorldKafka, partition
from tests.world.world import World

SUSPECT_AFTER_MS = 400
MEMBER_SUSPECT_AFTER_MS = 600
"""Silence of a member that makes a view without it, which all sites must put in the same place."""
ROUND_MS = 40
MISHAPS = 0.03
"""Probability in each round, at each site."""
ASKS = b"later "
"""The beginning of messages behind which a later version writes a record of its own kind."""
WRONG_STATE = "wrong-state"
UNREADABLE = "unreadable"
"""A run is ordered, and a site that has taken part in that lacks its records."""
EARLY = "early"
"""DATA has a run, and no entry before it has that."""
TWO_LOGS = "two-logs"
"""A site has read something of a log that was lost, and takes the one that was begun in its place."""
ENDED = "ended"
"""A job says that what it needs is not there, though all sites have it in DATA."""


class AgreeingActions(World[AgreeingSite]):
    """The sites, and what they do."""

    def __init__(self, seed: int, actions: Mapping[str, int], powers: Sequence[str], later: float) -> None:
        """`later`: the share of messages behind which a later version writes a record of its own."""
        super().__init__(seed, actions)
        self.guests = Guests(seed, ())
        self.later, self.later_dice = later, random.Random(f"later {seed}")
        names = [f"s{number}" for number in range(self.dice.choice((2, 3, 3, 3, 4, 5, 5, 5, 7)))]
        upgrades = random.Random(f"format {seed}")
        self.sites = {
            name: AgreeingSite(
                WorldKafka(10 * seed + number, self.actors, powers),
                name,
                names,
                1 if later else upgrades.choice((1, 1, 1, 2, 3, 1_000_000)),  # others read no record of several seqnos
            )
            for number, name in enumerate(names)
        }
        links = frozenset(frozenset((one, other)) for one in names for other in names if one != other)
        self.file = Sites("isis", None, "micro-batch", {name: at.connection for name, at in self.sites.items()}, links)
        for name, at in self.sites.items():
            at.agreement = AgreementSettings(neighbours_of(self.file, name), SUSPECT_AFTER_MS)
        self.has_members = seed % 2 == 1
        self.stores_state = seed % 16 == 0
        """Whether jobs store and load their state between two steps, as on Spark."""
        self.sudden_death = 0.04 if later else 0.01
        self.views: dict[int, View] = {}
        self.has_excluded = False
        self.told: set[str] = set()
        self.reached: dict[Direction, tuple[dict[TopicPartition, int], dict[TopicPartition, int]]] = {}
        """By way of a relay: where it was at most in each partition, and where it is now, or was when it ended."""
        self.are_relays_blind = False
        """Whether relays do not look whether a log ends below their positions."""
        self.senders = [Sender(f"{name}/m{n}", name) for name in names for n in range(self.dice.choice((1, 1, 2)))]
        self.jobs: dict[str, list[Job]] = {name: [] for name in names}

    def _crash(self, name: str) -> None:
        while self.jobs[name]:
            self._remove(self.jobs[name][-1])

    def _remove(self, job: Job) -> None:
        """A job dies: what it has under way is lost, or gets there later."""
        self.jobs[job.at.name].remove(job)
        if self.dice.random() < 0.5:
            job.abandon()

    def _stop(self, name: str) -> None:
        for job in self.jobs[name]:
            with self.actors.acting(name), suppress(AbcastError):
                job.stop()
        self._crash(name)

    def keeps_ledger(self, name: str) -> bool:
        """Whether the site has a ledger."""
        return self.guests.has("ledger") and name == self.names[0]

    def in_data(self) -> dict[str, int]:
        """Return the end of each place's records in DATA of all sites."""
        places = [at.place for at in self.sites.values()]
        return {place: min(at.in_data.get(place, 0) for at in self.sites.values()) for place in places}

    def _retire(self, name: str) -> None:
        """Retention drops at a site what no start of its job needs, nor a relay."""
        at = self.sites[name]
        if at.is_lost or at.is_away() or any(self._repeats(Direction(name, other)) for other in self.names):
            return
        drop = at.kafka.topics.drop
        in_ledger = self.guests.table.last_seqno if self.keeps_ledger(name) else MAX_NUMBER
        try:
            with self.actors.acting("operator"):
                state = known_state(at.connection, at.agreement, SequencerState(GROUP))
                purge_data(at.connection, GROUP, name, kept_s=0.0, in_ledger=in_ledger, lacking=lambda *_: "")
        except (ProtocolViolation, HistoryUnavailable, BrokerUnreachable):
            return  # the next start tells that
        for other, there in self.sites.items():
            settled = at.settled.get(there.place, 0)
            if other == name:
                drop(partition("forward", name).topic, settled)
                continue
            copy = partition("relayed", name, other)
            records = at.kafka.topics.partitions[copy]
            kept = (record.offset for record in records if record.headers and made_from(record) >= settled)
            drop(copy.topic, next(kept, len(records)))
            entries = partition("entries", name, other)
            last = at.kafka.last(entries)  # its mark says where the relay goes on
            drop(entries.topic, min(last, state.logs[other].at if other in state.logs else 0))

    def _restart(self, name: str) -> None:
        if not self.jobs[name]:
            self._start(name)

    def _start_second(self, name: str) -> None:
        if len(self.jobs[name]) < 2:
            self._start(name)

    def _run_ahead(self, name: str) -> None:
        """A clock does: its site suspects all others."""
        self.actors.ahead[name] = SUSPECT_AFTER_MS + 2 * ROUND_MS

    def _start(self, name: str) -> None:
        try:
            with self.actors.acting(name):
                self.jobs[name].append(Job(self, self.sites[name]))
        except AbcastError as error:
            self._blame(name, error)

    def _blame(self, name: str, error: AbcastError, *, counts: bool = True) -> None:
        """Note an error that a job has ended with, unless a retry mends that."""
        self.note_error(name, error)
        if not isinstance(error, HistoryUnavailable | ProtocolViolation | UsageError):
            return
        if self.sites[name].is_lost:
            self.told.add(name)
        elif isinstance(error, HistoryUnavailable):
            self.blame(ENDED, f"{name}: {error}")
        elif counts:
            self.blame(WRONG_STATE, f"{name}: {error}")

    def _step(self, name: str) -> None:
        for job in list(self.jobs[name]):
            try:
                with self.actors.acting(name, self.sudden_death):
                    for _ in range(self.dice.choice((1, 2, 2, 3))):
                        job.turn()
            except AbcastError as error:
                self._blame(name, error, counts=job.counts)
                self._remove(job)
            except Killed:
                self._remove(job)
            self._note_held(job)
            self._note_read(job)

    def note_view(self, job: Job, view: View) -> None:
        """Views that entries tell of are the same; one that is in no entry may be forgotten."""
        if job.counts and self.views.setdefault(view.id, view) != view:
            self.blame(VIEW_VIOLATION, f"{self.views[view.id]} and {view}")

    def note_order(self, job: Job, run: OrderedRun, covered: int) -> None:
        """Note that a run gets into DATA before the entry that has it: a crash may then forget how it was ordered."""
        if run.last > covered:
            self.blame(EARLY, f"{run} at {job.at.name}, and its entries have {covered} positions")

    def note_members(self, job: Job, run: OrderedRun) -> None:
        """Behind a run, no member of a site that is absent from its view of sites is in the group's view.

        With flush, the view without it comes when the others have flushed.
        """
        membership = job.site.sequenced.state.membership
        left = [life.address for life in membership.members if life.address.partition("/")[0] in run.absent]
        if left and membership.detector.clock and job.counts and not membership.settings.flush:
            self.blame(VIEW_VIOLATION, f"{left} are in the view without their site")

    def _note_held(self, job: Job) -> None:
        """Note that a site that has proposed for a run has its records."""
        agreement = job.site.process.agreement
        for held in agreement.state.held if agreement is not None else ():
            if any(part.end > job.site.forwards.place(part.place).end for part in ranges_of(held.run)):
                self.blame(UNREADABLE, f"{held.run} at {job.at.name}")

    def _note_read(self, job: Job) -> None:
        """Note that a site has read two logs of another one."""
        for name, at in self.sites.items():
            if at.is_lost and name != job.at.name and at.has_begun(job.site.logs.row(name).digest):
                self.blame(TWO_LOGS, f"{job.at.name} has read two of {name}")

    def _round(self, _name: str = "") -> None:
        """Time goes on, relays carry, jobs work."""
        self.pass_time(self.dice.randrange(1, 2 * ROUND_MS), ("forward", "data", "relayed", "entries"), MISHAPS)
        for name in self.names:
            for other in self.names:
                if self.dice.random() < 0.8:
                    self.relay(name, other)
        for name in self.names:
            self._step(name)

    def _send(self, _name: str = "") -> None:
        """Send new messages; and sometimes earlier ones, or message n + 1 before n."""
        if not self.senders:
            return
        sender = self.dice.choice(self.senders)
        numbers = list(range(sender.ordered + 1, sender.sent + 1)) if self.dice.random() < 0.3 else []
        new = self.dice.choice((1, 1, 2, 5))
        numbers += range(sender.sent + 1, sender.sent + new + 1)
        sender.sent += new
        if self.dice.random() < 0.3:
            self.dice.shuffle(numbers)
        self._forward(sender, numbers)

    def _forward(self, sender: Sender, numbers: list[int]) -> None:
        topics, forward = self.sites[sender.site].kafka.topics, partition("forward", sender.site)
        for number in numbers:
            kind, payload = self._said(sender, number)
            if forward not in topics.away:  # it is sent again
                with suppress(TooLarge):
                    topics.append(forward, sender.name.encode(), payload, forward_headers(1, number, kind=kind))

    def _said(self, sender: Sender, number: int) -> tuple[str, bytes]:
        if self.dice.random() < 0.05:
            return HEARTBEAT, b""
        if self.has_members and number == 1:
            return JOIN, b""
        if self.has_members and number == 2 and sender is self.senders[0]:
            return SETTINGS, Settings(suspect_after_ms=MEMBER_SUSPECT_AFTER_MS).to_json()
        if self.later_dice.random() < self.later:
            return MESSAGE, ASKS + b"%d" % self.later_dice.choice((1, 2, 3, 7))
        return MESSAGE, b"%s %d" % (sender.name.encode(), number)

    def _exclude(self, name: str) -> None:
        """An operator decides once, at one site, and about sites that are down."""
        down = tuple(other for other in self.names if not self.jobs[other])
        if self.jobs[name] and down and not self.has_excluded and not self.sites[name].is_away():
            self.has_excluded = True
            self._go_on_without(name, down)

    def _go_on_without(self, name: str, others: Collection[str]) -> None:
        with self.actors.acting("operator"):
            for other in others:
                with suppress(UsageError, BrokerUnreachable, KafkaRefused, HistoryUnavailable):
                    exclude(self.sites[name].connection, GROUP, name, other, 0.0)

    def relay(self, source: str, target: str) -> None:
        super().relay(source, target)
        if (relay := self.relays.get(way := Direction(source, target))) is not None:
            most, _ = self.reached.get(way, ({}, {}))
            now = dict(relay.positions)
            self.reached[way] = {place: max(at, most.get(place, 0)) for place, at in now.items()}, now

    def _repeats(self, way: Direction) -> bool:
        """Whether a relay has gone back, and has not copied all of it again: the next one goes on from there."""
        most, now = self.reached.get(way, ({}, {}))
        return most != now

    def is_blind(self, relay: Carrier) -> bool:
        """Whether the relay does not look at its source now."""
        return self.are_relays_blind and relay.is_beyond

    def new_relay(self, way: Direction) -> Carrier:
        """Start a relay. Raises what a start raises."""
        return Carrier(Agreed, self.file, way, GROUP)

    def relay_has_ended(self, way: Direction, error: AbcastError) -> None:
        """Note an error that the loss of a log does not explain."""
        if not self.sites[way.source].is_lost:
            self.blame(ENDED, f"relay {way}: {error}")
