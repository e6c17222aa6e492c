"""Canonical JSON, and changes of a text."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.base.canonical import canonical_json, changed, changes

BEFORE = random.Random(7).randbytes(100_000)


def test_equal_objects_are_equal_bytes() -> None:
    """The order in which keys were set does not matter; the text is ASCII, as a header must be."""
    assert canonical_json({"b": 1, "a": [1, "ü"]}) == canonical_json({"a": [1, "ü"], "b": 1})
    assert canonical_json({"a": [1, "ü"], "b": 1}) == b'{"a":[1,"\\u00fc"],"b":1}'


@given(st.integers(0, len(BEFORE)), st.integers(0, 5000), st.binary(max_size=5000))
def test_changes_of_a_large_text_are_short(at: int, removed: int, added: bytes) -> None:
    """Deflate alone looks back over 32 KiB: it would repeat most of the text."""
    after = BEFORE[:at] + added + BEFORE[at + removed :]
    told = changes(BEFORE, after)
    assert changed(BEFORE, told, len(after)) == after
    assert len(told) < 2000 + len(added)


@given(st.binary(), st.binary(), st.binary())
def test_other_bytes_are_no_changes(before: bytes, after: bytes, junk: bytes) -> None:
    told = changes(before, after)
    for raw in (told[:-1], told + junk[:1] * 5, b""):
        if raw != told:
            with pytest.raises(ValueError, match=r"."):
                changed(before, raw, 1 << 20)


def test_a_bomb_ends_at_its_limit() -> None:
    with pytest.raises(ValueError, match="over 50000 bytes"):
        changed(b"", changes(b"", bytes(100_000)), 50_000)
