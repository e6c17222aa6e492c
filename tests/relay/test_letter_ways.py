"""Letters between sites, in memory, by the relays' own rules: each arrives, however sites are linked and share
Kafkas.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import LETTER_FIELDS
from connectors.kafka.codec.letter_codec import letter_headers
from connectors.kafka.connection.sites import Direction, Sites
from connectors.relay.letter_copies import purge_copies
from connectors.relay.letters import Letters
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.memory_topics import MemoryTopics
from ordering.base.errors import KafkaRefused
from ordering.base.names import Topic
from tests.relay.carrying import Carrier, make, relays_in_memory

GROUP, PARTITIONS = "g", 2


def links_of(pairs: Iterable[str]) -> frozenset[frozenset[str]]:
    return frozenset(map(frozenset, pairs))


@pytest.fixture(autouse=True, scope="module")
def in_memory() -> Iterator[None]:
    with relays_in_memory():
        yield


class World:
    """Sites a, b, c …, each in the Kafka that `kafkas` names in its place, all with a group.

    `is_told`: sites that share a Kafka have the same address for it, so that the sites' file tells.
    """

    def __init__(self, kafkas: str, links: Iterable[str], *, is_told: bool = True) -> None:
        self.names = "abcdefgh"[: len(kafkas)]
        stored = {name: MemoryTopics() for name in kafkas}
        at = {
            site: MemoryConnection(f"k{kafka}{'' if is_told else site}:1", topics=stored[kafka])
            for site, kafka in zip(self.names, kafkas, strict=True)
        }
        self.sites = Sites("mesh", None, "micro-batch", at, links_of(links))
        for site, kafka in at.items():
            kafka.create(GROUP, site)
            make(kafka, Topic(GROUP, "inbox", site), PARTITIONS)
        self.sent: dict[tuple[str, str, int], int] = {}

    def link(self, links: Iterable[str]) -> None:
        """Use a new sites' file."""
        self.sites = replace(self.sites, links=links_of(links))

    def kafka(self, site: str) -> MemoryConnection:
        kafka = self.sites.connection(site)
        assert isinstance(kafka, MemoryConnection)
        return kafka

    def send(self, source: str, target: str, number: int) -> bool:
        """Send a member's next letter to one at the target; return whether it has a topic."""
        place = TopicPartition(str(Topic(GROUP, "inbox", target)), number)
        if place not in self.kafka(source).topics.partitions:
            return False
        way = source, target, number
        self.sent[way] = self.sent.get(way, 0) + 1
        headers = letter_headers(f"{source}/m{number}", 7, self.sent[way])
        self.kafka(source).topics.append(place, f"{target}/m{number}".encode(), f"{self.sent[way]}".encode(), headers)
        return True

    def carry(self, direction: Direction, most: int) -> int:
        """Start a relay that copies so many records of each partition at most, and kill it; return their number."""
        return Carrier(Letters, self.sites, direction, GROUP).carry(most)

    def carry_all(self) -> None:
        """Run the relays until all letters have arrived; a letter needs a step for each link of its way at most."""
        for _ in range(len(self.names) + 1):
            carried = sum(self.carry(direction, 1000) for direction in self.sites.directions())
        assert carried == 0, "letters go round"

    def taken(self, source: str, target: str, number: int) -> int:
        """Count the letters that their receiver takes: in the order of sending, once."""
        place = TopicPartition(str(Topic(GROUP, "inbox", target)), number)
        taken = 0
        for record in self.kafka(target).topics.partitions[place]:
            sender = dict(record.headers)["abcast"].split()[LETTER_FIELDS.index("SENDER")].decode()
            taken += sender == f"{source}/m{number}" and record.value == f"{taken + 1}".encode()
        return taken

    def check(self) -> None:
        """Each letter is taken, and no inbox itself was purged as a copy."""
        for source, target, number in self.sent:
            place = TopicPartition(str(Topic(GROUP, "inbox", target)), number)
            assert place not in self.kafka(target).topics.beginnings, f"from {source}"
        assert {way: self.taken(*way) for way in self.sent} == self.sent


