"""`abcast send`, `abcast inbox` and `abcast flush`, on a group in memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from connectors.testing import MemoryGroup
from connectors.testing.memory_topics import WRITES
from ordering.base.records import MAX_PAYLOAD_BYTES
from tests.cli.here import abcast_here
from tests.waiting import WAIT

QUIET_IN = "import sys; print('quiet'); sys.exit(int(sys.argv[1]))"


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryGroup]:
    """Yield a group that the commands find."""
    with MemoryGroup("g") as made:
        for command in ("letters", "flush"):
            monkeypatch.setattr(f"jobs.member.{command}.connection_to", lambda *_: made.connection)
        yield made


def send(cwd: Path, receiver: str, text: bytes, *options: str) -> CompletedProcess[str]:
    return abcast_here("send", receiver, "-g", "g", "-m", "alice", *options, cwd=cwd, text=text)


def inbox(cwd: Path, *options: str) -> list[str]:
    """Return the lines that the command prints to bob."""
    done = abcast_here("inbox", "-g", "g", "-m", "local/bob", *options, cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.usefixtures("group")
def test_letters_reach_one_member(tmp_path: Path) -> None:
    """In the order of sending; a printed letter is taken."""
    assert send(tmp_path, "bob", b"one\ntwo\r\n\x1b\n").stdout == "3 letters written to local/bob\n"
    told = json.loads(send(tmp_path, "local/carol", b"not for bob\n", "--json").stdout)
    assert told == {"group": "g", "member": "local/alice", "receiver": "local/carol", "letters": 1}
    assert send(tmp_path, "bob", b"a\nb", "--whole", "--header", "k=v").returncode == 0
    assert inbox(tmp_path, "--count", "2") == ["local/alice\tone", "local/alice\ttwo"]
    escaped, whole = map(json.loads, inbox(tmp_path, "--until-end", "--json"))
    assert (escaped["payload"], whole["payload"], whole["headers"]) == ("\x1b", "a\nb", [["k", "v"]])
    assert (whole["sender"], escaped["local_seqno"] > 0, whole["incarnation"] > escaped["incarnation"]) == (
        "local/alice",
        True,
        True,
    )
    assert inbox(tmp_path, "--until-end") == []
    assert inbox(tmp_path, "--until-end", "--from-beginning")[0] == "local/alice\tone"


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (["send", "a/b/c"], 2, "write SITE/NAME"),
        (["send", "elsewhere/bob"], 1, "abcast.g.inbox.elsewhere"),
        (["send", "bob", "--header", "x"], 2, "--header 'x': write KEY=VALUE."),
        (["send", "bob", "no.file"], 2, "no.file can't be read: No such file"),
        (["inbox", "--until-end", "--timeout", "1"], 2, "--until-end is --timeout 0: give one of them."),
        (["flush", "--timeout", "20", "--", "./no-such-command"], 2, "./no-such-command can't be run: No such file"),
    ],
)
def test_a_mistake(line: list[str], code: int, said: str, tmp_path: Path) -> None:
    done = abcast_here(line[0], "-g", "g", "-m", "alice", *line[1:], cwd=tmp_path, text=b"x\n")
    assert done.returncode == code
    assert said in done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)


@pytest.mark.usefixtures("group")
def test_a_line_that_cant_be_sent(tmp_path: Path) -> None:
    """The lines before it are written, and it is named."""
    done = send(tmp_path, "bob", b"1\n" + b"x" * (MAX_PAYLOAD_BYTES + 1) + b"\n3\n")
    assert (done.returncode, done.stdout) == (2, "")
    counted, reason = done.stderr.splitlines()
    assert counted == "abcast: 1 letter written"
    assert reason.startswith("abcast: line 2: the payload has 1000001 bytes")
    assert inbox(tmp_path, "--until-end") == ["local/alice\t1"]


@pytest.mark.slow
def test_letters_that_kafka_does_not_take(group: MemoryGroup, tmp_path: Path) -> None:
    """The process ends, so nobody goes on sending."""
    group.connection.topics.take_away("abcast.g.inbox.local", WRITES)
    done = send(tmp_path, "bob", b"1\n2\n", "--timeout", "0.2")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("abcast: 0 of 2 letters written within 0.2 s. See whether Kafka runs")
    assert done.stderr.count("\n") == 1


def test_a_flush_without_a_sequencer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MemoryGroup("g") as group:
        monkeypatch.setattr("jobs.member.flush.connection_to", lambda *_: group.connection)
    done = abcast_here("flush", "-g", "g", "-m", "alice", "--timeout", "0.1", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("abcast: the join of local/alice was not ordered within 0.1 s. See whether")


def test_all_members_are_quiet_while_a_command_runs(group: MemoryGroup, tmp_path: Path) -> None:
    """Its exit code is the command's, and its own words go to standard error then. It leaves the group."""
    said = list[str]()
    bob = group.member("bob", block=lambda: said.append("blocked"), unblock=lambda: said.append("unblocked"))
    bob.connect(timeout=WAIT)
    line = ("flush", "-g", "g", "-m", "alice")
    done = abcast_here(*line, "--", sys.executable, "-c", QUIET_IN, "3", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("g was quiet for ")
    assert done.stderr.endswith(": local/bob\n")
    done = abcast_here(*line, "--json", cwd=tmp_path)
    row = json.loads(done.stdout)
    assert (done.returncode, row["group"], row["members"], row["exit_code"]) == (0, "g", ["local/bob"], 0)
    assert said == ["blocked", "unblocked"] * 2
    assert bob.broadcast(b"goes on").result(WAIT)
