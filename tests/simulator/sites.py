"""A mesh of sites: each with its broker, its sequencers and members, and a relay for each direction of each link.

The cores, the log's reading code, where a session begins, what a relay says of a record and what a link carries are the
product's. Links are first in, first out, each as slow as its seed likes. Relays die anywhere, are doubled, repeat their
last records; one begins where it should not. Sites and links come and go, by files that roll out site by site.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sites import Direction, Sites
from ordering.base.errors import AbcastError, HistoryUnavailable
from ordering.base.names import TICK_NAME, Topic
from ordering.base.records import HEARTBEAT, MESSAGE, SETTINGS, Data, MessageId
from ordering.checker.anomalies import CAUSAL_VIOLATION, DUPLICATE, FIFO_VIOLATION, GAP, LOST, Anomaly
from ordering.membership.membership import RemoteSite
from ordering.membership.settings import Settings
from ordering.sequencer import sequencer
from ordering.sequencer.links import origin_of
from ordering.sequencer.state import SequencerState
from tests.simulator.dice import Dice
from tests.simulator.rules import Rules
from tests.simulator.sites_broker import SiteBroker, SiteSequencer
from tests.simulator.sites_relays import Relay, from_ledger
from tests.simulator.sites_senders import Sender
from tests.world.group import STUCK, UNKNOWN_MESSAGE, WRONG_STATE

SEQUENCERS = 2
HEALING_ROUNDS = 60
QUIET_ROUNDS = 1
MOST_RECORDS = 3_000
"""With more DATA in all, something goes round and round."""
ROUND_MS = 900
SUSPECT_AFTER_MS = 3_000

Link = frozenset[str]
Message = tuple[int, MessageId, bytes]
"""Its seqno at its origin, its id, its payload."""


class MeshShape(NamedTuple):
    """The beginning of a mesh."""

    sites: str = "abc"
    links: tuple[str, ...] = ("ab", "bc")
    """Two letters each."""
    senders: int = 1
    """At each site."""
    joining: int = 0
    """Every how manieth sender joins (0: none)."""
    flush: bool = False
    partitions: int = 1
    batch_rows: int = 8
    coded: bool = False
    later: int = 0
    """Percentage of steps in which sequencers, of a later version, write a record of an unknown kind."""


class Site:
    """A site: its Kafka, its processes, and how old its sites' file is."""

    def __init__(self, name: str, shape: MeshShape, version: int) -> None:
        self.name = name
        self.broker = SiteBroker(name, shape.partitions, coded=shape.coded)
        self.sequencers: list[SiteSequencer | None] = [None] * SEQUENCERS
        self.leftovers: list[list[Data]] = []
        self.version = version
        self.senders = [
            Sender(self.broker, f"m{n}", joins=bool(shape.joining) and n % shape.joining == 0)
            for n in range(shape.senders)
        ]


