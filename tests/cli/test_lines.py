"""Lines that `abcast publish` reads, and the ones that `abcast deliver` prints: which messages, and with what."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from connectors.testing import MemoryGroup
from tests.cli.here import abcast_here


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryGroup]:
    """Yield a group that the two commands find."""
    with MemoryGroup("g") as made:
        for command in ("publish", "deliver"):
            monkeypatch.setattr(f"jobs.{command}.connection_to", lambda *_: made.connection)
        yield made


def payloads(group: MemoryGroup, count: int) -> list[bytes]:
    stream = group.member("reader").deliveries(1, timeout=10)
    return [next(stream).payload for _ in range(count)]


def publish(cwd: Path, text: bytes, *options: str, member: str = "alice") -> CompletedProcess[str]:
    return abcast_here("publish", "-g", "g", "-m", member, *options, cwd=cwd, text=text)


def deliver(cwd: Path, *options: str, **variables: str) -> CompletedProcess[str]:
    return abcast_here("deliver", "-g", "g", "-m", "bob", "--json", *options, cwd=cwd, variables=variables)


def test_only_the_end_of_a_line_is_left_out(group: MemoryGroup, tmp_path: Path) -> None:
    publish(tmp_path, b"a\r\r\nb \t\r\n\r\n\nc\r")
    assert payloads(group, 5) == [b"a\r", b"b \t", b"", b"", b"c"]


def test_the_whole_input_is_a_message(group: MemoryGroup, tmp_path: Path) -> None:
    """Line ends are a part of it. Each message has the headers."""
    done = publish(tmp_path, b"a\r\n\xff\n", "--whole", "--header", "kind=x=y", "--header", "kind=")
    assert done.stdout == "1 message ordered, last seqno 1\n"
    assert payloads(group, 1) == [b"a\r\n\xff\n"]
    assert json.loads(deliver(tmp_path, "--count", "1").stdout)["headers"] == [["kind", "x=y"], ["kind", ""]]


def test_an_empty_input_is_a_message(group: MemoryGroup, tmp_path: Path) -> None:
    assert publish(tmp_path, b"", "--whole").stdout == "1 message ordered, last seqno 1\n"
    assert payloads(group, 1) == [b""]


def test_a_mistake_opens_no_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command would try to connect to a Kafka that is not there."""
    monkeypatch.setattr("connectors.Member", None)
    assert publish(tmp_path, b"x\n", "--header", "abcast=1").returncode == 2
    assert publish(tmp_path, b"x" * 1_000_001, "--whole").returncode == 2


@pytest.mark.slow
@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("error::FutureWarning")
def test_some_messages_are_printed(tmp_path: Path) -> None:
    """The others are taken, too. The command ends behind the messages that are there."""
    publish(tmp_path, b"buy 1\nsell 2\n", member="alice")
    publish(tmp_path, b"buy 3\nbuy 4\n", member="local/carol")

    def seqnos(*options: str, **variables: str) -> list[int]:
        done = deliver(tmp_path, *options, **variables)
        assert (done.returncode, done.stderr) == (0, "")
        return [json.loads(line)["seqno"] for line in done.stdout.splitlines()]

    from_the_first = ("--from-seqno", "1", "--until-end")
    assert seqnos(*from_the_first, "--sender", "carol") == [3, 4]
    assert seqnos(*from_the_first, "--grep", "^buy [14]$") == [1, 4]
    assert seqnos(*from_the_first, "--sender", "alice", "--sender", "carol", "--grep", "[23]") == [2, 3]
    assert seqnos(*from_the_first, "--sender", "carol", "--count", "1") == [3]
    assert seqnos(*from_the_first, "--member", "local/bob", "--sender", "carol", ABCAST_SITE="elsewhere") == [3, 4]
    assert seqnos(*from_the_first, "--grep", "[[2] ") == []  # Python would warn of it
    assert seqnos("--until-end", "--sender", "nobody") == []
    assert seqnos("--until-end") == []  # it has taken them


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["deliver", "--grep", "("], "--grep '(' is no regular expression: "),
        (["deliver", "--grep", "a{99999999999}"], "is no regular expression: the repetition number is too large."),
        (["deliver", "--grep", "(" * 3_000 + ")" * 3_000], "is no regular expression: maximum recursion depth"),
        (["deliver", "--sender", "a/b/c"], "write SITE/NAME"),
        (["deliver", "--until-end", "--timeout", "3"], "--until-end is --timeout 0: give one of them."),
        (["publish", "--header", "=x"], "--header '=x': write KEY=VALUE."),
        (["publish", "--header", "abcast-x=1"], "abcast: header 'abcast-x': names"),
        (["publish", "--whole", "/dev/zero"], "abcast: the input has more than 1,000,000 bytes"),
    ],
)
@pytest.mark.usefixtures("group")
def test_a_choice_that_is_none(line: list[str], said: str, tmp_path: Path) -> None:
    done = abcast_here(*line, "-g", "g", "-m", "a", cwd=tmp_path, text=b"x\n")
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
