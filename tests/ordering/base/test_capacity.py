"""A flood of names ends no group: the sequencer's records fit into Kafka's limit, and earlier members go on."""

from __future__ import annotations

import random
import string
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.base import capacity
from ordering.base.capacity import NO_ROOM, NO_ROOM_FOR_MEMBERS
from ordering.base.names import MAX_MEMBER_NAME_LENGTH, MAX_SITE_LENGTH, Topic
from ordering.base.records import (
    FORGET,
    JOIN,
    MAX_RECORD_BYTES,
    MESSAGE,
    REFUSED,
    VIEW,
    Data,
    DeadLetter,
    Forward,
    Malformed,
    Source,
)
from ordering.membership.forgetting import SenderRow, to_payload
from ordering.membership.membership import MemberIncarnation, Membership, ReceivedRow
from ordering.membership.settings import Settings
from ordering.sequencer.sequencer import begin_batch, end_batch, snapshot, step
from ordering.sequencer.state import SequencerState
from tests.ordering.forwards import cut
from tests.simulator.columns import step_by_columns

TOPIC = str(Topic("g", "forward", "s"))
_LETTERS = string.ascii_letters + string.digits + "_-"


def _name(rng: random.Random, length: int = MAX_MEMBER_NAME_LENGTH, site: str = "s" * MAX_SITE_LENGTH) -> str:
    return f"{site}/{''.join(rng.choices(_LETTERS, k=length))}"


def _sent(sender: str, offset: int, local_seqno: int = 1, kind: str = MESSAGE, payload: bytes = b"x") -> Forward:
    return Forward(sender, 10**17, local_seqno, payload, Source(TOPIC, 0, offset), (), kind, 2 * 10**12)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave room for some twenty senders."""
    monkeypatch.setattr(capacity, "MAX_SENDERS_BYTES", 20 * 36)
    monkeypatch.setattr(capacity, "_SURELY_SENDERS", 3)


@pytest.mark.usefixtures("tiny")
@given(st.integers(0, 2**32), st.lists(st.integers(0, 300), max_size=5))
def test_rows_and_columns_refuse_the_same(seed: int, at: list[int]) -> None:
    """Both forms refuse the same in any batches, and the table stays within its bound."""
    rng = random.Random(seed)
    names, numbers = [_name(rng, rng.randint(1, 9), "s") for _ in range(60)], dict[str, int]()
    log: list[Forward | Malformed] = []
    for offset in range(300):
        sender = rng.choice(names)
        numbers[sender] = numbers.get(sender, 0) + (rng.random() < 0.9)
        log.append(_sent(sender, offset, max(1, numbers[sender])))
    whole = step(SequencerState("g", epoch=1), log)
    by_rows = by_columns = SequencerState("g", epoch=1)
    outputs: list[Data | DeadLetter] = []
    for batch in cut(log, at):
        rows, columns = step(by_rows, batch), step_by_columns(by_columns, batch)
        assert columns == rows
        by_rows, by_columns = rows.state, columns.state
        outputs += rows.outputs
        assert sum(len(sender) + 32 for sender in by_rows.received) <= capacity.MAX_SENDERS_BYTES
    assert tuple(outputs) == whole.outputs
    dead = [each.reason for each in outputs if isinstance(each, DeadLetter)]
    assert set(dead) == {NO_ROOM}


@pytest.mark.usefixtures("tiny")
def test_who_is_known_goes_on_and_forgetting_makes_room() -> None:
    flood: list[Forward | Malformed] = [_sent(f"s/{number:02}", number) for number in range(30)]
    state, outputs = step(SequencerState("g", epoch=1), flood)
    taken = [each.sender for each in outputs if isinstance(each, Data)]
    assert taken == [f"s/{number:02}" for number in range(20)]
    forget = to_payload(SenderRow(f"s/{number:02}", 10**17, 1) for number in (3, 4, 5))
    admin = _sent("s/abcast.admin", 40, 1, FORGET, forget)
    state, outputs = step(state, [admin, _sent("s/00", 41, 2), replace(_sent("s/29", 42), incarnation=10**17 + 1)])
    assert [each.kind for each in outputs if isinstance(each, Data)] == [FORGET, MESSAGE, MESSAGE]
    assert "s/03" not in state.received
    _, outputs = step(state, [replace(_sent("s/28", 43), incarnation=10**17 + 1)])
    assert outputs == (DeadLetter(Source(TOPIC, 0, 43), NO_ROOM),), "the operator's own row counts, too"


@pytest.mark.slow
def test_a_snapshot_fits_into_a_record() -> None:
    """A full table with the longest names, and as many members as the limit allows: each record fits."""
    rng = random.Random(1)
    received = {
        _name(rng): ReceivedRow(rng.randrange(10**17, 10**18), rng.randrange(10**17, 10**18)) for _ in range(37_000)
    }
    state = SequencerState("g", epoch=1, received=received, membership=Membership(settings=Settings()))
    flood: list[Forward | Malformed] = [_sent(_name(rng), offset, kind=JOIN) for offset in range(8_000)]
    written: list[Data] = []
    state, opening = begin_batch(state)
    state, outputs = step(state, flood)
    state, closing = end_batch(state)
    written = [each for each in (*opening, *outputs, *closing, snapshot(state)) if isinstance(each, Data)]
    dead = [each for each in outputs if isinstance(each, DeadLetter)]
    assert {each.reason for each in dead} == {NO_ROOM}
    [view] = [each for each in written if each.kind == VIEW]
    assert max(len(each.payload) for each in written) < MAX_RECORD_BYTES - 100_000
    state, outputs = step(state, [_sent(next(iter(received)), 9_000)])
    assert SequencerState.from_bytes(snapshot(state).payload).membership.members == state.membership.members
    assert len(state.membership.members) > 1_000
    assert view.seqno > 0


@pytest.mark.slow
def test_a_join_is_refused_where_a_view_would_not_fit() -> None:
    rng = random.Random(2)
    members = tuple(MemberIncarnation(_name(rng), 1) for _ in range(5_431))
    state = SequencerState("g", epoch=1, membership=Membership(members=members))
    log = [_sent(_name(rng), offset, kind=JOIN) for offset in range(100)]
    _, outputs = step(state, log)
    refused = [each for each in outputs if isinstance(each, Data) and each.kind == REFUSED]
    assert 0 < len(refused) < 100
    assert NO_ROOM_FOR_MEMBERS.encode() in refused[-1].payload