class Mesh:
    """The simulated mesh. `apply` what you like, then `heal`, then `anomalies`."""

    def __init__(self, shape: MeshShape, rules: Rules | None = None) -> None:
        self.shape = shape
        self.rules = rules or Rules()
        self.files: list[Sites] = []
        self.sites: dict[str, Site] = {}
        self.retired: set[str] = set()
        self.relays: list[Relay] = []
        self.problems: list[Anomaly] = []
        self.said: set[bytes] = set()
        self.now_ms = 1_000
        self.is_tree = len(shape.links) == len(shape.sites) - 1
        """Whether the links make a tree, and always did."""
        self.publish(shape.sites, (frozenset(link) for link in shape.links))
        for name in shape.sites:
            self.add_site(name)

    # Sites' files.

    def publish(self, names: Iterable[str], links: Iterable[Link]) -> Sites:
        """A new version of the sites' file; nobody has it yet."""
        connections = {name: Connection(f"{name}:9092") for name in names}
        self.files.append(Sites("mesh", None, "micro-batch", connections, frozenset(links)))
        return self.files[-1]

    def add_site(self, name: str) -> Site:
        site = self.sites[name] = Site(name, self.shape, len(self.files) - 1)
        if self.shape.flush:
            self.change_settings(site, flush=True, suspect_after_ms=SUSPECT_AFTER_MS, flush_timeout_ms=8_000)
        elif self.shape.joining:
            self.change_settings(site, suspect_after_ms=SUSPECT_AFTER_MS)
        return site

    def change_settings(self, site: Site, **changes: bool | int) -> None:
        self.now_ms += 1
        sender = f"{site.name}/abcast.admin"
        payload = Settings(**changes).to_json()  # type: ignore[arg-type]
        site.broker.append(0, sender, self.now_ms, 1, payload=payload, kind=SETTINGS, at_ms=self.now_ms)

    def file_of(self, name: str) -> Sites:
        return self.files[self.sites[name].version]

    # What happens.

    def apply(self, kind: str, dice: int) -> None:
        """Let it happen; an action that has no object now does nothing."""
        try:
            getattr(self, f"_do_{kind}")(random.Random(dice))
        except AbcastError as error:
            self.problems.append(Anomaly(STUCK, f"{kind} {dice}: {type(error).__name__}: {error}", ()))

    def _site(self, rng: random.Random) -> Site:
        return self.sites[rng.choice(sorted(self.sites))]

    def broadcast(self, sender: Sender) -> None:
        payload = f"{sender.address} {len(self.said)}".encode()
        if sender.broadcast(payload):
            self.said.add(payload)

    def _do_broadcast(self, rng: random.Random) -> None:
        site = self._site(rng)
        for _ in range(rng.randint(1, 4)):
            self.broadcast(rng.choice(site.senders))

    def _do_member(self, rng: random.Random) -> None:
        sender = rng.choice(self._site(rng).senders)
        sender.read(rng.randint(1, 30))
        sender.send(self.now_ms, Dice(rng.getrandbits(40)))

    def _do_member_fault(self, rng: random.Random) -> None:
        sender = rng.choice(self._site(rng).senders)
        kind = rng.randrange(4)
        if kind == 0:
            sender.crash()
        elif kind == 1:
            sender.leave()
        else:
            sender.is_paused = not sender.is_paused

    def _do_time(self, rng: random.Random) -> None:
        self.pass_time(rng.choice((200, 1_000, 1_500)))

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        for relay in self.relays:
            relay.beat(self.now_ms)
        for site in self.sites.values():
            for sender in site.senders:
                sender.beat(self.now_ms)
            self._tick(site)

    def _tick(self, site: Site) -> None:
        state = next((process.state for process in site.sequencers if process and process.state), None)
        if state is None or not state.membership.is_watched:
            return
        for place, (topic, _) in enumerate(site.broker.topics):
            parsed = Topic.parse(topic)
            assert parsed is not None
            sender = f"{parsed.neighbour or parsed.site}/{TICK_NAME}"
            site.broker.append(place, sender, 1, max(state.seqno, 1), kind=HEARTBEAT, at_ms=self.now_ms)

    def _do_settings(self, rng: random.Random) -> None:
        """A site is closed for a while, or opened."""
        if self.shape.joining:
            closed = rng.random() < 0.5
            self.change_settings(
                self._site(rng), closed=closed, flush=self.shape.flush, suspect_after_ms=SUSPECT_AFTER_MS
            )

    # Sequencers.

    def start_sequencer(self, site: Site, slot: int, dice: Dice, *, zombie: bool) -> None:
        if site.sequencers[slot] is None:
            site.sequencers[slot] = SiteSequencer(
                site.broker, self.rules, dice, zombie=zombie, batch_rows=self.shape.batch_rows, later=self.shape.later
            )

    def _do_start(self, rng: random.Random) -> None:
        slot = rng.choice((0, 0, 0, 1))
        self.start_sequencer(self._site(rng), slot, Dice(rng.getrandbits(30)), zombie=rng.random() < 0.3)

    def _do_sequence(self, rng: random.Random) -> None:
        """Run some steps of a sequencer, and start one if there is none."""
        site, slot = self._site(rng), rng.choice((0, 0, 0, 0, 1))
        if slot == 0:
            self.start_sequencer(site, slot, Dice(rng.getrandbits(30)), zombie=rng.random() < 0.3)
        self.sequence(site, slot, rng.randint(1, 14))

    def sequence(self, site: Site, slot: int, steps: int) -> None:
        for _ in range(steps):
            process = site.sequencers[slot]
            if process is None:
                return
            if has_ended(process):
                site.sequencers[slot] = None

    def _do_race(self, rng: random.Random) -> None:
        """Two sequencers take over at the same time, step by step."""
        site = self._site(rng)
        for slot in range(SEQUENCERS):
            self.start_sequencer(site, slot, Dice(rng.getrandbits(30)), zombie=rng.random() < 0.3)
        for _ in range(rng.randint(4, 14)):
            self.sequence(site, rng.randrange(SEQUENCERS), 1)

    def _do_sequencer_fault(self, rng: random.Random) -> None:
        """A batch fails, or kill -9: a part of it is written, of the rest something may come later."""
        site, slot = self._site(rng), rng.choice((0, 0, 1))
        process = site.sequencers[slot]
        if process is None:
            return
        for _ in range(rng.randint(0, 6)):
            if process.is_writing or has_ended(process):
                break
        rest = process.fail()
        site.leftovers.append(rest[rng.choice((0, 0, 1, 2)) :])
        if rng.random() < 0.3:  # it arrives at once: the lost records are a hole
            self._arrive(site, rng, len(rest))
        if rng.random() < 0.5:
            site.sequencers[slot] = None

    def _do_leftover(self, rng: random.Random) -> None:
        """Let the buffer of a dead or failed attempt arrive in part."""
        site = self._site(rng)
        site.leftovers = [left for left in site.leftovers if left]
        if site.leftovers:
            self._arrive(site, rng, rng.randint(1, 5))

    def _arrive(self, site: Site, rng: random.Random, count: int) -> None:
        records = rng.choice(site.leftovers)
        for record in records[:count]:
            if rng.random() < 0.85:
                site.broker.append_data(record)
        del records[:count]

    def _do_retention(self, rng: random.Random) -> None:
        broker = self._site(rng).broker
        broker.drop_beginning(rng.randint(0, len(broker.data)))

    def _do_relayed_retention(self, rng: random.Random) -> None:
        """Drop the beginning of a link's records, read or not."""
        broker = self._site(rng).broker
        place = rng.randrange(len(broker.topics))
        if "relayed" in broker.topics[place][0]:
            broker.forward[place].drop(rng.randint(0, broker.forward[place].end))

    # Relays.

    def start_relay(self, source: str, target: str, sites: Sites, *, blind: bool = False) -> Relay:
        relay = Relay(self.sites[source].broker, self.sites[target].broker, sites, blind=blind)
        self.relays.append(relay)
        return relay

    def _do_relay_start(self, rng: random.Random) -> None:
        """By the file of either end, whether or not another one runs."""
        sites = self.file_of(self._site(rng).name)
        directions = [
            direction
            for direction in sites.directions()
            if direction.source in self.sites and direction.target in self.sites
        ]
        if directions and len(self.relays) < 2 * len(directions):
            direction = rng.choice(directions)
            if rng.random() < 0.6 or not any(relay.direction == direction for relay in self.relays):
                self.start_relay(*direction, sites, blind=rng.random() < 0.06)

    def _do_relay(self, rng: random.Random) -> None:
        """Each relay goes on a bit, some of them not at all."""
        for relay in list(self.relays):
            if rng.random() < 0.6:
                self.relay(relay, rng.choice((1, 3, 12)))

    def relay(self, relay: Relay, steps: int) -> None:
        """Steps of a relay: it looks, says where it begins, tells the view, then carries a record each."""
        for _ in range(steps):
            if relay.advance(self.now_ms) is None:
                self.relays.remove(relay)
                return

    def _do_relay_fault(self, rng: random.Random) -> None:
        if not self.relays:
            return
        relay = rng.choice(self.relays)
        fault = rng.randrange(4)
        if fault == 0:
            relay.repeat(rng.randint(1, 4))
        elif fault == 1:
            relay.look()
        else:
            if fault == 2:
                relay.farewell(self.now_ms)
            self.relays.remove(relay)

    def _do_ledger(self, rng: random.Random) -> None:
        """The operator writes what a site's ledger has: all of it, or until somebody presses Ctrl-C."""
        sites = self.file_of(self._site(rng).name)
        directions = [
            direction
            for direction in sites.directions()
            if direction.source in self.sites and direction.target in self.sites
        ]
        if directions:
            source, target = (self.sites[name].broker for name in rng.choice(directions))
            last = None if rng.random() < 0.5 else rng.randint(0, len(source.data))
            try:
                from_ledger(source, target, sites, self.now_ms, last)
            except HistoryUnavailable:
                return  # the other site's rows are known once its sequencer runs

    # The mesh changes.

    def _do_change_links(self, rng: random.Random) -> None:
        """A link more, or one less, as long as all sites hang together."""
        newest = self.files[-1]
        names = sorted(set(newest.connections) - self.retired)
        if len(names) < 2:
            return
        links = set(newest.links) ^ {frozenset(rng.sample(names, 2))}
        if hang_together(names, links):
            self.publish(newest.connections, links)
            self.is_tree = False

    def _do_new_site(self, rng: random.Random) -> None:
        name = next((name for name in "abcdefg" if name not in self.sites), None)
        if name is None or len(self.sites) > len(self.shape.sites) + 1:
            return
        newest = self.files[-1]
        others = sorted(set(newest.connections) - self.retired)
        links = {frozenset((name, other)) for other in rng.sample(others, rng.randint(1, min(2, len(others))))}
        self.publish([*newest.connections, name], newest.links | links)
        self.add_site(name)
        self.is_tree &= len(links) == 1

    def _do_retire(self, rng: random.Random) -> None:
        """A site goes for good: its links go, or all that the file says of it."""
        newest = self.files[-1]
        names = sorted(set(newest.connections) - self.retired)
        name = rng.choice(names)
        links = {link for link in newest.links if name not in link}
        rest = [other for other in names if other != name]
        if len(rest) < 2 or not hang_together(rest, links):
            return
        self.retired.add(name)
        self.is_tree = False
        keeps_its_table = rng.random() < 0.5
        self.publish([other for other in newest.connections if other != name or keeps_its_table], links)

    def _do_roll_out(self, rng: random.Random) -> None:
        """Give one site a newer file."""
        site = self._site(rng)
        site.version = rng.randint(site.version, len(self.files) - 1)

    # The end.

    def heal(self) -> None:
        """No more faults, the newest file at all sites, every relay started again once, and time enough."""
        try:
            self._heal()
        except AbcastError as error:
            self.problems.append(Anomaly(STUCK, f"healing: {type(error).__name__}: {error}", ()))

    def _heal(self) -> None:
        self.relays = []
        for site in self.sites.values():
            site.version = len(self.files) - 1
            site.sequencers = [None] * SEQUENCERS
            self.start_sequencer(site, 0, Dice(12345), zombie=True)
            process = site.sequencers[0]
            assert process is not None
            process.batch_rows, process.later = 1_000_000, 0
            while process.state is None:
                process.advance()
            for records in site.leftovers:
                for record in records:
                    site.broker.append_data(record)
            if self.shape.joining:
                self.change_settings(site, flush=self.shape.flush, suspect_after_ms=SUSPECT_AFTER_MS)
        directions = self._directions()
        for direction in directions:
            self.start_relay(*direction, self.files[-1])
        quiet, seqnos = 0, [-1]
        for _ in range(HEALING_ROUNDS):
            self._heal_once(directions)
            before, seqnos = seqnos, [self._state(name).seqno for name in self.sites]
            quiet = quiet + 1 if seqnos == before and not self._pending() else 0
            if quiet > QUIET_ROUNDS:
                return
            if sum(seqnos) > MOST_RECORDS:
                break
        self.problems.append(Anomaly(STUCK, f"not quiet after {HEALING_ROUNDS} rounds: {self._pending()}", ()))

    def _directions(self) -> list[Direction]:
        return self.files[-1].directions()

    def _heal_once(self, directions: list[Direction]) -> None:
        for site in self.sites.values():
            for sender in site.senders:
                sender.is_paused = False
                sender.read(len(site.broker.data))
                sender.send(self.now_ms)
        self.pass_time(ROUND_MS)
        for site in self.sites.values():
            self._sequence_all(site)
        for relay in list(self.relays):
            while relay.advance(self.now_ms) not in ("idle", None):
                pass
            if relay.lacks_history:
                self.relays.remove(relay)
                if relay.could_begin():
                    self.problems.append(
                        Anomaly(STUCK, f"{relay.direction} could begin, and says it lacks history", ())
                    )
                from_ledger(relay.here, relay.there, self.files[-1], self.now_ms)
                self.start_relay(*relay.direction, self.files[-1])

    def _sequence_all(self, site: Site) -> None:
        """A batch of all there is."""
        process = site.sequencers[0]
        if process is None:
            raise HistoryUnavailable(f"{site.name} has no sequencer")
        while process.advance() not in ("committed", None):
            pass

    def _pending(self) -> list[str]:
        pending = [
            sender.address
            for site in self.sites.values()
            for sender in site.senders
            if sender.pending and not sender.is_leaving
        ]
        return pending + [str(relay.direction) for relay in self.relays if not relay.is_done]

    def _state(self, name: str) -> SequencerState:
        process = self.sites[name].sequencers[0]
        if process is None or process.state is None:
            raise HistoryUnavailable(f"{name} has no sequencer")
        return process.state

    # What must hold.

    def anomalies(self) -> list[Anomaly]:
        """Every broken promise."""
        found = list(self.problems)
        for name, site in self.sites.items():
            found += [Anomaly(WRONG_STATE, wrong, ()) for wrong in site.broker.wrong_states]
            try:
                found += self._wrong_states(name)
            except AbcastError as error:
                found.append(Anomaly(STUCK, f"{name}: {type(error).__name__}: {error}", ()))
        orders = {name: site.broker.effective() for name, site in self.sites.items()}
        found += self._check_messages(orders)
        if self.is_tree:
            found += self._check_causality(orders)
        if not found:
            found += self._check_remote_views()
        return found

    def _wrong_states(self, name: str) -> list[Anomaly]:
        """The running sequencer's rows are DATA's, once FORWARD is read again: no link brings more."""
        broker, running = self.sites[name].broker, self._state(name)
        told = broker.tells(len(broker.data))
        if (told.origins, told.own_seqno, told.seqno) != (running.origins, running.own_seqno, running.seqno):
            rows = f"{running.seqno} {running.own_seqno} {running.origins}"
            return [
                Anomaly(WRONG_STATE, f"{name} has {rows}, DATA tells {told.seqno} {told.own_seqno} {told.origins}", ())
            ]
        again = sorted(
            (record for place in range(len(broker.forward)) for record in broker.kept(place)),
            key=lambda record: record.source,
        )
        state, outputs = sequencer.step(told, again)
        neighbours = [direction.source for direction in self._directions() if direction.target == name]
        # A session that a removed link began too early may count now: it can tell a view, and no message.
        taken = [
            record
            for record in outputs
            if isinstance(record, Data)
            and record.link is not None
            and (record.kind == MESSAGE or origin_of(record.sender) in neighbours)
        ]
        if taken:
            return [Anomaly(DUPLICATE, f"{name}, FORWARD read again, orders {taken[:3]}", ())]
        if any(state.links.get(neighbour) != running.links.get(neighbour) for neighbour in neighbours):
            return [Anomaly(WRONG_STATE, f"{name} has the links {running.links}, and again {state.links}", ())]
        return []

    def _check_messages(self, orders: dict[str, list[Data]]) -> list[Anomaly]:
        """Every site has every effective own message of every other origin once, in the origin's order."""
        found: list[Anomaly] = []
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
                found.append(Anomaly(GAP, f"the seqnos of {name} have a gap", ()))
            if any(origin_of(record.sender) not in orders for record in order if record.kind == MESSAGE):
                found.append(Anomaly(UNKNOWN_MESSAGE, f"{name} has a message of no site", ()))
            if not {payload for _, _, payload in own[name]} <= self.said:
                found.append(Anomaly(UNKNOWN_MESSAGE, f"{name} has ordered what nobody broadcast", ()))
        for (name, origin), got in has.items():
            if name != origin:
                wanted = own[origin]
                if origin in self.retired:
                    wanted = max((has[other, origin] for other in orders if other not in self.retired), key=len)
                found += compare(f"{name} of {origin}", got, wanted, own[origin])
        return found

    def _check_causality(self, orders: dict[str, list[Data]]) -> list[Anomaly]:
        """In a tree of links, the messages before one at its origin are before it everywhere."""
        found: list[Anomaly] = []
        for name, order in orders.items():
            at = {record.id: record.seqno for record in order if record.kind == MESSAGE}
            for origin, there in orders.items():
                last = 0
                for record in there:
                    seqno = at.get(record.id) if record.kind == MESSAGE else None
                    if seqno is not None and record.link is None and seqno < last:
                        found.append(Anomaly(CAUSAL_VIOLATION, f"{record.id} of {origin} at {name}", (seqno,)))
                        break
                    last = max(last, seqno or 0)
        return found

    def _check_remote_views(self) -> list[Anomaly]:
        """Each site knows the views in force at its neighbours."""
        found: list[Anomaly] = []
        for direction in self._directions():
            here, there = self._state(direction.source), self._state(direction.target)
            known = there.membership.remote.get(direction.source)
            wanted = RemoteSite(here.membership.members) if here.view else None
            if known != wanted:
                found.append(
                    Anomaly(
                        WRONG_STATE,
                        f"{direction.target} takes {known} for the view of {direction.source}: {wanted}",
                        (),
                    )
                )
        return found


