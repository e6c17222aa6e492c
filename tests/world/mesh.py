"""A mesh of sites, in a world: each has its Kafka, its sequencers, its members, and relays as they ship.

Sequencers are killed in the middle of a write, replaced, and go on unseen; late records of a killed one arrive behind
another one's seal. Relays die, repeat, run twice, and by files of different age; one begins where it should not. DATA
is purged, copies lose their beginning, an operator writes from a ledger what a neighbour lacks. Sites and links come
and go. In some histories Kafka has powers (`tests.world.powers`), or members write letters and casts, too.

    python -m tests.simulator --sites --seeds 2000
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import permutations
from typing import Any
from unittest.mock import patch

from connectors.kafka.connection.sites import Direction
from connectors.kafka.log.data_log import DataLog
from connectors.relay.link_start import link_start
from ordering.base.errors import AbcastError, HistoryUnavailable
from ordering.base.records import MESSAGE, Data, Malformed, MessageId, Partition
from ordering.checker.anomalies import CAUSAL_VIOLATION, DUPLICATE, FIFO_VIOLATION, GAP, LOST, Anomaly
from ordering.membership.membership import RemoteSite
from ordering.sequencer.links import covers, neighbour_of, origin_of
from ordering.sequencer.sequencer import step
from tests.relay.carrying import relays_in_memory
from tests.simulator.mutation import NONE, Mutation
from tests.world.guests import DAY_MS, Guests
from tests.world.jobs import Job, in_format
from tests.world.kafka import parsed
from tests.world.mesh_actions import CIRCLE, STUCK, UNKNOWN_MESSAGE, WRONG_STATE, MeshActions
from tests.world.mesh_history import MeshHistory, history
from tests.world.mesh_sites import GROUP, MeshSite, state_of
from tests.world.shrinking import drop_actions

GUESTS = ("hostile", "day", "format")
ROUND_MS = 900
HEALING_ROUNDS = 60
QUIET_ROUNDS = 1
MOST_RECORDS = 3_000
"""With more DATA in all, something goes round and round."""
TURNS = 40
"""The most turns of a sequencer in a round."""

Message = tuple[int, MessageId, bytes]
"""Its seqno at its origin, its id, its payload."""


class Mesh(MeshActions):
    """A history of a mesh."""

    def run(self, actions: Iterable[tuple[str, int]]) -> list[Anomaly]:
        """Act, settle, and check."""
        for kind, number in actions:
            self.apply(kind, number)
            self._let_guests_act()
        return self.end_well()

    def _let_guests_act(self) -> None:
        for site in self.sites.values():
            self.guests.write_malformed(site.kafka, site.name)
        if self.guests.lets_a_day_pass():
            self.let_pass(DAY_MS)

    def end_well(self) -> list[Anomaly]:
        """Settle, and check."""
        self.tell("all is healed")
        try:
            self.settle()
            self._check_all()
        except AbcastError as error:
            self.blame(STUCK, f"settling: {type(error).__name__}: {error}")
        return self.anomalies

    def calm_down(self) -> None:
        """Let sequencers read all there is, and write no records of a later version."""
        self.is_calm, self.actors.dice, self.shape = True, _Calm(), self.shape._replace(later=0)

    def settle(self) -> None:
        """No more faults, the newest file at all sites, every relay started again once, and time enough."""
        self.calm_down()
        self._heal()
        for site in self.sites.values():
            site.kafka.heal()
        self._end_talk()
        for site in self.sites.values():
            site.version = len(self.files) - 1
            for job in list(site.jobs):
                self.end(site, job)
        self.links, self.carriers = [], {}
        for way in self.newest_directions():
            self._relay_at_last(way)
        for site in self.sites.values():
            self.start(site)
            for late in site.leftovers:
                self.write(site, late)
            if self.shape.joining:
                self.change_settings(site)
        quiet, seqnos = 0, [-1]
        for _ in range(HEALING_ROUNDS):
            self.settle_once()
            before, seqnos = seqnos, [state_of(site.jobs[0]).seqno for site in self.sites.values()]
            quiet = quiet + 1 if seqnos == before and not self._pending() else 0
            if quiet > QUIET_ROUNDS:
                break
            if sum(seqnos) > MOST_RECORDS:
                self.blame(STUCK, f"{seqnos} seqnos: something goes round")
                return
        else:
            self.blame(STUCK, f"not quiet after {HEALING_ROUNDS} rounds: {self._pending()}")
        self._end_talk()

    def _end_talk(self) -> None:
        """Let letters and casts arrive: each has a way of as many steps as there are sites at most."""
        rounds = [1]
        for one, other in permutations(self.names if self.shape.talks else (), 2):
            self.talk(one, other)
        while self.shape.talks and rounds[-1] and len(rounds) < len(self.sites) + 2:
            rounds.append(self._carry_talk(1 << 30, starts=True))
        if len(rounds) == len(self.sites) + 2 and rounds[-1]:
            self.blame(CIRCLE, f"relays of letters and casts carry {rounds}")

    def newest_directions(self) -> list[Direction]:
        return self.directions(self.files[-1])

    def _relay_at_last(self, way: Direction) -> None:
        try:
            self.start_relay(way, self.files[-1])
        except HistoryUnavailable:
            if self._could_begin(way):
                self.blame(STUCK, f"{way} could begin, and says that it lacks history")
            self.from_ledger(way, self.files[-1])
            self.catch_up(self.sites[way.target])
            self.start_relay(way, self.files[-1])

    def _running(self, site: MeshSite) -> Job:
        if not site.jobs:
            self.start(site)
        return site.jobs[0]

    def _could_begin(self, way: Direction) -> bool:
        """Whether DATA has all that the neighbour lacks, behind some place with a known state."""
        here, rows = self.sites[way.source], self.sites[way.target].tells().origins
        with DataLog(here.connection, GROUP, way.source) as log:
            for offset in range(log.beginning(), log.end() + 1):
                with suppress(HistoryUnavailable):
                    state = log.state(offset)
                    start = link_start(state, way.source, lambda origin: self.files[-1].carries(way, origin))
                    return covers(rows, start.origins)
        return False

    def settle_once(self) -> None:
        """A round: members send, time passes, sequencers decide all there is, relays carry it."""
        for site in self.sites.values():
            for sender in site.senders:
                sender.is_paused = False
                sender.read()
                sender.send()
        self.let_pass(ROUND_MS)
        for site in self.sites.values():
            self.catch_up(site)
        for relay in list(self.links):
            self.carry(relay)
        for way in self.newest_directions():
            if not any(relay.job.direction == way for relay in self.links):
                self._relay_at_last(way)

    def catch_up(self, site: MeshSite) -> None:
        """Let the sequencer decide all there is."""
        job = self._running(site)
        for _ in range(TURNS):
            if not self.decide(site, job) or not (self._unread(site) or job.loop._groups[GROUP].in_flight):
                break

    def _unread(self, site: MeshSite) -> bool:
        positions = state_of(site.jobs[0]).positions
        return any(
            records and records[-1].offset >= positions.get(Partition(*place), 0) for place, records in site.inputs()
        )

    def _pending(self) -> list[str]:
        """Return the members that wait, and the relays that have something to carry."""
        pending = [
            sender.address
            for site in self.sites.values()
            for sender in site.senders
            if sender.pending and not sender.is_leaving
        ]
        for relay in self.links:
            [position] = relay.positions.values()
            if position < len(self.sites[relay.job.direction.source].data):
                pending.append(str(relay.job.direction))
        return pending

    # What must hold

    def _check_all(self) -> None:
        for site in self.sites.values():
            self._check_state(site)
        orders = {name: site.effective() for name, site in self.sites.items()}
        self._check_messages(orders)
        if self.is_tree:
            self._check_causality(orders)
        if not self.anomalies:
            self._check_remote_views()

    def _check_state(self, site: MeshSite) -> None:
        """The running sequencer's rows are DATA's, once FORWARD is read again: no link in force brings more."""
        told, running = site.tells(), state_of(site.jobs[0])
        rows = [(state.seqno, state.own_seqno, state.origins) for state in (told, running)]
        if rows[0] != rows[1]:
            self.blame(WRONG_STATE, f"{site.name} has {rows[1]}, DATA tells {rows[0]}")
            return
        again = site.forward()
        if any(isinstance(record, Malformed) for record in again if not self.guests.has("hostile")):
            self.blame(UNKNOWN_MESSAGE, f"{site.name} has malformed records")
            return
        state, outputs = step(told, again)
        neighbours = [way.source for way in self.newest_directions() if way.target == site.name]
        linked = [record for record in outputs if isinstance(record, Data) and record.link is not None]
        in_force = [record for record in linked if record.source and neighbour_of(record.source.topic) in neighbours]
        taken = in_force or self._out_of_order(site, linked)
        if taken:
            self.blame(DUPLICATE, f"{site.name}, FORWARD read again, orders {taken[:3]}")
        elif any(state.links.get(neighbour) != running.links.get(neighbour) for neighbour in neighbours):
            self.blame(WRONG_STATE, f"{site.name} has the links {running.links}, and again {state.links}")

    def _out_of_order(self, site: MeshSite, linked: list[Data]) -> list[Data]:
        """Return the messages that do not go on where their origin's messages end at the site.

        A session that a link began too early counts once its start is covered. If the link was removed before its next
        session had carried as much, the first one brings a view, or further messages, in their origin's order. So does
        a takeover from a snapshot before both.
        """
        order, wrong = site.effective(), []
        for origin in {origin_of(each.sender) for each in linked if each.kind == MESSAGE}:
            had, own = (messages_of(each, origin) for each in (order, self.sites[origin].effective()))
            more = messages_of(linked, origin)
            if had + more != own[: len(had + more)]:
                wrong += [each for each in linked if each.kind == MESSAGE and origin_of(each.sender) == origin]
        return wrong

    def _check_messages(self, orders: dict[str, list[Data]]) -> None:
        """Every site has every effective own message of every other origin once, in the origin's order."""
        own = {name: messages_of(order, name) for name, order in orders.items()}
        has = {
            (name, origin): messages_of(order, origin)
            for name, order in orders.items()
            for origin in orders
            if name not in self.retired
        }
        for name, order in orders.items():
            ends = [record.seqno + record.count for record in order]
            if [record.seqno for record in order] != [1, *ends[:-1]][: len(order)]:
                self.blame(GAP, f"the seqnos of {name} have a gap")
            if any(origin_of(record.sender) not in orders for record in order if record.kind == MESSAGE):
                self.blame(UNKNOWN_MESSAGE, f"{name} has a message of no site")
            if not {payload for _, _, payload in own[name]} <= self.said:
                self.blame(UNKNOWN_MESSAGE, f"{name} has ordered what nobody broadcast")
        for (name, origin), got in has.items():
            if name != origin:
                wanted = own[origin]
                if origin in self.retired:
                    wanted = max((has[other, origin] for other in orders if other not in self.retired), key=len)
                self._compare(f"{name} of {origin}", got, wanted, own[origin])

    def _compare(self, what: str, got: list[Message], wanted: list[Message], known: list[Message]) -> None:
        """Note the violations in a site's messages of an origin."""
        if got == wanted:
            return
        ids = Counter(message_id for _, message_id, _ in got)
        found = {
            DUPLICATE: [message for message in got if ids[message[1]] > 1],
            UNKNOWN_MESSAGE: [message for message in got if message not in known],
            LOST: [message for message in wanted if message[1] not in ids],
        }
        if not any(found.values()):
            found[FIFO_VIOLATION] = [one for one, other in zip(got, wanted, strict=False) if one != other]
        for name, messages in found.items():
            if messages:
                self.blame(name, f"{what}: {len(messages)}, such as {messages[0]}")

    def _check_causality(self, orders: dict[str, list[Data]]) -> None:
        """In a tree of links, the messages before one at its origin are before it everywhere."""
        for name, order in orders.items():
            at = {record.id: record.seqno for record in order if record.kind == MESSAGE}
            for origin, there in orders.items():
                last = 0
                for record in there:
                    seqno = at.get(record.id) if record.kind == MESSAGE else None
                    if seqno is not None and record.link is None and seqno < last:
                        self.blame(CAUSAL_VIOLATION, f"{record.id} of {origin} at {name}")
                        break
                    last = max(last, seqno or 0)

    def _check_remote_views(self) -> None:
        """Each site knows the views in force at its neighbours."""
        for source, target in self.newest_directions():
            here, there = (state_of(self.sites[name].jobs[0]) for name in (source, target))
            known = there.membership.remote.get(source)
            wanted = RemoteSite(here.membership.members) if here.view else None
            if known != wanted:
                self.blame(WRONG_STATE, f"{target} takes {known} for the view of {source}: {wanted}")


