"""Canonical JSON."""

from __future__ import annotations

from ordering.base.canonical import canonical_json


def test_equal_objects_are_equal_bytes() -> None:
    """The order in which keys were set does not matter; the text is ASCII, as a header must be."""
    assert canonical_json({"b": 1, "a": [1, "ü"]}) == canonical_json({"a": [1, "ü"], "b": 1})
    assert canonical_json({"a": [1, "ü"], "b": 1}) == b'{"a":[1,"\\u00fc"],"b":1}'
