"""A line that `abcast publish` reads is a message: without its line end, and with everything else."""

from __future__ import annotations

import io

from connectors.testing import MemoryGroup
from jobs.publish import _Published


def test_only_the_end_of_a_line_is_left_out() -> None:
    with MemoryGroup("g") as group:
        member = group.member("alice")
        _Published(10).publish(member, io.BytesIO(b"a\r\r\nb \t\r\n\r\n\nc\r"))
        stream = member.deliveries(1, timeout=10)
        assert [next(stream).payload for _ in range(5)] == [b"a\r", b"b \t", b"", b"", b"c"]