def test_two_kafkas_of_two_sites_each() -> None:
    """a and b are in one Kafka, c and d in another. a's way to e leads by c, and d's by b: letters would go round."""
    world = World("11223", ["ac", "ce", "db", "be"])
    world.carry_all()
    for number in range(PARTITIONS):
        assert world.send("a", "e", number)
    world.carry_all()
    world.check()


def test_one_who_may_not_ask_at_the_inbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site may not know the Kafkas behind its neighbour's; the neighbour tells what it has to know."""
    world = World("123", ["ab", "bc"])

    def refuse(*_: object) -> int:
        raise KafkaRefused("who are you?")

    monkeypatch.setattr("connectors.relay.letters.count_partitions", refuse)
    world.carry(Direction("a", "b"), 1)
    assert not world.send("a", "c", 1), "the neighbour does not know yet"
    monkeypatch.undo()
    world.carry(Direction("b", "c"), 1)
    monkeypatch.setattr("connectors.relay.letters.count_partitions", refuse)
    world.carry(Direction("a", "b"), 1)
    assert world.send("a", "c", 1)
    monkeypatch.undo()
    world.carry_all()
    world.check()


def test_a_copy_that_was_made_anew() -> None:
    """The new copy goes on from its beginning, though marks at the inbox name later offsets."""
    world = World("123", ["ab", "bc"])
    world.carry_all()
    for _ in range(5):
        assert world.send("a", "c", 0)
    world.carry_all()
    for inbox in ("a", "b"):
        purge_copies(world.sites, inbox, GROUP, settled_s=-1)
    place = TopicPartition(str(Topic(GROUP, "inbox", "c")), 0)
    world.kafka("b").topics.partitions[place] = []
    del world.kafka("b").topics.beginnings[place]
    assert world.send("a", "c", 0)
    world.carry_all()
    world.check()


@st.composite
def deployments(draw: st.DrawFn) -> World:
    kafkas = draw(st.text("1234", min_size=2, max_size=5))
    pairs = ["".join(pair) for pair in itertools.combinations("abcde"[: len(kafkas)], 2)]
    return World(kafkas, draw(st.sets(st.sampled_from(pairs), min_size=1)), is_told=draw(st.booleans()))


@pytest.mark.long
@given(deployments())
def test_each_letter_arrives_and_nothing_goes_round(world: World) -> None:
    world.carry_all()
    for source, target in itertools.permutations(world.names, 2):
        is_reached = world.sites.distance(source, target) is not None
        assert not is_reached or world.send(source, target, 0), f"{source} has no topic for {target}"
    sent = {way: count for way, count in world.sent.items() if world.sites.distance(*way[:2]) is not None}
    world.carry_all()
    assert {way: world.taken(*way) for way in sent} == sent


@pytest.mark.parametrize("seed", range(80))
def test_nothing_is_lost_by_purges_restarts_and_new_links(seed: int) -> None:
    dice = random.Random(seed)
    kafkas = "".join(dice.choice("1234") for _ in range(dice.randrange(2, 6)))
    world = World(kafkas, [], is_told=dice.random() < 0.7)
    pairs = ["".join(pair) for pair in itertools.combinations(world.names, 2)]
    tree = [dice.choice(world.names[:at]) + world.names[at] for at in range(1, len(world.names))]
    world.link(tree)
    world.carry_all()
    for _ in range(80):
        step = dice.choice(["send", "send", "carry", "carry", "purge", "link"])
        if step == "send":
            source, target = dice.sample(world.names, 2)
            world.send(source, target, dice.randrange(PARTITIONS))
        elif step == "purge":
            purge_copies(world.sites, dice.choice(world.names), GROUP, settled_s=-1)
        elif step == "link" and dice.random() < 0.3:
            world.link(dice.choice([tree, dice.sample(pairs, dice.randrange(1, len(pairs) + 1))]))
        elif world.sites.directions():
            world.carry(dice.choice(world.sites.directions()), dice.randrange(1, 4))
    world.link(tree)
    world.carry_all()
    world.check()
