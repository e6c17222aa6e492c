"""Relays run by sites' files of different age, while a new one rolls out: letters and casts don't go round, and
each arrives that a file has a way for.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from kafka.structs import TopicPartition

from connectors.kafka.codec.cast_codec import CAST_FIELDS, cast_headers
from connectors.kafka.codec.codec import LETTER_FIELDS
from connectors.kafka.codec.letter_codec import letter_headers
from connectors.kafka.connection.sites import Direction, Mode, Sites
from connectors.relay.casts import Casts
from connectors.relay.letter_copies import purge_copies
from connectors.relay.letters import Letters
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.memory_topics import MemoryTopics
from ordering.base.names import Topic
from ordering.casts.casts import FIFO, NO_VIEW, Cast
from tests.relay.carrying import Carrier, been_at, make, memory, relays_in_memory

GROUP = "g"


@pytest.fixture(autouse=True, scope="module")
def in_memory() -> Iterator[None]:
    with relays_in_memory():
        yield


class World:
    """Sites a, b, c …, each in the Kafka that `kafkas` names in its place; each has a file of its own."""

    def __init__(self, kafkas: str, file: Sites | None = None) -> None:
        self.names = "abcdefgh"[: len(kafkas)]
        stored = {name: MemoryTopics() for name in kafkas}
        self.at = {
            site: MemoryConnection(f"k{kafka}:1", topics=stored[kafka])
            for site, kafka in zip(self.names, kafkas, strict=True)
        }
        self.kafkas = dict(zip(self.names, kafkas, strict=True))
        for site, kafka in self.at.items():
            kafka.create(GROUP, site)
        self.files: dict[str, Sites] = {}
        self.casts, self.letters = Counter[str](), Counter[tuple[str, str]]()
        self.running: dict[tuple[type, Direction], Carrier] = {}

    def file(self, mode: Mode, home: str | None, links: list[str]) -> Sites:
        return Sites(mode, home, "micro-batch", dict(self.at), frozenset(map(frozenset, links)))

    def give(self, site: str, file: Sites) -> None:
        """Restart the site's relays with that file."""
        self.files[site] = file
        self.running = {key: carrier for key, carrier in self.running.items() if key[1].source != site}

    def write(self, source: str, target: str) -> None:
        """Write a letter of a member at the source to one at the target, and a cast."""
        self.letters[source, target] += 1
        topic = Topic(GROUP, "inbox", target)
        make(self.at[source], topic, 1)
        headers = letter_headers(f"{source}/m", 7, self.letters[source, target])
        memory(self.at[source]).append(TopicPartition(str(topic), 0), f"{target}/m".encode(), b"", headers)
        self.casts[source] += 1
        cast = Cast(f"{source}/m", 7, self.casts[source], b"", FIFO, NO_VIEW, 0, "")
        place = TopicPartition(str(Topic(GROUP, "cast", source)), 0)
        memory(self.at[source]).append(place, cast.sender.encode(), b"", cast_headers(cast))

    def relays(self) -> list[tuple[type, Direction]]:
        """Return each site's relays, by its file."""
        directions = [way for site, file in self.files.items() for way in file.directions() if way.source == site]
        return [(kind, way) for way in directions for kind in (Letters, Casts)]

    def carry(self, relay: tuple[type, Direction], most: int, *, starts: bool) -> int:
        if starts or relay not in self.running:
            kind, direction = relay
            self.running[relay] = Carrier(kind, self.files[direction.source], direction, GROUP)
        return self.running[relay].carry(most)

    def carry_all(self) -> None:
        """Run all relays until no record is left; each has a way of as many steps as there are Kafkas at most."""
        for _ in range(len(self.names) + 1):
            carried = sum(self.carry(relay, 1000, starts=True) for relay in self.relays())
        assert carried == 0, "records go round"

    def check_copies(self) -> None:
        """Check that each copy has come by a way of its own, without a Kafka twice: so there are few."""
        for site, kafka in self.at.items():
            for place, records in memory(kafka).partitions.items():
                topic = Topic.parse(place.topic)
                if topic is None or topic.role not in ("inbox", "cast"):
                    continue
                at = (LETTER_FIELDS if topic.role == "inbox" else CAST_FIELDS).index("RELAYED_FROM")
                said = Counter(record.headers[0][1] for record in records if b"/abcast." in record.headers[0][1])
                assert set(said.values()) <= {1}, "the same record was carried twice by one relay"
                for record in records:
                    marks = record.headers[0][1].split(b" ")[at:]
                    sites = [mark.partition(b"/")[0].decode() for mark in marks if b"/" in mark]
                    way = [self.kafkas[each] for each in sites]
                    assert len(way) == len(set(way)) == len({self.kafkas[each] for each in been_at(record, at)})
                    assert self.kafkas[site] not in way

    def arrived(self, source: str, target: str) -> tuple[set[int], set[int]]:
        """Return the numbers of a member's letters and casts at the target."""
        inbox = memory(self.at[target]).partitions[TopicPartition(str(Topic(GROUP, "inbox", target)), 0)]
        casts = memory(self.at[target]).partitions.get(TopicPartition(str(Topic(GROUP, "cast", source)), 0), [])
        letters = [fields for each in inbox if (fields := each.headers[0][1].split())[4] == f"{source}/m".encode()]
        return {int(fields[3]) for fields in letters}, {int(each.headers[0][1].split()[3]) for each in casts}

    def check_arrived(self, file: Sites) -> None:
        for source, target in itertools.permutations(self.names, 2):
            if file.distance(source, target) is not None:
                letters, casts = self.arrived(source, target)
                assert letters == set(range(1, self.letters[source, target] + 1)), f"letters {source} to {target}"
                assert casts == set(range(1, self.casts[source] + 1)), f"casts {source} to {target}"


