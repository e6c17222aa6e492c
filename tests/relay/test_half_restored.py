"""Between a restore that was cut off and the next run, a member is told to wait, and to delete nothing."""

from __future__ import annotations

import pytest
from kafka.errors import KafkaTimeoutError
from kafka.structs import TopicPartition

from connectors import Member
from connectors.client.memory.position_notes import DELIVERIES
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.liveness import judge
from connectors.relay import restore as restoring
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import PositionLost, ProtocolViolation, UsageError
from ordering.base.names import Topic
from tests.relay.test_restore import SITE, Lived, lived, restored

__all__ = ["lived"]


def broken_off(*_: object) -> None:
    raise KafkaTimeoutError


@pytest.mark.slow
def test_who_comes_in_between(lived: Lived, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = MemoryConnection()
    with monkeypatch.context() as broken:
        broken.setattr(restoring, "write_in_order", broken_off)
        with pytest.raises(KafkaTimeoutError):
            restored(kafka, lived)
    with DataLog(kafka, "g", SITE) as log:
        found = judge(log, None)
    assert found.state == "restored"
    assert "`abcast restore` was interrupted, run it again" in str(found)
    with pytest.raises(UsageError, match="is being restored") as told:
        Member("g", f"{SITE}/alice", connection=kafka, outbox=lived.outbox).connect()
    assert "elete" not in str(told.value)
    restored(kafka, lived)
    with (
        SequencerThread(kafka, "g", SITE),
        Member("g", f"{SITE}/alice", connection=kafka, outbox=lived.outbox) as alice,
    ):
        alice.flush(20)


@pytest.mark.slow
def test_the_note_of_a_restore_is_taken_back(lived: Lived) -> None:
    """A new name then begins at the first message."""
    kafka = MemoryConnection()
    restored(kafka, lived)
    with SequencerThread(kafka, "g", SITE), Member("g", f"{SITE}/bob", connection=kafka) as bob:
        with pytest.raises(PositionLost):
            next(bob.deliveries())
        kafka.topics.append(TopicPartition(str(Topic("g", "memory", SITE)), 0), f"* {DELIVERIES}".encode(), None, [])
        with Member("g", f"{SITE}/carol", connection=kafka) as carol:
            assert len(list(carol.deliveries(timeout=1))) == 10


@pytest.mark.slow
def test_a_seqno_beyond_the_gap(lived: Lived) -> None:
    kafka = MemoryConnection()
    restored(kafka, lived)
    with DataLog(kafka, "g", SITE) as log, pytest.raises(ProtocolViolation, match="g was restored, and lost"):
        log.after(10**6)