class _Calm(random.Random):
    """Dice that hide no record from a sequencer."""

    def random(self) -> float:
        return 1 - 2**-53

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return (start if stop is None else stop) - step


def messages_of(order: Iterable[Data], origin: str) -> list[Message]:
    """Return the messages of an origin in the order of a site."""
    return [
        (record.seqno if record.link is None else record.link.origin_seqno, record.id, record.payload)
        for record in order
        if record.kind == MESSAGE and origin_of(record.sender) == origin
    ]


@contextmanager
def playing(what: MeshHistory, mutation: Mutation = NONE) -> Iterator[Mesh]:
    """Provide a world in which a history can be played."""
    patches: dict[str, Any] = {
        "ordering.sequencer.sequencer.SNAPSHOT_EVERY_RECORDS": what.snapshot_every,
        "connectors.relay.link_start.SNAPSHOT_EVERY_RECORDS": what.snapshot_every,
        "ordering.sequencer.sequencer.SNAPSHOT_RECORDS_PER_SENDER": 1,
        "connectors.kafka.log.log_state._FIRST_WINDOW": 16,
        "connectors.kafka.log.seqno_search._FIRST_STEP": 16,
        "connectors.kafka.log.seqno_search._NEAR": 2,
        "connectors.engine.batch.COLUMNS_FROM": what.columns_from,
        "ordering.base.names.Topic.parse": parsed,  # cached
    }
    world = Mesh(what.seed, what.shape)
    world.guests = Guests(what.seed, GUESTS, mutation)
    patches |= world.guests.patches()
    with ExitStack() as stack:
        for context in (
            relays_in_memory(),
            world.actors.installed(),
            in_format(what.seed, mutation),
            mutation.broken(),
        ):
            stack.enter_context(context)
        for target, replacement in patches.items():
            stack.enter_context(patch(target, replacement))
        yield world
        for site in world.sites.values():
            for job in site.jobs:
                job.close()


def play(what: MeshHistory, mutation: Mutation = NONE) -> list[Anomaly]:
    """Play a history; return what it breaks."""
    with playing(what, mutation) as world:
        return world.run(what.actions)


def run(seed: int, mutation: Mutation = NONE) -> list[Anomaly]:
    """Run a seed's history; return what it breaks."""
    return play(history(seed, mutation), mutation)


def explain(seed: int, mutation: Mutation, anomaly: str) -> str:
    """Return the shortest history that still breaks the same, event by event; the whole one without an anomaly."""
    what = history(seed, mutation)

    def fails(actions: Sequence[tuple[str, int]]) -> bool:
        return any(found.name == anomaly for found in play(what._replace(actions=tuple(actions)), mutation))

    shortest = what._replace(actions=tuple(drop_actions(what.actions, fails))) if anomaly else what
    with playing(shortest, mutation) as world:
        world.run(shortest.actions)
    return "\n".join([f"{what.shape}, a snapshot every {what.snapshot_every} records:", *world.story])
