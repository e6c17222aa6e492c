"""A copy is made the home of a hub, on a Kafka in memory: with the old home there, without it, and cut off midway."""

from __future__ import annotations

import pytest
from kafka.structs import TopicPartition

from connectors import Member
from connectors.kafka.codec import first_fields
from connectors.kafka.data_log import DataLog
from connectors.kafka.sites import Sites
from connectors.relay.promotion import Promotion, copy_rest, fence_former_home, promote
from connectors.sequencer.takeover import take_over
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.tiny_sequencer import TinySequencer
from ordering.errors import BrokerUnreachable, UsageError
from ordering.names import Topic
from ordering.records import MESSAGE

GROUP = "g"


class Hub:
    """Three sites with a Kafka each; nyc was the home, sfo is to be."""

    def __init__(self) -> None:
        self.connections = {name: MemoryConnection() for name in ("nyc", "sfo", "lax")}
        for name, connection in self.connections.items():
            connection.create(GROUP, name)
        links = frozenset(frozenset(("sfo", other)) for other in ("nyc", "lax"))
        self.sites = Sites("hub", "sfo", "micro-batch", dict(self.connections), links)

    def log(self, site: str) -> DataLog:
        return DataLog(self.connections[site], GROUP, site)

    def order(self, site: str, name: str, count: int) -> None:
        """Some messages, ordered by the site's own sequencer."""
        connection = self.connections[site]
        with TinySequencer(connection, GROUP, site), Member(GROUP, f"{site}/{name}", connection=connection) as member:
            for number in range(count):
                member.broadcast(b"%d" % number)
            member.wait_ordered(10)

    def copy(self, source: str, target: str) -> None:
        with self.log(source) as other, self.log(target) as copy:
            copy_rest(other, copy)

    def messages(self, site: str) -> list[tuple[str, int]]:
        with self.log(site) as log, Member(GROUP, f"{site}/reader", connection=self.connections[site]) as member:
            last = log.state().seqno
            found = []
            for delivery in member.deliveries(from_seqno=1, timeout=0.3) if last else ():
                found.append((delivery.sender, delivery.local_seqno))
            return found


@pytest.fixture
def hub() -> Hub:
    made = Hub()
    made.order("nyc", "a", 5)
    made.copy("nyc", "sfo")
    return made


def test_a_home_that_answers_is_replaced_without_a_loss(hub: Hub) -> None:
    """What the copy lacked comes along; the old sequencer can't start again; the order goes on."""
    hub.order("nyc", "b", 3)
    assert promote(hub.sites, GROUP, "sfo") == Promotion(8, 3, ())
    with pytest.raises(UsageError, match="the home of group g is sfo now"):
        take_over(hub.connections["nyc"], GROUP, "nyc")
    hub.order("sfo", "c", 2)
    expected = [("nyc/a", n + 1) for n in range(5)] + [("nyc/b", n + 1) for n in range(3)]
    assert hub.messages("sfo") == [*expected, ("sfo/c", 1), ("sfo/c", 2)]
    with hub.log("sfo") as log:
        assert log.state().seqno == 10
        assert not log.is_copy()


def test_an_old_home_that_returns_is_fenced(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had ordered what nobody else has; that is told, and its sequencer stops."""

    def away(*_: object) -> None:
        raise BrokerUnreachable("nyc is away.")

    hub.order("nyc", "b", 3)
    with monkeypatch.context() as cut:
        cut.setattr(hub.connections["nyc"].__class__, "consumer", _only(hub.connections["nyc"], away))
        assert promote(hub.sites, GROUP, "sfo") == Promotion(5, 0, ("nyc",))
    hub.order("sfo", "c", 2)
    with hub.log("sfo") as home, hub.log("nyc") as former:
        running = take_over(hub.connections["nyc"], GROUP, "nyc").epoch  # it does not know yet
        assert fence_former_home(home, former)
        newest = former.newest_claim()
        assert newest is not None
        assert newest.epoch > running
    with pytest.raises(UsageError, match="the home of group g is sfo now"):
        take_over(hub.connections["nyc"], GROUP, "nyc")
    assert hub.messages("sfo")[5:] == [("sfo/c", 1), ("sfo/c", 2)]


def test_the_copy_that_reaches_furthest_counts(hub: Hub) -> None:
    """The home is gone for good; another copy has more than the one that is promoted."""
    hub.order("nyc", "b", 3)
    hub.copy("nyc", "lax")
    hub.connections["nyc"].topics.partitions.clear()
    assert promote(hub.sites, GROUP, "sfo") == Promotion(8, 3, ("nyc",))


def test_a_copy_with_other_messages_is_refused(hub: Hub) -> None:
    """A copy that was left behind when the home moved has other messages under the same numbers."""
    hub.order("nyc", "b", 3)
    hub.copy("nyc", "lax")
    with hub.log("lax") as lax:
        beyond = lax.state().seqno
    lost = hub.connections["nyc"].topics.partitions
    kept = {place: list(records) for place, records in lost.items()}
    lost.clear()
    only_sfo = Sites("hub", "sfo", "micro-batch", {"sfo": hub.connections["sfo"]}, frozenset())
    promote(only_sfo, GROUP, "sfo")
    hub.order("sfo", "c", 4)
    lost.update(kept)
    with hub.log("sfo") as home, hub.log("lax") as lax:
        assert beyond == 8
        with pytest.raises(UsageError, match="different messages under seqno 8"):
            copy_rest(home, lax)


def test_cut_off_midway_it_is_done_again(hub: Hub) -> None:
    """The old home is fenced, and nothing else was done yet: the copy is still one, and the same call promotes it."""
    hub.order("nyc", "b", 3)
    with hub.log("nyc") as old:
        from connectors.relay.promotion import fence

        fence(old, "sfo")
    assert promote(hub.sites, GROUP, "sfo") == Promotion(8, 3, ())
    with pytest.raises(UsageError, match="is no copy of group g"):
        promote(hub.sites, GROUP, "sfo")
    place = TopicPartition(str(Topic(GROUP, "data", "sfo")), 0)
    kinds = [first_fields(record.headers, 2)[1] for record in hub.connections["sfo"].topics.partitions[place]]
    assert kinds.count(MESSAGE.encode()) == 8


def _only(one: MemoryConnection, away: object) -> object:
    original = MemoryConnection.consumer

    def consumer(self: MemoryConnection, **settings: object) -> object:
        return away() if self is one else original(self, **settings)  # type: ignore[operator]

    return consumer
