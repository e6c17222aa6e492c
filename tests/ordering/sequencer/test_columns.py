"""`step_columns` decides what `step` decides."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.base.errors import ProtocolViolation
from ordering.base.names import Topic, relay_of
from ordering.base.records import LINK_START, Data, Forward, Link, Partition, Source
from ordering.membership.membership import MemberIncarnation, Membership, ReceivedRow
from ordering.membership.settings import Settings
from ordering.sequencer.columns import step_columns
from ordering.sequencer.links import origin_of
from ordering.sequencer.sequencer import step
from ordering.sequencer.state import SequencerState
from tests.ordering.forwards import SENDERS, TOPIC, Log, cut, logs, opened
from tests.ordering.linked import FAR, LAX, LinkedLog
from tests.simulator.columns import step_by_columns, to_columns


@given(logs(max_records=60), st.lists(st.integers(0, 60), max_size=4))
def test_columns_decide_what_rows_decide(log: Log, at: list[int]) -> None:
    """Runs, repeats, gaps, restarts, malformed records and bad addresses, over several batches and partitions."""
    by_rows = by_columns = opened()
    for batch in cut(log, at):
        rows, columns = step(by_rows, batch), step_by_columns(by_columns, batch)
        assert columns == rows
        by_rows, by_columns = rows.state, columns.state


@given(logs(max_records=40, packs=True), st.lists(st.integers(0, 40), max_size=4), st.sampled_from((2, 3)))
def test_columns_decide_packs_as_rows_do(log: Log, at: list[int], of_format: int) -> None:
    by_rows = by_columns = opened(of_format=of_format)
    for batch in cut(log, at):
        rows, columns = step(by_rows, batch), step_by_columns(by_columns, batch)
        assert columns == rows
        by_rows, by_columns = rows.state, columns.state


@st.composite
def states(draw: st.DrawFn) -> SequencerState:
    """Draw a group after some history: closed or not, with members, forgotten senders, and FORWARD that is read
    again.
    """
    rows = st.builds(ReceivedRow, st.integers(1, 3), st.integers(0, 3))
    received = draw(st.dictionaries(st.sampled_from(SENDERS[:3]), rows))
    members = draw(st.lists(st.builds(MemberIncarnation, st.sampled_from(SENDERS[:3]), st.integers(1, 2)), max_size=2))
    incarnations_over = {sender: row.incarnation for sender, row in received.items() if draw(st.booleans())}
    membership = Membership(
        settings=Settings(closed=draw(st.booleans())),
        members=tuple(members),
        incarnations_over=incarnations_over,
        incarnation_floor=draw(st.sampled_from((0, 0, 1, 2))),
    )
    decided = draw(st.dictionaries(st.sampled_from([Partition(TOPIC, n) for n in (0, 2, 10)]), st.integers(0, 10)))
    return replace(
        opened(of_format=draw(st.sampled_from((1, 3)))), received=received, membership=membership, decided=decided
    )


@given(states(), logs(max_records=40, packs=True), st.lists(st.integers(0, 40), max_size=3))
def test_columns_decide_what_rows_decide_from_any_state(state: SequencerState, log: Log, at: list[int]) -> None:
    by_rows = by_columns = state
    for batch in cut(log, at):
        rows, columns = step(by_rows, batch), step_by_columns(by_columns, batch)
        assert columns == rows
        by_rows, by_columns = rows.state, columns.state


@given(st.integers(0, 2**32))
def test_many_senders(seed: int) -> None:
    """A large batch of interleaved senders, a few of them irregular."""
    rng = random.Random(seed)
    next_local: dict[str, int] = {}
    log: Log = []
    for offset in range(300):
        sender = f"s/{rng.randrange(40)}"
        local = next_local[sender] = next_local.get(sender, 0) + 1
        wrong = rng.random() < 0.02
        log.append(Forward(sender, 1, max(1, local + wrong * rng.randint(-2, 2)), b"", Source(TOPIC, 0, offset)))
    assert step_by_columns(opened(), log) == step(opened(), log)


def test_an_empty_batch() -> None:
    assert step_by_columns(opened(), []) == step(opened(), [])


def test_rows_out_of_log_order_are_refused() -> None:
    rows: Log = [Forward("s/a", 1, 1, b"", Source(TOPIC, 0, 1)), Forward("s/a", 1, 2, b"", Source(TOPIC, 0, 0))]
    with pytest.raises(ProtocolViolation, match="not in log order"):
        step_by_columns(opened(), rows)


def test_columns_of_malformed_rows_are_not_read() -> None:
    """Columns of malformed rows may have any values."""
    rows: Log = [Forward("s/a", 1, 1, b"", Source(TOPIC, 0, 0)), Forward("s/a", 1, 2, b"", Source(TOPIC, 0, 1))]
    columns = replace(to_columns(rows), well_formed=np.array([False, True]))
    decided = step_columns(SequencerState("g"), columns)
    assert decided.seqno.tolist() == [0, 0]
    assert decided.state.duplicates == 1


@pytest.mark.slow
@given(st.integers(0, 2**32), st.lists(st.integers(0, 300), max_size=4))
def test_what_links_bring(seed: int, at: list[int]) -> None:
    """Accepted and refused sessions, runs with every kind of DATA in them, and a relay's own records."""
    by_rows = by_columns = opened()
    for batch in cut(LinkedLog(seed).records, at):
        rows, columns = step(by_rows, batch), step_by_columns(by_columns, batch)
        assert columns == rows
        by_rows, by_columns = rows.state, columns.state


@pytest.mark.parametrize("seqno", [10**18, 10**30, -1, 1.0, True, None, "1", [1]])
@pytest.mark.parametrize("where", ["epoch", "seqno", "origins"])
def test_a_wild_beginning_of_a_session_is_none(seqno: object, where: str) -> None:
    """The beginning breaks nothing, and the session's later records do not count."""
    relay, topic = relay_of(FAR), str(Topic("g", "relayed", "s", FAR))
    start = json.dumps({"epoch": 1, "seqno": 0, "origins": {}} | {where: {FAR: seqno} if where == "origins" else seqno})
    log: Log = [
        Forward(relay, 1, 1, start.encode(), Source(topic, 0, 0), kind=LINK_START),
        Forward("far/a", 1, 1, b"x", Source(topic, 0, 1), link=Link(0, 1, 1, 1)),
    ]
    assert step_by_columns(opened(), log) == step(opened(), log)
    after = step_by_columns(opened(), log[:1]).state
    assert after.links == {}
    assert step_by_columns(after, log[1:]).outputs == ()


@pytest.mark.slow
def test_the_logs_of_links_are_worth_their_name() -> None:
    """The first session is taken, a later one refused; messages of both origins are ordered, in their order."""
    ordered = {FAR: 0, LAX: 0}
    refused = dropped = 0
    for seed in range(30):
        log = LinkedLog(seed)
        state, outputs = step(opened(), log.records)
        for site in ordered:
            found = [d for d in outputs if isinstance(d, Data) and d.kind == "message" and origin_of(d.sender) == site]
            own = [record.id for record in log.effective(site)]
            assert [record.id for record in found] == own[: len(found)]
            assert not any(record.payload == b"fenced" for record in found)
            ordered[site] += len(found)
        sessions = {record.source.offset for record in log.records if getattr(record, "kind", "") == LINK_START}
        refused += len(sessions) - len({d.link.session for d in outputs if isinstance(d, Data) and d.link})
        dropped += state.duplicates
    assert min(ordered.values()) > 100
    assert refused
    assert dropped
