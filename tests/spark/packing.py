"""Headers as `connectors.spark.forward_rows` packs them, without the JVM."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence


def packed(headers: Sequence[tuple[str, bytes | None]]) -> str | None:
    """Null for none."""
    if not headers:
        return None
    values = ({"value": b64encode(value).decode()} if value is not None else {} for _, value in headers)
    return json.dumps([{"key": name, **value} for (name, _), value in zip(headers, values, strict=True)])
