"""`abcast.testing`: its documentation's examples work, and it needs no more than `Member`."""

from __future__ import annotations

import doctest
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import abcast.testing
import pytest
from abcast import Member, UsageError
from abcast.testing import MemoryGroup
from kafka.structs import TopicPartition

from connectors.takeover.same_forward import InputLost
from ordering.base.names import Topic
from tests.papers import doc, fences
from tests.waiting import WAIT, eventually


def test_the_example() -> None:
    done = doctest.testmod(abcast.testing)
    assert done.attempted >= 3
    assert done.failed == 0


def test_the_page() -> None:
    """The test that docs/testing.md shows passes."""
    [code] = fences(doc("testing"), "python")
    shown: dict[str, Any] = {}
    exec(code, shown)
    shown["test_everybody_sees_the_order"]()


def test_members_are_closed_at_the_end() -> None:
    with MemoryGroup("orders", "sfo", partitions=2) as group:
        alice, bob = group.member("alice"), group.member("bob", max_pending_records=1)
        assert alice.connect(timeout=WAIT).members == ("sfo/alice",)
        bob.close()
        carol = Member("orders", "sfo/carol", connection=group.connection)  # the application's own
        carol.close()
    with pytest.raises(UsageError, match="closed"):
        alice.broadcast(b"x")


def test_what_ends_the_sequencer_ends_the_test() -> None:
    group, others = MemoryGroup(), set(threading.enumerate())

    def lose_a_record() -> None:
        topics, forward = group.connection.topics, str(Topic(group.name, "forward", group.site))
        with group:
            with topics.changed:  # retention drops a record before it is read
                unread = topics.append(TopicPartition(forward, 0), b"alice", b"unread", [])
                topics.drop(forward, unread.offset + 1)
            eventually(lambda: set(threading.enumerate()) <= others)

    with pytest.raises(InputLost):
        lose_a_record()


@pytest.mark.slow
def test_it_needs_no_spark() -> None:
    """An application that installs no more than `Member` needs can test with it."""
    script = "import sys, abcast.testing; print(*{name.split('.')[0] for name in sys.modules})"
    root = Path(__file__).parents[2]
    said = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True).stdout
    assert "kafka" in said.split()
    assert not {"pyspark", "py4j", "pandas", "pyarrow", "deltalake", "delta", "typer"} & set(said.split())
