"""Members on the real job: views, the commands that show them, the table, and members that all die at once."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from deltalake import DeltaTable

from connectors import Member
from tests.cli.conftest import SITE, Pipeline
from tests.cli.process import ROOT

pytestmark = [pytest.mark.long, pytest.mark.broker, pytest.mark.timeout(400)]

PROGRAM = (
    "import sys, time; from connectors import Member\n"
    "members = [Member(sys.argv[1], f'{sys.argv[2]}/m{n}', bootstrap_servers=sys.argv[3]) for n in range(3)]\n"
    "[member.connect(timeout=150) for member in members]; print('in', flush=True); time.sleep(120)\n"
)


def test_views_from_the_join_to_the_table(pipeline: Pipeline) -> None:
    """A view is in the order, in `abcast view`, in `deliver --events`, in the table, and the checker is content."""
    group = pipeline.new_group("--partitions", "2", "--flush")
    with (
        Member(group, f"{SITE}/a", connection=pipeline.connection) as a,
        Member(group, f"{SITE}/b", connection=pipeline.connection) as b,
    ):
        a.connect(timeout=150)
        view = b.connect(timeout=150)
        assert view.members == (f"{SITE}/a", f"{SITE}/b")
        a.broadcast(b"hello").result(150)
        [shown] = pipeline.json_lines("view", "--group", group)
        assert (shown["view_id"], shown["members"]) == (view.view_id, list(view.members))
        assert shown["settings"]["flush"]
        with a.flush(30):
            pass
        for member in (a, b):
            member.close(150)  # LEAVE is ordered late on a slow machine
    lines = pipeline.json_lines(
        "deliver", "--group", group, "--member", f"{SITE}/c", "--from-seqno", "1", "--timeout", "2", "--events"
    )
    told = [line.get("event", line.get("payload")) for line in lines]
    assert told[:6] == ["view", "block", "view", "unblock", "hello", "block"]
    pipeline.await_ledger(group, lines[-1]["seqno"])
    table = DeltaTable(str(pipeline.data / "views")).to_pyarrow_table().to_pylist()
    views = {row["view_id"]: (row["seqno"], row["members"]) for row in table if row["group_name"] == group}
    assert views[view.view_id] == (view.seqno, list(view.members))
    checked = pipeline.abcast("check", "--group", group, "--site", SITE)
    assert checked.returncode == 0, checked.stdout


def test_when_all_members_die_the_view_empties(pipeline: Pipeline) -> None:
    """No member writes any more, and the log's clock goes on all the same: the job ticks."""
    group = pipeline.new_group("--partitions", "3", "--suspect-after-ms", "8000")
    victim = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, group, SITE, pipeline.connection.bootstrap_servers],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "in\n"
        [shown] = pipeline.json_lines("view", "--group", group)
        assert shown["members"] == [f"{SITE}/m{number}" for number in range(3)]
    finally:
        victim.kill()
        victim.wait()
    deadline = time.monotonic() + 60
    while pipeline.json_lines("view", "--group", group)[0]["members"]:
        assert time.monotonic() < deadline
        time.sleep(0.5)