def test_one_link_of_a_mesh_is_replaced_by_another() -> None:
    world = World("123")
    old, new = world.file("mesh", None, ["ab", "ac"]), world.file("mesh", None, ["ab", "bc"])
    for site, file in (("a", new), ("b", old), ("c", old)):
        world.give(site, file)
    for source, target in ("ac", "bc", "ca", "ab"):
        world.write(source, target)
    world.carry_all()
    world.check_copies()
    for site in "bca":
        world.give(site, new)
    world.carry_all()
    world.check_copies()
    world.check_arrived(new)


def test_the_old_home_comes_back_with_its_old_file() -> None:
    world = World("123")
    old, new = world.file("hub", "a", ["ab", "ac"]), world.file("hub", "b", ["ba", "bc"])
    for site, file in (("a", old), ("b", new), ("c", new)):
        world.give(site, file)
    for source, target in itertools.permutations(world.names, 2):
        world.write(source, target)
    world.carry_all()
    world.check_copies()
    world.give("a", new)
    world.carry_all()
    world.check_arrived(new)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_files_roll_out_one_by_one(seed: int) -> None:
    """Relays are killed and start again, copies are purged, and each site's file is one of several, in any order."""
    dice = random.Random(seed)
    count = dice.randrange(2, 6)
    kafkas = "12345"[:count] if dice.random() < 0.7 else "".join(dice.choice("1234") for _ in range(count))
    world = World(kafkas)
    pairs = ["".join(pair) for pair in itertools.combinations(world.names, 2)]

    def some_file() -> Sites:
        if dice.random() < 0.3:
            home = dice.choice(world.names)
            return world.file("hub", home, [home + other for other in world.names if other != home])
        tree = [dice.choice(world.names[:at]) + world.names[at] for at in range(1, count)]
        return world.file("mesh", None, tree + dice.sample(pairs, dice.randrange(len(pairs) + 1)))

    files = [some_file() for _ in range(dice.randrange(2, 4))]
    for site in world.names:
        world.give(site, files[0])
    for _ in range(150):
        step = dice.choice(["write", "carry", "carry", "carry", "start", "file", "purge"])
        if step == "write":
            world.write(*dice.sample(world.names, 2))
        elif step == "file" and dice.random() < 0.5:
            world.give(dice.choice(world.names), dice.choice(files))
        elif step == "purge":
            site = dice.choice(world.names)
            purge_copies(world.files[site], site, GROUP, settled_s=-1)
        elif world.relays():
            world.carry(dice.choice(world.relays()), dice.randrange(1, 5), starts=step == "start")
    world.carry_all()
    world.check_copies()
    for site in world.names:
        world.give(site, files[-1])
    world.carry_all()
    world.check_copies()
    world.check_arrived(files[-1])
