"""Asking Kafka from many threads, over one connection that may have to be replaced."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import ClassVar

import pytest
from kafka.errors import KafkaConnectionError, NotCoordinatorError
from kafka.structs import OffsetAndMetadata, TopicPartition

from connectors.kafka import desk
from connectors.kafka.connection import Connection
from connectors.local.broker import EmbeddedBroker
from tests.waiting import eventually

ASKERS = 40
PLACE = TopicPartition("t", 0)


class Client:
    """The first one asks the wrong broker about the group `lost`, and one that is gone about the group `orphan`. It is
    slow about the others.
    """

    made: list[Client]
    errors: ClassVar = {"lost": NotCoordinatorError(), "orphan": KafkaConnectionError("111 ECONNREFUSED")}

    def __init__(self, **_: object) -> None:
        self.made.append(self)
        self.is_first = len(self.made) == 1
        self.asked, self.answer = threading.Event(), threading.Event()
        self.is_closed = False

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
    """On a new Kafka the first askers are sent away, and a broker may die. That must not cost the others their answers,
    nor those who asked it for long.
    """
    monkeypatch.setattr(Client, "made", [], raising=False)
    monkeypatch.setattr(desk, "KafkaAdminClient", Client)
    asked = Connection("kafka:1").desk()
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


@pytest.mark.broker
def test_many_ask_at_once(broker: EmbeddedBroker) -> None:
    """Before it is connected, too; kafka-python would leave out of a large heap all but the first five."""
    connection = Connection(broker.bootstrap_servers, timeout=20)
    answers: list[set[int]] = []
    with closing(connection.desk()) as asked, ThreadPoolExecutor(ASKERS) as pool:
        answers += pool.map(lambda _: asked.partitions_of("nosuch"), range(ASKERS))
    assert answers == [set()] * ASKERS
