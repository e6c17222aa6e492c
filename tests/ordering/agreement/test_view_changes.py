"""Entries tell their site's state byte for byte."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.kafka.codec.entry_codec import read_entry, write_entry
from ordering.agreement.codec import decode, encode, plain_of
from ordering.agreement.formation import ProcessIncarnation
from ordering.agreement.log import Entry, LogRow, OrderedRun, OwnEntry, Range, SiteMessage, ranges_of, run_of
from ordering.agreement.site_state import SiteState, changes, first_state, state_of, stated
from ordering.base.errors import ProtocolViolation
from ordering.base.formats import ADDITIONS
from ordering.base.records import ENTRY, MAX_NUMBER, Data
from ordering.sequencer.state import SequencerState

NAMES = st.sampled_from(("n", "e", "lax", "la", "007", "s-00", "a0b10", "true", "abcast", "known"))
NUMBERS = st.one_of(st.integers(0, 12), st.integers(0, MAX_NUMBER))
STARTS = NUMBERS.map(lambda number: min(number, MAX_NUMBER - 3))
"""Starts that leave room for a range of three records."""
STATES = st.recursive(
    st.one_of(NUMBERS, NAMES, st.text(), st.booleans(), st.none()), lambda each: st.lists(each, max_size=5)
)


def with_state(number: int, state: bytes, **fields: object) -> Entry:
    two = {"written": 2, "readable_from": 2, "version": ADDITIONS.version, "base": 1}
    return Entry(7, 1, number, state=state)._replace(**{**two, **fields})  # type: ignore[arg-type]


@given(st.lists(STATES, min_size=2, max_size=5))
def test_any_state_behind_any(values: list[object]) -> None:
    """Only the reading site counts: it restores the same state from any base."""
    texts = [json.dumps(value).encode() for value in values]
    whole = stated(first_state("g", "lax", ("lax", "nyc")))
    steps = [*texts, whole]
    entries = [with_state(1, texts[0], snapshot=SequencerState("g").to_bytes())]
    entries += [with_state(n, changes(*pair)) for n, pair in enumerate(pairwise(steps), 2)]
    assert stated(state_of(entries)) == whole


@given(NUMBERS, NUMBERS, NUMBERS)
def test_where_only_numbers_are_others_it_is_short(number: int, position: int, complete: int) -> None:
    first = replace(first_state("g7", "s0", ("s0", "s00")), number=3, position=11)
    second = replace(first, number=number, position=position, complete=complete)
    assert len(changes(stated(first), stated(second))) < 60


@given(
    st.lists(NAMES, min_size=2, max_size=4, unique=True), STARTS, st.lists(NUMBERS, min_size=5, max_size=5), st.binary()
)
def test_an_entry_is_read_as_it_was_written(names: list[str], start: int, numbers: list[int], raw: bytes) -> None:
    a, b, *_ = names
    part = Range(f"abcast.{b}.forward.{a}-0", start, start + 3)
    run = run_of((part,), ADDITIONS.number)
    entry = with_state(numbers[0], raw).__class__(
        0,
        numbers[1],
        numbers[0],
        (SiteMessage((a, b), "send", plain_of((1, run))), SiteMessage((), a, '"\\n ~')),
        (OrderedRun(numbers[2], ProcessIncarnation(a), run, (b,)),),
        raw,
        numbers[3],
        before=raw[:8],
        logs=(LogRow(b, 1, 2, numbers[4], raw[:8]),),
        written=2,
        readable_from=2,
        version=ADDITIONS.version,
        trail=(OwnEntry(1, raw[:8]),),
    )
    record = write_entry(entry)
    assert read_entry(record) == entry
    assert ranges_of(run) == (part,)
    assert read_entry(record).digest == entry.digest


@given(st.binary(), st.binary())
def test_anything_else_breaks_the_protocol(junk: bytes, state: bytes) -> None:
    """Other bytes raise ProtocolViolation, and no other error."""
    for payload in (junk, b"\x02" + junk):
        with pytest.raises(ProtocolViolation):
            read_entry(Data(ENTRY, 1, local_seqno=1, payload=payload))
    first = with_state(1, stated(first_state("g", "lax", ("lax",))), snapshot=b"x")
    with pytest.raises(ProtocolViolation):
        state_of([first, with_state(2, state)])


@pytest.mark.parametrize("reference", [b"", b"a 1", b"a 1 2 b", b"a x 2", b"a 1 2\xff", b"a 2 1", b"a 1 2 a 2 3"])
def test_what_is_no_run(reference: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        ranges_of(run_of((), ADDITIONS.number)._replace(reference=reference, length=1))


@given(st.binary())
def test_bytes_as_text(raw: bytes) -> None:
    assert decode(OwnEntry, encode(OwnEntry(1, raw), as_text=True)) == OwnEntry(1, raw)
    assert decode(SiteState, encode(first_state("g", "lax", ("lax",)))).number == 0
