"""Ask Kafka from many threads, over one connection that may have to be replaced."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from typing import ClassVar

import kafka.errors
import pytest
from kafka.errors import BrokerResponseError, KafkaConnectionError, KafkaTimeoutError, NoError, NotCoordinatorError
from kafka.structs import OffsetAndMetadata, TopicPartition

from connectors.kafka.connection import metadata_client
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.metadata_client import refused_in
from connectors.kafka.topics.topics import create_topics
from connectors.local.broker import EmbeddedBroker
from ordering.base.errors import AbcastError, BrokerUnreachable
from tests.waiting import eventually

ASKERS = 40
PLACE = TopicPartition("t", 0)


class Client:
    """The first client asks the wrong broker about the group `lost`, and a dead one about the group `orphan`. It
    answers slowly about the others.
    """

    made: list[Client]
    errors: ClassVar = {"lost": NotCoordinatorError(), "orphan": KafkaConnectionError("111 ECONNREFUSED")}

    def __init__(self, **_: object) -> None:
        self.asked, self.answer = threading.Event(), threading.Event()
        self.is_closed = False
        self.is_first = not self.made
        self.made.append(self)

    def list_group_offsets(
        self, groups: dict[str, list[TopicPartition]]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        if self.is_first and (error := self.errors.get(next(iter(groups)))):
            raise error
        self.asked.set()
        if self.is_first:
            assert self.answer.wait(10)
        assert not self.is_closed
        return {group: {PLACE: OffsetAndMetadata(7, "", -1)} for group in groups}

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("group", Client.errors)
def test_a_client_is_not_closed_under_those_who_ask(monkeypatch: pytest.MonkeyPatch, group: str) -> None:
    """A new Kafka refuses the first requests, and a broker may die: a client is replaced, and callers that wait
    for the earlier one still get its answers.
    """
    monkeypatch.setattr(Client, "made", [], raising=False)
    monkeypatch.setattr(metadata_client, "AdminClient", Client)
    asked = Connection("kafka:1").metadata_client()
    found: list[int] = []
    slow = threading.Thread(target=lambda: found.append(asked.committed("slow", [PLACE])[PLACE].offset))
    slow.start()
    eventually(lambda: Client.made and Client.made[0].asked.is_set(), what="one asks")
    assert asked.committed(group, [PLACE])[PLACE].offset == 7
    assert [client.is_closed for client in Client.made] == [False, False]
    Client.made[0].answer.set()
    slow.join(10)
    assert found == [7]
    assert [client.is_closed for client in Client.made] == [True, False]
    asked.close()
    assert [client.is_closed for client in Client.made] == [True, True]


class Refusing:
    """A client to which Kafka answers every request with this error."""

    def __init__(self, error: type[BrokerResponseError]) -> None:
        self.error = error

    def describe_topics(self, topics: list[str] | None = None) -> list[dict[str, object]]:
        if topics is None:
            raise self.error
        return [{"error_code": self.error.errno, "partitions": []}]

    def list_group_offsets(self, _groups: object) -> object:
        raise self.error

    def alter_group_offsets(self, _group: str, offsets: dict[TopicPartition, OffsetAndMetadata]) -> object:
        return dict.fromkeys(offsets, self.error)

    def close(self) -> None:
        """Do nothing."""


ERRORS: list[type[BrokerResponseError]] = [
    error
    for error in vars(kafka.errors).values()
    if isinstance(error, type) and issubclass(error, BrokerResponseError) and (getattr(error, "errno", 0) or 0) > 0
]
CALLS: dict[str, Callable[[metadata_client.MetadataClient], object]] = {
    "partitions_of": lambda asked: asked.partitions_of("t"),
    "topics": lambda asked: asked.topics(),
    "committed": lambda asked: asked.committed("g", [PLACE]),
    "commit": lambda asked: asked.commit("g", {PLACE: OffsetAndMetadata(7, "", -1)}, 0.0),
}


@pytest.mark.parametrize("error", ERRORS, ids=[error.__name__ for error in ERRORS])
@pytest.mark.parametrize("call", CALLS)
def test_each_error_of_kafka_is_one_of_ours(
    monkeypatch: pytest.MonkeyPatch, call: str, error: type[BrokerResponseError]
) -> None:
    """Any error to any request, also one that a retry does not mend."""
    monkeypatch.setattr(metadata_client, "AdminClient", lambda **_: Refusing(error))
    monkeypatch.setattr(Connection, "unreachable", lambda *_: BrokerUnreachable("nobody answers."))
    asked = Connection("kafka:1", timeout=0.01).metadata_client()
    is_an_answer = (call, error) == ("partitions_of", kafka.errors.UnknownTopicOrPartitionError)
    with nullcontext() if is_an_answer else pytest.raises(AbcastError, match=r"\w"):
        CALLS[call](asked)


UNKNOWN, FORBIDDEN = kafka.errors.UnknownTopicOrPartitionError, kafka.errors.TopicAuthorizationFailedError
OTHER = TopicPartition("u", 0)


@pytest.mark.parametrize("error", [UNKNOWN, FORBIDDEN])
def test_one_partition_that_kafka_refuses_costs_the_others_nothing(error: type[BrokerResponseError]) -> None:
    assert refused_in({OTHER: error, PLACE: NoError}) == {OTHER}
    with pytest.raises(error):
        refused_in({OTHER: error, PLACE: error})


@pytest.mark.parametrize("error", [UNKNOWN, FORBIDDEN])
@pytest.mark.parametrize("of_all", [NotCoordinatorError, kafka.errors.UnknownMemberIdError])
def test_an_error_of_the_whole_commit_is_no_topics(
    error: type[BrokerResponseError], of_all: type[BrokerResponseError]
) -> None:
    """A client that asks the wrong broker is replaced, also if that one does not know a topic."""
    for answers in ({OTHER: error, PLACE: of_all}, {PLACE: of_all, OTHER: error}):
        with pytest.raises(of_all):
            refused_in(answers)


@pytest.mark.slow
def test_who_waits_while_another_connects_waits_once() -> None:
    """A listener that never answers costs one connect and one look for the reason, for all callers together.
    Closing the client does not wait for it.
    """
    errors: list[BrokerUnreachable] = []
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        asked = Connection(f"127.0.0.1:{listener.getsockname()[1]}", timeout=0.4).metadata_client()

        def ask() -> None:
            with pytest.raises(BrokerUnreachable) as raised:
                asked.topics()
            errors.append(raised.value)

        def close() -> None:
            asked.close()
            assert not errors

        _start(ask, times=5, then=close)
    assert len(errors) == 5
    assert len(set(map(id, errors))) == 1


class SlowClient(Client):
    """A client that connects when told to; the first one fails if the broker is away."""

    may: threading.Event
    is_away = False

    def __init__(self, **_: object) -> None:
        super().__init__()
        assert self.may.wait(10)
        if self.is_away and self.is_first:
            raise KafkaTimeoutError

    def describe_topics(self) -> list[dict[str, object]]:
        return [{"name": "t", "partitions": [{"partition_index": 0}]}]


def test_closing_while_one_connects_leaves_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _client_of_slow_clients(monkeypatch)
    found: list[object] = []

    def close() -> None:
        asked.close()
        SlowClient.may.set()

    _start(lambda: found.append(asked.topics()), times=3, then=close)
    assert found == [{"t": {0}}] * 3
    assert asked.topics() == {"t": {0}}
    assert all(client.is_closed for client in SlowClient.made)


def test_who_has_time_left_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _client_of_slow_clients(monkeypatch, is_away=True)
    ended: list[object] = []

    def ask() -> None:
        try:
            ended.append(asked.topics())
        except BrokerUnreachable as error:
            ended.append(error)

    _start(ask, times=3, then=SlowClient.may.set)
    assert ended.count({"t": {0}}) == 2
    assert len(SlowClient.made) == 2
    asked.close()
    assert SlowClient.made[1].is_closed


def _client_of_slow_clients(
    monkeypatch: pytest.MonkeyPatch, *, is_away: bool = False
) -> metadata_client.MetadataClient:
    for name, value in {"made": [], "may": threading.Event(), "is_away": is_away}.items():
        monkeypatch.setattr(SlowClient, name, value, raising=False)
    monkeypatch.setattr(metadata_client, "AdminClient", SlowClient)
    return Connection("127.0.0.1:1").metadata_client()


def _start(ask: Callable[[], object], *, times: int, then: Callable[[], object]) -> None:
    """Ask in so many threads; once one of them connects and the others wait, call `then`; wait for all."""
    started = threading.Barrier(times + 1)
    threads = [threading.Thread(target=lambda: (started.wait(10), ask())) for _ in range(times)]
    for thread in threads:
        thread.start()
    started.wait(10)
    threads[0].join(0.1)
    then()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.broker
def test_kafka_stores_the_other_offsets_of_a_commit(broker: EmbeddedBroker) -> None:
    """Kafka refuses a partition that it lacks: of no topic, or above the topic's."""
    connection, offset = Connection(broker.bootstrap_servers, timeout=20), OffsetAndMetadata(7, "", -1)
    create_topics(connection, "committed", ["nyc"])
    known = TopicPartition("abcast.committed.data.nyc", 0)
    unknown = {known._replace(partition=1), TopicPartition("abcast.nosuch.data.nyc", 0)}
    with closing(connection.metadata_client()) as asked:
        assert asked.commit("some", dict.fromkeys([*unknown, known], offset), 3.0) == unknown
        assert asked.committed("some", [known])[known].offset == 7
        with pytest.raises(BrokerUnreachable):
            asked.commit("some", dict.fromkeys(unknown, offset), 0.1)


@pytest.mark.broker
def test_many_ask_at_once(broker: EmbeddedBroker) -> None:
    """Also before it is connected; kafka-python would drop all but the first five of a large heap."""
    connection = Connection(broker.bootstrap_servers, timeout=20)
    answers: list[set[int]] = []
    with closing(connection.metadata_client()) as asked, ThreadPoolExecutor(ASKERS) as pool:
        answers += pool.map(lambda _: asked.partitions_of("nosuch"), range(ASKERS))
    assert answers == [set()] * ASKERS
