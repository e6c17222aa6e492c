"""JSON whose bytes depend on the value alone: equal values are equal bytes, in every process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def canonical_json(body: Mapping[str, Any]) -> bytes:
    """The object in ASCII, without blanks, the keys sorted."""
    return json.dumps(body, separators=(",", ":"), sort_keys=True).encode("ascii")
