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
from ordering.agreement.log import (
    Entry,
    LogRow,
    OrderedRun,
    OwnEntry,
    Range,
    SiteMessage,
    ranges_of,
    read_letter,
    run_of,
)
from ordering.agreement.site_state import SiteState, first_state, state_of, stated
from ordering.base.canonical import changes
from ordering.base.errors import LaterVersion, ProtocolViolation
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


WRITTEN = with_state(
    2,
    changes(stated(first_state("g", "lax", ("lax", "nyc"))), stated(first_state("g", "lax", ("lax", "sfo")))),
    before=b"12345678",
    letters=(SiteMessage(("nyc",), "send", plain_of((1, run_of((Range("abcast.g.forward.lax-0", 3, 9),), 2)))),),
    logs=(LogRow("nyc", 1, 2, 3, b"87654321"),),
)


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


def test_a_large_state_is_told_by_its_changes_too() -> None:
    """Deflate looks back over 32 KiB; the state is larger."""
    first = first_state("g", "s0", ("s0", *(f"site-{number:04}" for number in range(200))))
    second = replace(first, number=123, position=456, complete=7)
    before, after = stated(first), stated(second)
    assert len(before) > 64 * 1024
    assert len(changes(before, after)) < 1000
    assert len(changes(before, after[: len(after) // 2] + b"1234567890" * 100 + after[len(after) // 2 :])) < 1500
    base = with_state(1, before, snapshot=SequencerState("g").to_bytes())
    assert stated(state_of([base, with_state(2, changes(before, after))])) == after


@pytest.mark.parametrize("cut", [slice(0, -1), slice(0, 10)])
def test_changes_that_are_cut_off(cut: slice) -> None:
    before, after = stated(first_state("g", "lax", ("lax", "nyc"))), stated(first_state("g", "lax", ("lax", "sfo")))
    for raw in (changes(before, after)[cut], changes(before, after) * 2):
        with pytest.raises(ProtocolViolation):
            state_of([with_state(1, before, snapshot=b"x"), with_state(2, raw)])


def test_an_entry_of_format_2_stays_readable() -> None:
    """This version wrote these bytes, and later ones read them."""
    payload = bytes.fromhex(
        "028b36d701450ec82b7995c928918270433adc0d3989154057182b5882a3051c31603718425c526768646c626a"
        "666e017611c840b0e9c640190b7333531363234398430c505d120b008bc60822434b2363731353534b53236323"
        "33730bf4202a4ecb1f1a41047528c5410400"
    )
    assert read_entry(Data(ENTRY, 1, local_seqno=2, payload=payload)) == WRITTEN


@pytest.mark.parametrize("form", [b"\x03", b"\x1e"])
def test_an_entry_of_another_form_is_of_a_later_version(form: bytes) -> None:
    with pytest.raises(LaterVersion):
        read_entry(Data(ENTRY, 1, local_seqno=1, payload=form + b"anything"))


@pytest.mark.parametrize("form", [b"", b"\x00", b"\x01", b"\x1f", b" ", b"n", b"{", b"\xff"])
def test_any_other_byte_begins_no_entry(form: bytes) -> None:
    with pytest.raises(ProtocolViolation) as raised:
        read_entry(Data(ENTRY, 1, local_seqno=1, payload=form + b"anything" if form else b""))
    assert not isinstance(raised.value, LaterVersion)


def test_a_letter_of_another_encoding_is_none() -> None:
    with pytest.raises(ProtocolViolation):
        read_letter(SiteMessage(("lax",), "known", "\ud800"))


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
