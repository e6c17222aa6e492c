"""A world: sites, each with its Kafka; one clock; actors, one at a time; dice that a seed gives.

A history is a row of actions, chosen by the dice. `World` has what every world needs: who can reach whom, the relays,
the errors that the shipped code has ended with, and the story, which a person can read. A world of a kind adds its
actions, its checks, and its end.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Generic, Protocol, TypeVar

from connectors.kafka.codec.codec import decode_data
from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.transport import PlainRecord
from ordering.base.errors import AbcastError, BrokerUnreachable, KafkaRefused
from ordering.checker.anomalies import Anomaly
from tests.relay.carrying import Carrier
from tests.world.actors import Actors
from tests.world.kafka import TooLarge, WorldConnection, WorldKafka

REPEATS = 0.1
"""Probability that a relay goes back by some records, as a query does whose batch failed."""
RELAY_ENDS = 0.01
"""Probability that a relay is killed."""
FAR_BACK = 12


class WorldSite(Protocol):
    """A site of a world."""

    kafka: WorldKafka
    connection: WorldConnection


AnySite = TypeVar("AnySite", bound=WorldSite)


class World(Generic[AnySite]):
    """A history."""

    sites: Mapping[str, AnySite]
    file: Sites
    most_carried = 40
    """The most records of a partition that a relay copies at a time."""

    def __init__(self, seed: int, actions: Mapping[str, int]) -> None:
        """`actions`: the names of the methods to choose from, without their first character, with their weights."""
        self._actions = actions
        self.dice = random.Random(seed)
        self.actors = Actors(self.dice)
        self.cut: set[tuple[str, str]] = set()
        """The links that are cut, each in one direction."""
        self.actors.is_cut_off = lambda actor, site: (actor, site) in self.cut
        self.relays: dict[Direction, Carrier] = {}
        self.anomalies: list[Anomaly] = []
        self.seen = Counter[str]()
        """The errors that jobs have ended with."""
        self.story: list[str] = []

    @property
    def names(self) -> list[str]:
        """The sites' names."""
        return list(self.sites)

    def tell(self, what: str) -> None:
        """Add a line to the story."""
        self.story.append(f"{self.actors.passed_ms:>7} ms  {what}")

    def tell_record(self, stored: PlainRecord) -> None:
        """Add a record that a Kafka has stored."""
        told, role = "", stored.topic.split(".")[-2]
        if role == "data":
            data = decode_data(stored.key, stored.value, stored.headers)
            told = f"epoch {data.epoch} seqno {data.seqno} {data.kind} {data.id if data.sender else ''}"
        elif role == "forward":
            told = f"{stored.headers[0][1].decode('ascii', 'replace') if stored.headers else ''} {stored.key!r}"
        self.tell(f"    {role} {stored.partition}:{stored.offset} {told}  ({self.actors.actor or 'late'})")

    def blame(self, name: str, detail: str) -> None:
        """Note an anomaly."""
        self.tell(f"{name}: {detail}")
        self.anomalies.append(Anomaly(name, detail, ()))

    def note_error(self, who: str, error: AbcastError) -> None:
        """Note an error that an actor has ended with."""
        self.tell(f"{who} ends: {type(error).__name__}: {error}")
        self.seen[f"{type(error).__name__}: {error}"[:100]] += 1

    @contextmanager
    def noting(self, who: str) -> Iterator[None]:
        """Note the error that the block ends with."""
        try:
            yield
        except AbcastError as error:
            self.note_error(who, error)

    def act(self) -> None:
        """Do one action at one site."""
        [kind] = self.dice.choices(list(self._actions), list(self._actions.values()))
        name = self.dice.choice(self.names)
        self.tell(f"{kind} {name}")
        getattr(self, f"_{kind}")(name)

    def pass_time(self, elapsed_ms: int, roles: Sequence[str], mishaps: float) -> None:
        """Let time pass. A Kafka's power hits one of its topics of these roles, perhaps."""
        self.actors.pass_time(elapsed_ms)
        for at in self.sites.values():
            at.kafka.mishap(at.kafka.places(roles), mishaps)

    @contextmanager
    def unanswered(self, share: float) -> Iterator[None]:
        """Let this share of a producer's records get no answer, in all Kafkas."""
        for at in self.sites.values():
            at.kafka.unanswered = share
        try:
            yield
        finally:
            for at in self.sites.values():
                at.kafka.unanswered = 0.0

    # Links

    def _heal(self, _name: str = "") -> None:
        self.cut.clear()
        self.actors.ahead.clear()

    def _cut(self, _name: str = "") -> None:
        pairs = [(one, other) for one in self.names for other in self.names if one != other]
        if self.dice.random() < 0.3:
            self.cut.add(self.dice.choice(pairs))  # one direction of one link
            return
        self.cut_off({name for name in self.names if self.dice.random() < 0.4})

    def cut_off(self, names: Collection[str]) -> None:
        """Cut all links between these sites and the others."""
        self.cut = {(one, two) for one in self.names for two in self.names if (one in names) != (two in names)}

    # Relays

    def _carry(self, name: str) -> None:
        self.relay(name, self.dice.choice(self.names))

    def relay(self, source: str, target: str) -> None:
        """Let a relay carry some records. Start it before, if it does not run."""
        way = Direction(source, target)
        if source == target or (source, target) in self.cut:
            return
        with self.actors.acting(f"relay {way}"):
            relay = self.relays.get(way) or self._started(way)
            if relay is None or self.is_blind(relay):
                return
            if relay.is_over or self.dice.random() < RELAY_ENDS:
                del self.relays[way]
                return
            if self.dice.random() < REPEATS:
                relay.go_back(self.dice.randrange(1, FAR_BACK))
            with suppress(TooLarge):  # it tries again
                relay.carry(self.dice.randrange(1, self.most_carried))

    def is_blind(self, relay: Carrier) -> bool:
        """Whether the relay does not look at its source now."""
        return False

    def _started(self, way: Direction) -> Carrier | None:
        try:
            self.relays[way] = self.new_relay(way)
        except (BrokerUnreachable, KafkaRefused):
            return None
        except AbcastError as error:
            self.note_error(f"relay {way}", error)
            self.relay_has_ended(way, error)
            return None
        return self.relays[way]

    def new_relay(self, way: Direction) -> Carrier:
        """Start a relay. Raises what a start raises."""
        raise NotImplementedError

    def relay_has_ended(self, way: Direction, error: AbcastError) -> None:
        """Judge an error of a relay's start that a retry does not mend."""
