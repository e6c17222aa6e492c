"""Actions of a group that sends in all orders: of its members, its sequencer, its relays, and of Kafka."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.client.memory.outbox import Outbox
from connectors.client.tail.merged_log import Begin
from connectors.engine.options import EngineOptions
from connectors.kafka.codec.cast_codec import CAST_FIELDS, decode_cast
from connectors.kafka.connection.sites import Direction, Sites
from connectors.relay.casts import Casts
from connectors.relay.hub import HomeData, SiteForward
from connectors.relay.relay import Relay
from connectors.testing.memory_topics import WRITES
from ordering.base.errors import AbcastError, BrokerUnreachable, CastMissing
from ordering.casts.casts import TOTAL, Cast
from ordering.checker.anomalies import LOST
from ordering.participant.participant_events import Asked
from ordering.participant.participant_table import Cause
from tests.relay.carrying import Carrier
from tests.simulator.mutation import NONE, Mutation
from tests.world.casts_judge import ORDERS, Judge, Seen
from tests.world.casts_member import GROUP, Member
from tests.world.guests import DAY_MS, Guests
from tests.world.jobs import Job
from tests.world.kafka import WorldConnection, WorldKafka, partition
from tests.world.world import World

STEP_MS = 10
MOST_MEMBERS = 6
SUSPECT_AFTER_MS = 2_000
AWAY = "away"
"""The feature of a history whose Kafka has powers, and a retention of casts."""
POWERS = (AWAY, "marker")
NO_FLUSH = "no-flush"
"""The feature of a group without flush."""
LIES = "lies"
"""The feature of a history with a client that counts wrongly."""
OUTBOX = "outbox"
GUESTS = ("hostile", "ledger", "day", "counts", "format", "closed")
ACTIONS = {
    "send": 30, "tail": 30, "read": 30, "deliver": 30, "take": 30, "read_app": 25, "call": 25, "beat": 4, "decide": 30,
    "carry": 25, "start": 5, "kill": 3, "leave": 1, "pause": 1, "rejoin": 6, "stall": 6, "arrive": 6, "refuse": 2,
    "repeat": 2, "kill_relay": 1, "run_relay_twice": 1, "cut": 1, "slow": 3, "ask": 8, "kill_job": 1, "look": 3,
    "mishap": 8, "die_sending": 2, "idle": 3,
}  # fmt: skip
"""The actions, with their weights."""

RELAYS: tuple[tuple[type[Relay], str], ...] = (HomeData, "ns"), (SiteForward, "sn"), (Casts, "ns"), (Casts, "sn")
"""The relays of the hub, with their ways."""


class CastSite:
    """A site of the hub."""

    def __init__(self, kafka: WorldKafka, name: str, partitions: int) -> None:
        self.kafka, self.name = kafka, name
        self.connection = WorldConnection.to(kafka, name)
        self.connection.create(GROUP, name, partitions)
        if name == "n":
            kafka.topics.partitions[partition("relayed", "n", "s")] = []


class CastActions(World[CastSite]):
    """The members, the sequencer, the relays and Kafka, and what they do."""

    def __init__(self, seed: int, mutation: Mutation, outboxes: str) -> None:
        super().__init__(seed, ACTIONS)
        dice, self._outboxes = self.dice, outboxes
        self.has_flush = not (mutation.has(NO_FLUSH) and (seed % 7 == 3 or mutation is not NONE))
        self.lies = mutation.has(LIES) and self.has_flush and (seed % 4 == 1 or mutation is not NONE)
        self.has_outboxes = dice.random() < 0.5
        self.is_lax = not self.has_flush
        powers = POWERS if mutation.has(AWAY) and (seed % 3 == 2 or mutation is not NONE) else ()
        self.has_powers = bool(powers)
        self.orders = ORDERS if self.has_flush else ("fifo", "total")
        if powers:
            self._actions = ACTIONS | {"kill_relay": 12}
        self.max_held = dice.choice((3, 8, 1_000))
        names = ("n", "s")[: dice.choice((1, 2, 2))]
        self.sites = {name: CastSite(WorldKafka(seed, self.actors, powers), name, dice.randint(1, 2)) for name in names}
        links = frozenset([frozenset(names)]) if len(names) > 1 else frozenset()
        self.file = Sites("hub", "n", "micro-batch", {name: at.connection for name, at in self.sites.items()}, links)
        self.judge, self.guests = Judge(self.blame, self.tell), Guests(seed, GUESTS, mutation)
        self.members: list[Member] = []
        self.starts = self.later = 0
        self.job: Job | None = None
        self.carriers: list[Carrier] = []
        self.liar: Member | None = None
        self.slow: set[tuple[type, str]] = set()
        """The kinds and ways of relays that make no headway."""

    def act(self) -> None:
        """Do one action."""
        [kind] = self.dice.choices(list(self._actions), list(self._actions.values()))
        self.pass_time(STEP_MS, ("cast",), 0.0)
        for at in self.sites.values():
            self.guests.write_malformed(at.kafka, at.name)
        self.guests.keep_ledger(self.sites["n"].connection)
        self.later = self.guests.later()
        if self.guests.lets_a_day_pass():
            self.pass_time(DAY_MS, (), 0.0)
        getattr(self, f"_{kind}")()

    # --- members ---

    @property
    def running(self) -> list[Member]:
        """The members that are not paused."""
        return [each for each in self.members if not each.is_paused]

    def turn(self, name: str, member: Member | None = None, *given: str) -> None:
        """Let one part of a process go on."""
        if member is None:
            if not self.running:
                return
            member = self.dice.choice(self.running)
        with self.actors.acting(member.name):
            try:
                getattr(member, name)(*given)
            except AbcastError as error:
                self.has_ended(member, error)

    def turns(self, member: Member, *parts: str) -> None:
        """Let these parts of a process go on, one after the other, while it lives. `ORDERS` are sent in."""
        for part in parts:
            if member.is_alive:
                self.turn(*(("send_in", member, part) if part in ORDERS else (part, member)))

    def has_ended(self, member: Member, error: Exception) -> None:
        """End a process by an error."""
        if not member.is_alive:
            return
        self.note_error(member.name, error)  # type: ignore[arg-type]
        if isinstance(error, CastMissing):
            self.seen["found a lie"] += 1
            if self.liar is None or (member is not self.liar and self.liar.address not in str(error)):
                self.blame(LOST, f"{member.name} takes a true clock for a wrong one: {error}")
            self.end_process(member)
            self._start()
            return
        if not self.lies and not isinstance(error, BrokerUnreachable):
            self.blame(LOST, f"{member.name} ends: {error!r}")
        self.end_process(member)

    def end_process(self, member: Member) -> None:
        """Kill a process. Others may lack what it leaves behind, until a start of the name sends it.

        Without a flush they may lack it for good, although some, who began behind a hole among its casts, have it. An
        outbox has no cast that is in the log: a view may end without it.
        """
        self.tell(f"{member.name} is killed")
        unwritten = member.unwritten
        for number in unwritten if self.is_lax and member.outbox is None else ():
            self.judge.may_lack(number)
        member.kill()
        self.members.remove(member)
        for number, message in enumerate(self.judge.messages):
            if message.process is member:
                is_kept = member.outbox is not None and (message.order == TOTAL or number in unwritten)
                message.process = member.address if is_kept else None

    def _tail(self) -> None:
        self.turn("tail")

    def _read(self) -> None:
        self.turn("read")

    def _deliver(self) -> None:
        self.turn("deliver")

    def _take(self) -> None:
        self.turn("take")

    def _read_app(self) -> None:
        self.turn("read_for_application")

    def _call(self) -> None:
        self.turn("call")

    def _beat(self) -> None:
        for member in self.running:
            self.turn("beat", member)

    def _rejoin(self) -> None:
        self.turn("rejoin")

    def _send(self) -> None:
        if self.running:
            member = self.dice.choice(self.running)
            for _ in range(self.dice.choice((1, 1, 1, 2, 5))):
                order = self.dice.choice(self.orders)
                if member.is_alive:
                    self.turn("send_in", member, order)

    def _start(self, most: int = MOST_MEMBERS) -> None:
        taken = {each.address for each in self.members}
        free = {f"{site}/{name}" for site in self.sites for name in "abcdefg"[:most]} - taken
        if len(self.members) >= most or not free:
            return
        left = free.intersection(message.process for message in self.judge.messages if isinstance(message.process, str))
        address = self.dice.choice(sorted(left if left and self.dice.random() < 0.5 else free))
        self.starts += 1
        outbox = None
        if self.has_outboxes and address[-1] in "abc":
            outbox = Outbox(f"{self._outboxes}/{address.replace('/', '.')}", GROUP, address)
        self.tell(f"{address} starts")
        with self.actors.acting(f"{address}#{self.starts}"):
            try:
                member = Member(self, self.sites[address[0]].kafka, address, outbox)
            except AbcastError as error:
                self.note_error(address, error)
                if outbox is not None:
                    outbox.close()
                return
        self.members.append(member)
        member.wants_state = len(self.members) > 2 and self.dice.random() < 0.6
        for message in self.judge.messages:
            if message.process == address:
                message.process, message.past = member, 0

    def is_put_out(self, member: Member, kept: set[int]) -> None:
        """Note that the group has gone on without a process that lives, which casts these messages again."""
        self.seen["put out"] += 1
        for number, message in enumerate(self.judge.messages):
            if message.process is member:
                message.past = 0
                if number not in kept:
                    self.judge.may_lack(number)

    def _one_to_spare(self) -> Member | None:
        joined = [each for each in self.running if each.joined is not None and each is not self.liar]
        return self.dice.choice(joined) if len(joined) > 2 else None

    def _kill(self) -> None:
        if (member := self._one_to_spare()) is not None:
            self.seen["killed"] += 1
            self.end_process(member)

    def _die_sending(self) -> None:
        """Kill a member that has sent in all orders. Its casts are on their way for long, or others have read them."""
        member = self._one_to_spare() if self.has_flush else None
        if member is None:
            return
        is_late = self.dice.random() < 0.5
        for at, place in self.cast_places() if is_late else ():
            if member.kafka is at.kafka:
                self._delay(at, place)
        for order in self.dice.choices(ORDERS, k=3):
            self.turns(member, order)
        for other in self.running if not is_late else ():
            if other is not member:
                self.turns(other, "tail", "read", "deliver")
        if member.is_alive:
            self.seen["died sending"] += 1
            self.end_process(member)
            self._start()

    def _idle(self) -> None:
        """Let time pass, until the group goes on without the dead. Nobody reads casts."""
        for _ in range(4):
            self.pass_time(SUSPECT_AFTER_MS // 3, (), 0.0)
            self._beat()
            self._look()
            self._decide()
            self._relay_all()
            for member in self.running:
                self.turns(member, "tail", "deliver", "call")

    def _leave(self) -> None:
        """Tell the group, and end without waiting."""
        member = self._one_to_spare()
        if member is None:
            return
        with self.actors.acting(member.name), suppress(AbcastError):
            member.forwarder.tell(Asked(Cause.LEAVE))
        self.seen["left"] += 1
        self.end_process(member)

    def _pause(self) -> None:
        """A process pauses, perhaps for longer than the group waits for it; another one goes on."""
        for member in self.members:
            member.is_paused = member.is_paused and self.dice.random() < 0.5
        if self.dice.random() < 0.5 and (paused := self._one_to_spare()) is not None:
            paused.is_paused = True
            self.pass_time(SUSPECT_AFTER_MS // 2, (), 0.0)

    def look(self, seen: Seen) -> None:
        """Let the judge look at a reader that waits, and at others, which may tell."""
        hubs = [each.hub_seen for each in self.members]
        self.judge.look(seen, [each for each in hubs if not (each.is_lax or each.is_out)])

    # --- states ---

    def _ask(self) -> None:
        """A joiner asks for the state, between two deliveries of the application that has it."""
        asking = [each for each in self.running if each.wants_state and each.joined and each.state is None]
        for member in asking:
            member.wants_state = member.joined is not None and member.joined.seqno > 0
        if not asking:
            return
        joiner = self.dice.choice(asking)
        suppliers = [
            each
            for each in self.running
            if each.application is not None
            and not (each.is_liar or each.application.seen.is_out)  # a joiner asks the members of its view
            and (self.is_lax or not each.application.seen.is_lax)
        ]
        if not suppliers:
            joiner.wants_state = False
            return
        supplier = self.dice.choice(suppliers)
        sender = self._supply_news(supplier, joiner)
        if supplier.application is None or supplier.application.seen.is_out:
            return
        with self.actors.acting(supplier.name):
            state = supplier.cut()
        joined = joiner.joined
        assert joined is not None
        if state is None or supplier.application.seen_seqno < joined.seqno:
            return
        joiner.state, joiner.had = state, supplier.application.seen.given or 0
        self.seen["asked for a state"] += 1
        if self.has_powers:
            self._go_on_without(joiner)
        may_die = supplier in self.running and supplier is not self.liar and len(self.running) > 3
        if self.dice.random() < 0.4 and may_die:
            self.end_process(supplier)
            others = [each for each in self.running if each not in (joiner, self.liar) and each.joined]
            if others:
                self.seen["died serving"] += 1
                self.end_process(sender if sender in others else self.dice.choice(others))
                self._idle()

    def _go_on_without(self, joiner: Member) -> None:
        """Let all others read casts that a joiner's state does not have, and retention run, while it is on its way."""
        others = [each for each in self.running if each is not joiner]
        self.turns(self.dice.choice(others), *self.dice.choices(self.orders, k=2))
        self._relay_all()
        for each in self.running:
            self.turns(each, *("tail", "read", "deliver", "read_for_application") * 3)
            self.turns(each, *["take"] * 6 if each is not joiner else ())
        self._retire()

    def _supply_news(self, supplier: Member, joiner: Member) -> Member | None:
        """Give a supplier what others have not read, perhaps, from a member at its site; return that."""
        near = [each for each in self.running if each.kafka is supplier.kafka and each not in (supplier, joiner)]
        if not near or self.dice.random() < 0.3:
            return None
        sender = self.dice.choice(near)
        self.turns(sender, *self.dice.choices(self.orders, k=3))
        self.turns(supplier, *("tail", "read", "deliver", "read_for_application") * 2)
        self.turns(supplier, *["take"] * self.dice.randrange(1, 8))
        return sender

    def check_state(self, joiner: Member, had: int) -> None:
        """Check that the joiner's hub has delivered all that a state has."""
        seen = joiner.hub_seen
        given = seen.given if seen.given is not None or seen.first else 0
        if given is not None and not seen.is_lax and (lacks := had & ~given & ~self.judge.doubtful):
            which = self.judge.name(next(n for n in range(lacks.bit_length()) if lacks >> n & 1))
            self.blame(LOST, f"the state for {joiner.name} has {which}, which its hub has not")

    # --- the sequencer and relays ---

    def _decide(self) -> None:
        with self.actors.acting("sequencer"):
            try:
                if self.job is None:
                    self.job = Job(EngineOptions(self.sites["n"].connection, "n"), self.actors)
                if self.job.decide(None, self.later):
                    return
            except AbcastError as error:
                self.note_error("sequencer", error)
            self._end_job()

    def _look(self) -> None:
        """Let the sequencer's supervisor take a turn, which ticks."""
        if self.job is not None:
            with self.actors.acting("sequencer"):
                try:
                    self.job.look()
                except AbcastError as error:
                    self.note_error("sequencer", error)
                    self._end_job()

    def _end_job(self) -> None:
        if self.job is not None:
            self.job.close()
            self.job = None

    def _kill_job(self) -> None:
        if self.dice.random() < 0.3:
            self._end_job()

    def _start_carrier(self, kind: type[Relay], way: str) -> None:
        with self.actors.acting(f"relay {way}"):
            try:
                self.carriers.append(Carrier(kind, self.file, Direction(*way), GROUP))
            except AbcastError as error:
                self.note_error(f"relay {way}", error)

    def _carry(self, _name: str = "") -> None:
        if len(self.sites) < 2:
            return
        if len(self.carriers) < 4:
            self._start_missing()
        carrier = self.dice.choice(self.carriers)
        way = tuple(carrier.job.direction)
        if way in self.cut or (type(carrier.job), "".join(way)) in self.slow:
            return
        if self.dice.random() < 0.1:
            carrier.go_back(self.dice.randrange(1, 12))
        self.carry(carrier, self.dice.randrange(1, 11))

    def _start_missing(self) -> None:
        running = {(type(each.job), tuple(each.job.direction)) for each in self.carriers}
        for kind, way in RELAYS:
            if (kind, tuple(way)) not in running:
                self._start_carrier(kind, way)

    def carry(self, carrier: Carrier, most: int) -> None:
        """Let a relay carry some records, or end if it can't."""
        if carrier.is_over:
            self.carriers.remove(carrier)
        else:
            carrier.carry(most)

    def _relay_all(self) -> None:
        if len(self.sites) > 1:
            self._start_missing()
            for carrier in list(self.carriers):
                self.carry(carrier, 1 << 30)

    def _kill_relay(self) -> None:
        """Kill a relay, of casts if one runs. With powers, it carries a batch twice, and its site's members send."""
        if not self.carriers:
            return
        killed = self.dice.choice([each for each in self.carriers if isinstance(each.job, Casts)] or self.carriers)
        if self.has_powers and not killed.is_over:
            killed.go_back(self.dice.randrange(1, 12))
            killed.carry()
        self.carriers.remove(killed)
        senders = [each for each in self.running if self.has_powers and each.address[0] == killed.job.direction.source]
        if senders:
            self.turns(self.dice.choice(senders), *self.dice.choices(self.orders, k=2))

    def _run_relay_twice(self) -> None:
        if len(self.sites) > 1 and len(self.carriers) < 6:
            self._start_carrier(*self.dice.choice(RELAYS))

    # --- Kafka ---

    def cast_places(self) -> list[tuple[CastSite, TopicPartition]]:
        """Return the partitions of casts, copies included, with their sites."""
        return [
            (at, place) for at in self.sites.values() for place in at.kafka.topics.partitions if ".cast." in place.topic
        ]

    def _stall(self) -> None:
        """Let casts to a partition be on their way for long."""
        self._delay(*self.dice.choice(self.cast_places()))

    def _delay(self, at: CastSite, place: TopicPartition) -> None:
        if place.topic.endswith(f".{at.name}") and place not in at.kafka.topics.away:
            at.kafka.topics.take_away(place.topic, WRITES, partition=place.partition)

    def _arrive(self) -> None:
        for at in self.sites.values():
            for place, what in list(at.kafka.topics.away.items()):
                if len(what) == 1:
                    on_their_way = at.kafka.topics._in_flight.get(place)
                    if on_their_way and self.dice.random() < 0.2:  # a request fails, and those behind it do not
                        self.dice.choice(on_their_way)[0].fail(KafkaError("a request failed"))
                    at.kafka.topics.bring_back(place.topic, place.partition)

    def _refuse(self) -> None:
        at = self.sites[self.dice.choice(self.names)]
        at.kafka.topics.refuse(partition(self.dice.choice(("cast", "cast", "forward")), at.name).topic, 1)

    def _repeat(self) -> None:
        """A request that was long on its way comes after all, perhaps behind the death of its sender.

        Without a view, a newcomer takes the first cast that it reads for a sender's next one. So there all comes again
        that the sender has written since, as a table that is sent again.
        """
        at, place = self.dice.choice(self.cast_places())
        log = at.kafka.topics.partitions[place]
        if log and place not in at.kafka.topics.away and place.topic.endswith(f".{at.name}"):
            start = self.dice.randrange(len(log))
            for record in log[start : start + 3] if self.has_flush else log[start:]:
                if record.headers and record.key == log[start].key:
                    at.kafka.topics.append(place, record.key, record.value, record.headers)

    def _cut(self, _name: str = "") -> None:
        if len(self.sites) > 1:
            super()._cut()
            if self.dice.random() < 0.6:
                self.cut.clear()

    def _slow(self) -> None:
        """Let one kind of relay make no headway, in one direction; or all go on."""
        if len(self.sites) > 1:
            self.slow = set() if self.dice.random() < 0.4 else {self.dice.choice(RELAYS)}

    def _mishap(self) -> None:
        for at in self.sites.values():
            if at.kafka.powers:
                at.kafka.mishap(at.kafka.places(("cast",)), 0.5)
                self.seen["away"] += bool(at.kafka.topics.away)
        if self.has_powers:
            self._retire()

    def _retire(self) -> None:
        """Let retention drop casts that nobody needs any more; not while a process waits to begin."""
        if any(each.joined is None or each.hub.log is None for each in self.members):
            return
        for at, place in self.cast_places():
            if self.dice.random() < 0.5:
                before = at.kafka.topics.beginnings.get(place, 0)
                at.kafka.topics.drop(place.topic, self._needed_from(at, place, before), place.partition)
                self.seen["retention"] += at.kafka.topics.beginnings[place] > before

    def _needed_from(self, at: CastSite, place: TopicPartition, beginning: int) -> int:
        log = at.kafka.topics.partitions[place]
        below = len(log)
        begins = [begin for member in self.members for begin in member.going_on_from()]
        for member, begin in begins:
            if member.kafka is at.kafka:
                below = min(below, begin.offsets.get(place, beginning))
        if place.topic.endswith(f".{at.name}"):
            for name, other in self.sites.items():
                if name != at.name:
                    copy = other.kafka.topics.partitions.get(place, [])
                    kept = copy[other.kafka.topics.beginnings.get(place, 0) :]
                    below = min(below, next((mark_of(each) + 1 for each in reversed(kept) if each.headers), 0))
            positions = [each.positions[place] for each in self.carriers if place in each.positions]
            below = min([below, *positions]) if len(self.sites) > 1 else below
        for offset in range(beginning, below):
            record = log[offset]
            cast = decode_cast(record.key, record.value, record.headers, 0, at.name) if record.headers else ""
            if isinstance(cast, Cast) and any(lacks(begin, cast) for _, begin in begins):
                return offset
        return below


def mark_of(record: Any) -> int:
    """Return the offset of the record that a relay has copied."""
    mark = record.headers[0][1].split(b" ")[CAST_FIELDS.index("RELAYED_FROM")]
    return int(mark.rpartition(b":")[2])


def lacks(begin: Begin, cast: Cast) -> bool:
    """Whether a reader that goes on from there may still deliver the cast."""
    state = begin.state.causal
    if cast.view != state.view:
        return cast.view > state.view
    return cast.member in state.members and state.vector[state.members.index(cast.member)] < cast.local_seqno
