"""A cut as bytes: a joiner reads the supplier's cut, and refuses anything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from connectors.client.deliveries.cut import Cut, packed, unpacked
from ordering.base.errors import ProtocolViolation
from ordering.casts.causal import CausalState
from ordering.casts.fifo import FifoState
from ordering.casts.merging import MergedState
from ordering.membership.membership import MemberIncarnation, ReceivedRow

NUMBERS = st.integers(0, 10**15)
NAMES = st.sampled_from(["abcast.g.cast.nyc", "abcast.g.cast.sfo"])
LIVES = st.builds(MemberIncarnation, st.sampled_from(["nyc/a", "nyc/b", "sfo/c"]), st.integers(1, 10**15))


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    members = tuple(draw(st.lists(LIVES, unique=True, max_size=3)))
    vector = tuple(draw(NUMBERS) for _ in members)
    causal = CausalState(draw(NUMBERS), members, vector, draw(NUMBERS), vector)
    received = draw(st.dictionaries(st.sampled_from(["nyc/a", "nyc/b"]), st.builds(ReceivedRow, NUMBERS, NUMBERS)))
    offsets = draw(st.dictionaries(st.builds(TopicPartition, NAMES, st.integers(0, 9)), NUMBERS))
    return Cut(MergedState(causal, FifoState(received, draw(NUMBERS)), draw(st.booleans())), offsets, "kafka 1")


@given(cut=cuts(), state=st.binary(max_size=100))
def test_round_trip(cut: Cut, state: bytes) -> None:
    assert unpacked(packed(cut, state)) == (cut, state)


@pytest.mark.parametrize("raw", [b"", b"\0\0\0\2{}", b"\0\0\0\2[]", b"\xff" * 9, b'\0\0\0\x0c{"format":2}'])
def test_what_is_no_cut(raw: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="not a cut"):
        unpacked(raw)
