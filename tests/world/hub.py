"""A hub of sites, in a world: copies, FORWARD, homes that are replaced.

Members send and deliver, sequencers decide, relays carry; each of them may be killed between any two records. FORWARD
loses its beginning. DATA is purged as far as the ledger has it. Links and sites are cut off, partitions are away,
clocks jump, files roll out. An operator makes one site after the other the home, and writes from a ledger what DATA no
longer holds. The operator's appends fail now and then, before or after Kafka has the record. In some histories logs
lose their ends, or a site loses all. At the end all is healed. Then:

* each site has the home's order, and no message is in it twice, or before one that its sender sent earlier;
* each receipt is true, unless a site did not answer when another one was made the home, or a log has lost something:
  its records may be lost then;
* nothing waits, and no copy is refused without need.

Not here: views (the mesh has them); letters and casts (tests/relay/test_files_of_different_age.py).

    python -m tests.simulator --hub --seeds 2000
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from unittest.mock import patch

from connectors.kafka.codec.epochs import Move
from connectors.kafka.connection.sites import Direction
from connectors.kafka.log.data_log import DataLog
from ordering.base.errors import AbcastError, UsageError
from ordering.checker.anomalies import DIVERGENT, DUPLICATE, FIFO_VIOLATION, LOST, Anomaly
from tests.relay.carrying import relays_in_memory
from tests.simulator.mutation import NONE, Mutation
from tests.world import site_members
from tests.world.guests import DAY_MS, Guests
from tests.world.hub_actions import STUCK
from tests.world.hub_homes import HubHomes
from tests.world.hub_sites import GROUP, HubSite, Id
from tests.world.jobs import in_format
from tests.world.site_members import SiteMembers

POWERS = ("clock", "away", "marker")
GUESTS = ("hostile", "day", "counts", "limits", "format", *site_members.GUESTS)
SUSPECT_AFTER_MS = 250_000
"""The longest silence of a member. A round of the end takes 60 s."""
FALSE_RECEIPT = "false-receipt"
STEPS = 160
ROUNDS = 40
"""The most rounds within which a healed hub is even."""
ACTIONS = {
    "send": 14,
    "resend": 5,
    "deliver": 20,
    "decide": 20,
    "check": 6,
    "start": 8,
    "kill": 2,
    "carry": 38,
    "replace_relay": 2,
    "carry_late": 3,
    "look": 5,
    "cut": 5,
    "drop": 4,
    "purge": 5,
    "wait": 2,
    "jump": 1,
    "damage": 1,
    "bootstrap": 4,
    "fail_over": 3,
    "command": 8,
    "roll_out": 3,
    "rejoin": 1,
    "rejoin_refused": 5,
}
"""The actions, with their weights."""


class HubWorld(HubHomes):
    """A history of a hub."""

    def __init__(self, seed: int, mutation: Mutation = NONE) -> None:
        self.guests = Guests(seed, GUESTS, mutation)
        super().__init__(seed, ACTIONS, self.guests.powers(POWERS) if mutation is NONE else ())
        self.members = SiteMembers(self, self.guests, SUSPECT_AFTER_MS)

    def run(self) -> list[Anomaly]:
        """Act, settle, and judge."""
        for step in range(STEPS):
            if step % 4 == 0:
                self.mishap()
            self.act()
            self._let_guests_act()
            if self.anomalies:
                return self.anomalies
        self.end()
        return self.anomalies

    def _let_guests_act(self) -> None:
        for site in self.sites.values():
            self.guests.write_malformed(site.kafka, site.name)
        if self.guests.lets_a_day_pass():
            self.actors.pass_time(DAY_MS)
        self.members.act()

    def _send(self, name: str) -> None:
        if not self.members.are_alone:
            super()._send(name)

    def make_anew(self, name: str) -> None:
        """Delete all topics of the site, and create them."""
        self.members.end_the_incomparable(name)
        super().make_anew(name)

    def end(self) -> None:
        """Heal all, and go on until nothing waits."""
        self._heal()
        self.is_healed = True
        for site in self.sites.values():
            site.kafka.heal()
        for job in list(self.jobs):  # jobs that have not looked yet
            with suppress(AbcastError):
                job.decide(None)
        for name in self.names:
            self._deliver(name)
        for job in list(self.jobs):
            self.kill(job)
        self.relays, self.late, self.most_carried = {}, [], 1 << 30
        home = self._start_at_last()
        if home is None:
            return
        for _ in range(3 * ROUNDS if self.members.members else ROUNDS):  # a view takes some
            self._round(home)
            if self._is_even():
                break
        self._judge(self.sites[home])
        if not self.forked:
            self.members.judge(self.sites[home].effective())

    def _is_even(self) -> bool:
        waits = any(sender.pending for site in self.sites.values() for sender in site.senders)
        return not waits and self.members.are_idle() and len({site.delivered for site in self.sites.values()}) == 1

    def _start_at_last(self) -> str | None:
        """The home, where a sequencer runs. One that has lost the end of DATA is replaced, as the errors say."""
        home = self._last_home()
        if home is None:
            if any(site.order for site in self.sites.values()):
                self.blame(STUCK, f"no site can be the home: {dict(self.seen)}")
            return None
        for name in [home, *(name for name in self.names if name != home)]:
            self.newest = self.file_of(name)
            self.files = dict.fromkeys(self.sites, self.newest)
            if name == home or self.is_made_home(name):
                try:
                    try:
                        self.start(name)
                    except UsageError as error:  # it has lost EPOCH, or all
                        if f"`abcast site promote {name}" not in str(error) or not self.is_made_home(name):
                            raise
                        self.start(name)
                    return name
                except AbcastError as error:
                    self.note_error(name, error)
                    is_known = "go on in a new group" in str(error).lower() or "has lost all of it" in str(error)
                    if not (self.may_cut and is_known):
                        self.blame(STUCK, f"{name} can't be the home: {error}")
                        return None
        return None  # the group ends here: the errors say so

    def _last_home(self) -> str | None:
        """The site that is the home at last: the last one that was made one; else that of the file, if it can be."""
        moves: dict[str, Move | None] = {}
        for name, site in self.sites.items():
            with DataLog(site.connection, GROUP, name) as data:
                epochs = data.epochs.read()
                moves[name] = epochs.move if epochs.has_decided() else None
        made = [(move.above, name) for name, move in moves.items() if move is not None and move.home == name]
        wanted = [name for _, name in sorted(made, reverse=True)[:1]]
        if self.first and not made and moves[self.first] is None:
            return self.first  # it never moved
        return next((home for home in [*wanted, self.newest.home or "", *self.names] if self.is_made_home(home)), None)

    def _round(self, home: str) -> None:
        for site in self.sites.values():
            site.resend()
        for name in self.names:
            if name == home:
                continue
            for way in (Direction(name, home), Direction(home, name)):
                self.relays.pop(way, None)
                self.relay(*way)
            if name in self.refused:
                self.rejoin(name)
            if name in self.lacking:
                self.bootstrap(name)
        self.members.settle()
        self.actors.pass_time(60_000)
        [job] = self.jobs
        self.work(job, job.look)
        for job in list(self.jobs):
            self.work(job, functools.partial(job.decide, None))
        if not self.jobs:
            self.start(home)
        for name in self.names:
            self._deliver(name)

    def _judge(self, home: HubSite) -> None:
        order: dict[int, Id | None] = {}
        for site in self.sites.values():
            wrong = [seqno for seqno in site.order if order.setdefault(seqno, site.order[seqno]) != site.order[seqno]]
            if wrong or site.delivered != home.delivered:
                self.blame(DIVERGENT, f"{site.name} has another order than the others {wrong}: {dict(self.seen)}")
            for sender in site.senders:
                if sender.pending:
                    self.blame(LOST, f"{sender.address} waits for {sender.pending}: {dict(self.seen)}")
        self._judge_order([order[seqno] for seqno in sorted(order)])
        for name, told, seqno in () if self.forked else self.receipts:
            if seqno in order and order[seqno] != told:
                self.blame(FALSE_RECEIPT, f"{name} was told that {told} is {seqno}.")

    def _judge_order(self, ids: Sequence[Id | None]) -> None:
        lives = Counter[tuple[str, int]]()
        for message in ids:
            if message is None:
                continue
            address, incarnation, number = message
            if number <= lives[address, incarnation]:
                again = ids.count(message) > 1
                self.blame(DUPLICATE if again else FIFO_VIOLATION, f"{address} sent {number} before.")
            lives[address, incarnation] = number


@contextmanager
def playing(seed: int, mutation: Mutation = NONE) -> Iterator[HubWorld]:
    """Provide a world in which a history can be played. A broken rule is to show without any power of Kafka's."""
    with ExitStack() as stack:
        stack.enter_context(relays_in_memory())
        for module in ("connectors.relay.home_copy", "ordering.sequencer.sequencer"):
            stack.enter_context(patch(f"{module}.SNAPSHOT_EVERY_RECORDS", 4))
        stack.enter_context(patch("ordering.sequencer.sequencer.SNAPSHOT_RECORDS_PER_SENDER", 1))
        stack.enter_context(in_format(seed, mutation))
        world = HubWorld(seed, mutation)
        for target, replacement in {**world.guests.patches(), **world.members.patches()}.items():
            stack.enter_context(patch(target, replacement))
        stack.enter_context(world.actors.installed())
        world.members.begin(world.first)
        world.start(world.first)
        stack.enter_context(mutation.broken())
        yield world
        for job in list(world.jobs):
            world.kill(job)


def run(seed: int, mutation: Mutation = NONE) -> list[Anomaly]:
    """Run a history; return its violations."""
    with playing(seed, mutation) as world:
        return world.run()
