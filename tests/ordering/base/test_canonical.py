"""Canonical JSON."""

from __future__ import annotations

from ordering.base.canonical import canonical_json


def test_equal_objects_are_equal_bytes() -> None:
    """In whatever order their keys were set, and in ASCII, as a header must be."""
    assert canonical_json({"b": 1, "a": [1, "ü"]}) == canonical_json({"a": [1, "ü"], "b": 1})
    assert canonical_json({"a": [1, "ü"], "b": 1}) == b'{"a":[1,"\\u00fc"],"b":1}'
