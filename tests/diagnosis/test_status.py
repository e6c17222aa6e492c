"""What `abcast status` says of a group, on a Kafka in memory."""

from __future__ import annotations

import pytest

from connectors.diagnosis import status
from connectors.diagnosis.status import read_status
from connectors.kafka.codec import encode_data
from connectors.testing.memory_kafka import MemoryConnection
from ordering.membership import Life, Membership
from ordering.names import Topic
from ordering.reader import Seal
from ordering.sequencer import Accepted, SequencerState, seal, snapshot


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> MemoryConnection:
    """A group in which three have sent, and one of them is a member."""
    connection = MemoryConnection()
    connection.create("g", "nyc")
    monkeypatch.setattr(status, "find_topics", lambda _: [Topic("g", role, "nyc") for role in ("forward", "data")])
    state = SequencerState(
        "g",
        epoch=1,
        seqno=7,
        view=2,
        received={f"nyc/{name}": Accepted(1, 2) for name in ("alice", "bob", "abcast.admin")},
        seals=(Seal(1, 1),),
        membership=Membership(members=(Life("nyc/alice", 1),)),
    )
    producer = connection.producer()
    producer.send(str(Topic("g", "epoch", "nyc")), value=b"0 host 7", headers=[("abcast", b"2 claim")])
    for record in (seal(1), snapshot(state)):
        key, value, headers = encode_data(record)
        producer.send(str(Topic("g", "data", "nyc")), key=key, value=value, headers=headers)
    for _ in range(3):
        producer.send(str(Topic("g", "forward", "nyc")), value=b"")
    return connection


def test_members_are_those_of_the_view_and_senders_all_who_have_sent(connection: MemoryConnection) -> None:
    shown = read_status(connection, "g", "nyc")
    assert (shown.last_seqno, shown.view, shown.members, shown.senders, shown.lag) == (7, 2, 1, 3, 3)