def has_ended(process: SiteSequencer) -> bool:
    """Let it do a step. It ends when it is fenced, or when retention drops what it reads while it takes over."""
    try:
        return process.advance() is None
    except HistoryUnavailable:  # its supervisor starts it again
        return True


def messages_of(order: Iterable[Data], origin: str) -> list[Message]:
    """The messages of an origin in the order of a site."""
    return [
        (record.seqno if record.link is None else record.link.origin_seqno, record.id, record.payload)
        for record in order
        if record.kind == MESSAGE and origin_of(record.sender) == origin
    ]


def compare(what: str, got: list[Message], wanted: list[Message], known: list[Message]) -> list[Anomaly]:
    """Return the violations in a site's messages of an origin."""
    if got == wanted:
        return []
    found: list[Anomaly] = []

    def report(name: str, messages: Iterable[Message]) -> None:
        listed = list(messages)
        if listed:
            found.append(Anomaly(name, f"{what}: {len(listed)}, such as {listed[0]}", ()))

    ids = Counter(message.id for message in map(_Seen._make, got))
    report(DUPLICATE, (message for message in got if ids[message[1]] > 1))
    report(UNKNOWN_MESSAGE, (message for message in got if message not in known))
    report(LOST, (message for message in wanted if message[1] not in ids))
    if not found:
        report(FIFO_VIOLATION, (one for one, other in zip(got, wanted, strict=False) if one != other))
    return found


class _Seen(NamedTuple):
    origin_seqno: int
    id: MessageId
    payload: bytes


def hang_together(names: Iterable[str], links: Iterable[Link]) -> bool:
    """Whether there is a way from each to each."""
    left = set(names)
    ends = [left.pop()] if left else []
    while ends:
        end = ends.pop()
        for link in links:
            if end in link:
                near = (link - {end}) & left
                left -= near
                ends += near
    return not left
