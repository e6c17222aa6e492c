"""Acts of operators in EPOCH change nothing for readers of its other records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.kafka.codec.epochs import Move, Note, decode, encode_exclusion, encode_move, encode_note
from connectors.kafka.connection.sending import append
from connectors.kafka.log.acts import ACT_HEADER, KEPT, MAX_WHY, Act, act_header, act_of_this_user, read_act, record_act
from connectors.kafka.log.data_log import DataLog
from connectors.takeover.takeover import take_over
from connectors.testing import MemoryGroup
from connectors.testing.memory_kafka import MemoryConnection, MemoryMetadataClient
from ordering.base.errors import KafkaRefused, UsageError
from ordering.base.records import Exclusion

TEXT = st.text(max_size=50)


@given(TEXT, TEXT, TEXT, TEXT)
def test_what_is_told_is_read(act: str, what: str, who: str, why: str) -> None:
    told = Act(act, what, who, why)
    assert read_act([("abcast", b"2 note"), act_header(told)], 7) == told._replace(at_ms=7)


@pytest.mark.parametrize("said", [b"", b"{", b"7", b"[]", b"\xff", b'"x"', b"null", b"[" * 100_000])
def test_what_nobody_of_ours_has_written_is_none(said: bytes) -> None:
    assert read_act([(ACT_HEADER, said)], 7) is None
    assert read_act([("abcast", b"2 move")], 7) is None


def test_a_later_version_may_tell_more() -> None:
    told = read_act([(ACT_HEADER, b'{"act": "fence", "ticket": 7, "why": 3}')], 7)
    assert told == Act("fence", "", "", "3", 7)


@pytest.mark.parametrize(
    ("value", "headers"),
    [encode_move(Move("sfo", 7)), encode_exclusion(Exclusion(3, ("lax",))), encode_note(Note(0, 0, 0))],
)
def test_readers_of_earlier_versions_see_the_same(value: bytes, headers: list[tuple[str, bytes]]) -> None:
    """Earlier versions read the header `abcast` and the value, and skip other headers."""
    with_act = [*headers, act_header(Act("x", "y"))]
    assert decode("e", 4, value, with_act, 9) == decode("e", 4, value, headers, 9)


def test_acts_change_nothing_else() -> None:
    """A group goes on as before, in the next epoch, and the newest acts are known."""
    with MemoryGroup("g", "nyc") as group, group.member("alice") as alice:
        assert alice.broadcast(b"1").result(10) == 1
        with DataLog(group.connection, "g", "nyc") as data:
            start = data.after(0)
        for number in range(KEPT + 5):
            record_act(group.connection, "g", "nyc", act_of_this_user("forget", f"nyc/m{number}", "left"))
        with DataLog(group.connection, "g", "nyc") as data:
            before = data.state()
            assert [act.what for act in data.epochs.known.acts] == [f"nyc/m{number}" for number in range(5, KEPT + 5)]
            assert data.after(0) == start
        state = take_over(group.connection, "g", "nyc")
    assert (state.seqno, state.received) == (before.seqno, before.received)
    assert state.epoch > before.epoch


def test_without_the_right_it_is_said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operation goes on, and a warning says that its act is not recorded."""
    connection = MemoryConnection()
    connection.create("g", "nyc")

    def refused(*_: Any) -> None:
        raise KafkaRefused("alice may not write there.")

    monkeypatch.setattr(MemoryMetadataClient, "partitions_of", refused)
    record_act(connection, "g", "nyc", Act("forget", "nyc/bob"))
    assert "the log lacks the user and the reason: alice may not write there." in caplog.text


def test_a_reason_has_a_bound() -> None:
    assert act_of_this_user("x", "y", "w" * MAX_WHY).why
    with pytest.raises(UsageError, match="use 500 at most"):
        act_of_this_user("x", "y", "w" * (MAX_WHY + 1))


def test_a_topic_that_was_made_anew_tells_of_no_old_acts() -> None:
    connection = MemoryConnection()
    connection.create("g", "nyc")
    record_act(connection, "g", "nyc", Act("forget", "nyc/bob"))
    with DataLog(connection, "g", "nyc") as data:
        assert data.epochs.read().claims == []
        assert len(data.epochs.known.acts) == 1
        connection.create("g", "nyc")
        assert data.epochs.read().claims == []
        assert not data.epochs.known.acts
        append(connection, data.epochs.topic, (None, *encode_move(Move("nyc"))))
        assert data.epochs.read().move == Move("nyc")
