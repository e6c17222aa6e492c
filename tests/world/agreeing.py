"""Sites that agree, in a world: each has its Kafka, its members, and jobs and relays as they ship.

Jobs are killed before any record that they write, started while another of the site still runs, and cut off; relays
stop, repeat and begin anew; clocks run ahead; an operator excludes dead sites. A retention drops FORWARD and copies of
it, down to what all sites have in DATA (and had when the site's job was stopped, or so long before it was killed as
`ordering.agreement.sites.own_log.SNAPSHOT_AFTER_MS` says), and copies of logs, down to the records read. DATA is
purged. The log of one site is lost at the end of some histories: the others then go on without it, and it is told. In
most histories the Kafkas have powers (`tests.world.powers`): clocks of partitions' leaders jump, partitions are
away, transactions leave markers, topics take no large entries. In some, all sites run a later version, whose sequencer
also writes records of its own kind, which take several seqnos. In others, groups were begun in the first format.

    python -m tests.simulator --isis-sites --seeds 2000
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any
from unittest.mock import patch

from connectors.engine.batch import Polled
from connectors.engine.batch import decide as true_decide
from connectors.kafka.codec import entry_codec
from connectors.kafka.codec.codec import decode_data, encode_data
from connectors.takeover.rows import Output, OutputTopics
from ordering.agreement.log import ranges_of
from ordering.agreement.sites.own_log import SNAPSHOT_AFTER_SUSPICIONS
from ordering.base.reader import Reader, Verdict
from ordering.base.records import ENTRY, Data, MessageId
from ordering.checker.anomalies import LOST, Anomaly
from ordering.checker.checker import Checker
from ordering.sequencer.state import SequencerState
from tests.relay.carrying import relays_in_memory
from tests.simulator.mutation import NONE, Mutation
from tests.world import site_members
from tests.world.agreeing_actions import ASKS, ROUND_MS, SUSPECT_AFTER_MS
from tests.world.agreeing_sites import AgreeingSite
from tests.world.agreeing_storms import AgreeingStorms
from tests.world.guests import FORMAT, Guests, format_of
from tests.world.jobs import write_later
from tests.world.kafka import partition
from tests.world.site_members import SiteMembers

RESEND_AFTER_MS = 80
COUNT = 100
"""The actions of a history."""
SETTLING_ROUNDS = 300
MANY = 10
"""Anomalies behind which a history need not settle."""
POWERS = ((), ("clock", "away", "marker"), ("marker", "limit"), ("clock", "away", "limit"))
"""The powers of the Kafkas of a history, by its seed."""
ACTIONS = {
    "send": 18,
    "round": 30,
    "step": 20,
    "carry": 20,
    "crash": 3,
    "restart": 8,
    "start_second": 3,
    "cut": 3,
    "heal": 4,
    "run_ahead": 1,
    "stop": 4,
    "retire": 8,
    "exclude": 1,
    "storm": 4,
}
"""The actions, with their weights."""
GUESTS = ("hostile", "ledger", *site_members.GUESTS)
LONGEST_SILENCE_MS = 2_000
"""The longest silence of a member as it ships, which sends again after half a second."""
LATER = "later"
"""The feature of a history whose sites run a later version."""
UNTOLD = "untold"
"""A site goes on whose log was lost."""


class AgreeingWorld(AgreeingStorms):
    """A history of sites that agree."""

    def __init__(self, seed: int, mutation: Mutation = NONE, powers: Sequence[str] = (), later: float = 0.0) -> None:
        """`later`: the share of messages behind which a later version writes a record of its own."""
        super().__init__(seed, ACTIONS, powers, later)
        self.guests = Guests(seed, GUESTS, mutation)
        self.members = SiteMembers(self, self.guests, LONGEST_SILENCE_MS)
        if self.members.members:
            self.has_members = False  # those would have other settings
        if self.members.are_alone:
            self.senders.clear()
        self.loses_a_log, self.rests = seed % 5 == 2, seed % 4 == 1

    def run(self) -> list[Anomaly]:
        """Act, settle, and ask the checker."""
        self.members.begin(self.names[0])
        for name in self.names:
            self._start(name)
        for _ in range(COUNT):
            self.act()
            self._let_guests_act()
        if self.rests:
            self._rest()
        if self.loses_a_log and not self.has_excluded:
            self._lose_log(self.dice.choice(self.names))
        return self.end()

    def _let_guests_act(self) -> None:
        for at in self.sites.values():
            self.guests.write_malformed(at.kafka, at.name)
        if not self.sites[self.names[0]].is_lost:
            self.guests.keep_ledger(self.sites[self.names[0]].connection)

        self.members.act()

    def end(self) -> list[Anomaly]:
        """Settle, and ask the checker."""
        self._settle()
        return self._check()

    def _rest(self) -> None:
        self._settle()
        sites = self.dice.sample(self.names, self.dice.randrange(len(self.names) + 1))
        for name in sites:
            self._stop(name)
            self._restart(name)
        for _ in range(2 * SNAPSHOT_AFTER_SUSPICIONS * SUSPECT_AFTER_MS // ROUND_MS + 10):
            self._round()
        for name in self.names:
            self._crash(name)
        for name in self.names:
            self._retire(name)
            self._restart(name)
        for _ in range(3):
            self._send()

    def _lose_log(self, name: str) -> None:
        """Lose a part of a site's log that all others have read; they have its ordered records, too.

        An operator has them go on without the site, which begins again and again, and may not hear the others for a
        while.
        """
        others = [other for other in self.names if other != name]
        self._heal()
        for other in self.names:
            self._restart(other)
        for _ in range(8):
            self._send()
            self._round()
        self._heal()
        read = [max((job.site.logs.row(name).number for job in self.jobs[other]), default=0) for other in others]
        if not min(read) or not self._have_ordered(name, others):
            return
        last = min(read) - 1  # a log that lacks little soon grows beyond the lost one
        left = self.dice.choice((0, self.dice.randrange(min(read)), last, last, last))
        self._truncate(self.sites[name], left)
        self.has_excluded = True
        self.are_relays_blind = self.dice.random() < 0.7
        if self.dice.random() < 0.5:  # who hears nobody grows, and is told later
            self.cut = {(other, name) for other in others}
        for _ in range(self.dice.randrange(40)):
            for sender in self.senders:
                if sender.site == name and self.dice.random() < 0.5:
                    sender.sent += 1
                    self._forward(sender, [sender.sent])
            if not self.jobs[name] or self.dice.random() < 0.2:
                self._crash(name)
                self._start(name)
            self._round()
        self.are_relays_blind = False

    def _have_ordered(self, name: str, others: Sequence[str]) -> bool:
        """Whether other sites have all records of a site that are ordered, or held: behind the loss of its log, no
        relay brings them.
        """
        place = self.sites[name].place
        jobs = [job for other in others for job in self.jobs[other]]
        agreements = filter(None, (job.site.process.agreement for job in jobs))
        held = (part for each in agreements for held in each.state.held for part in ranges_of(held.run))
        needed = [part.end for part in held if part.place == place]
        needed += [job.site.forwards.place(place).ordered for job in jobs]
        return all(job.site.forwards.place(place).end >= max(needed) for job in jobs)

    def _truncate(self, at: AgreeingSite, left: int) -> None:
        """Truncate the log to so many entries. If none is left, the claims may be lost, too."""
        self._crash(at.name)
        end = 0
        for offset, record in enumerate(at.kafka.topics.partitions[partition("data", at.name)], 1):
            data = decode_data(record.key, record.value, record.headers)
            end = offset if data.kind == ENTRY and data.local_seqno <= left else end
        at.kafka.log(*partition("data", at.name)).truncate(end)
        at.lose(end)
        if not end and self.dice.random() < 0.5:
            at.kafka.topics.make_anew([partition("epoch", at.name).topic])

    def _exclude_lost(self) -> None:
        """Do as the message to the operator says."""
        lost = {name for name in self.names if self.sites[name].is_lost}
        for name in self.names:
            for job in self.jobs[name]:
                members = {process.name for process in job.site.process.view.members}
                if name not in lost and lost & members:
                    self._go_on_without(name, lost & members)

    def _settle(self) -> None:
        """Heal and restart all; order all that can be ordered."""
        self._heal()
        for at in self.sites.values():
            at.kafka.heal()
        self.sudden_death = 0.0
        for name in self.names:
            for job in [job for job in self.jobs[name] if not job.counts]:
                self._remove(job)
            self._restart(name)
        for number in range(SETTLING_ROUNDS):
            if number % 5 == 0:
                self._exclude_lost()
                self.actors.catch_up()
                self._tick()
            self._round()
            self.members.settle()
            for name in self.names:
                if not self.sites[name].is_lost:
                    self._restart(name)  # what it was to read may have gone in the last round
            if len(self.anomalies) > MANY or (number % 10 == 9 and self._resend()):
                break

    def _tick(self) -> None:
        for job in chain.from_iterable(self.jobs.values()):
            with self.actors.acting(job.at.name):
                job.tick()

    def _resend(self) -> bool:
        """Send unordered messages again; return whether there is none, and all sites are even."""
        ordered: dict[str, int] = {}
        ends = set()
        for at in self.whole():
            reader = Reader()
            for record in at.data():
                taken = record.kind != ENTRY and reader.judge(record) is Verdict.TAKE
                if taken and record.sender.startswith(f"{at.name}/"):
                    ordered[record.sender] = record.local_seqno
            ends.add(reader.last_seqno)
        lost = {name for name, at in self.sites.items() if at.is_lost}
        is_done = len(ends) == 1 and self.told >= lost and self.members.are_idle(lost)
        for sender in self.senders:
            sender.ordered = ordered.get(sender.name, 0)
            missing = list(range(sender.ordered + 1, sender.sent + 1))
            is_done = is_done and (not missing or self.sites[sender.site].is_lost)
            self._forward(sender, missing)
        return is_done

    def whole(self) -> list[AgreeingSite]:
        """Return all sites but one whose log was lost."""
        return [at for at in self.sites.values() if not at.is_lost]

    def _check(self) -> list[Anomaly]:
        checker = Checker()
        found: list[Anomaly] = []
        ends = {}
        for at in self.whole():
            reader = Reader()
            for record in at.data():
                if record.kind != ENTRY:
                    checker.data(at.name, record)
                    reader.judge(record)
            ends[at.name] = reader.last_seqno
            if at.name == self.names[0]:
                found += self.guests.check_ledger(at.connection)
        for sender in self.senders:
            for number in range(1, sender.sent + 1):
                if not self.sites[sender.site].is_lost:
                    checker.sent(MessageId(sender.name, 1, number))
        found += checker.finish()
        self.members.judge(self._ordered(), {name for name, at in self.sites.items() if at.is_lost})
        if len(set(ends.values())) > 1 and not found and not self.anomalies:
            found.append(Anomaly(LOST, f"not all sites have all: {ends}", ()))
        untold = {name for name, at in self.sites.items() if at.is_lost} - self.told
        return [*self.anomalies, *found, *(Anomaly(UNTOLD, name, ()) for name in sorted(untold))]

    def _ordered(self) -> Iterator[Data]:
        """Yield the decisions in DATA of a whole site."""
        reader = Reader()
        for record in self.whole()[0].data():
            if record.kind != ENTRY and reader.judge(record) is Verdict.TAKE:
                yield record


def decide_later(state: SequencerState, polled: Polled, topics: OutputTopics) -> tuple[SequencerState, list[Output]]:
    """Decide a run's records, with a record of a later version behind each message that asks for one."""
    outputs: list[Output] = []
    for place, records in sorted(polled.items()):
        for record in records:
            state, decided = true_decide(state, {place: [record]}, topics)
            outputs += decided
            if decided and decided[-1][0] == topics.data and decided[-1][1][1].startswith(ASKS):
                state, later = write_later(state, int(decided[-1][1][1][len(ASKS) :]))
                outputs.append((topics.data, encode_data(later)))
    return state, outputs


@contextmanager
def playing(seed: int, mutation: Mutation = NONE) -> Iterator[AgreeingWorld]:
    """Provide a world in which a history can be played. A broken rule has the powers that it names, and no others."""
    is_whole = mutation is NONE
    drawn = POWERS[(seed // 4 + seed // 16) % len(POWERS)]
    powers = drawn if is_whole else [each for each in mutation.needs if each != LATER]
    later = 0.3 if LATER in mutation.needs or (is_whole and seed % 6 == 4) else 0.0
    world = AgreeingWorld(seed, mutation, powers, later)
    with ExitStack() as stack:
        for context in (relays_in_memory(), world.actors.installed()):
            stack.enter_context(context)
        patches: dict[str, Any] = {
            FORMAT: lambda data, state: format_of(data, state, world.sites[data.topic.site].format_2_from),
            "connectors.takeover.agreement.RESEND_AFTER_MS": RESEND_AFTER_MS,
            **world.members.patches(),
            "connectors.kafka.codec.entry_codec._decoded": functools.lru_cache(1 << 12)(entry_codec._decoded),
        }
        if later:
            patches["connectors.engine.agreeing.decide"] = decide_later
        for target, replacement in patches.items():
            stack.enter_context(patch(target, replacement))
        stack.enter_context(mutation.broken())
        yield world


def run(seed: int, mutation: Mutation = NONE) -> list[Anomaly]:
    """Run one history; return what it breaks."""
    with playing(seed, mutation) as world:
        return world.run()
