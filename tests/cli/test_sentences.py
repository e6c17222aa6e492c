"""Sentences of commands: while they wait, at errors, and on a terminal of 80 columns. All in this process."""

from __future__ import annotations

import io
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from kafka.structs import TopicPartition
from rich.console import Console
from rich.progress import Progress as Bars

from connectors.diagnosis.statuses import Statuses
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sites import Sites
from connectors.kafka.log.acts import Act
from connectors.kafka.topics.senders import Forgotten, RememberedSender
from connectors.relay import joining
from connectors.testing.memory_kafka import MemoryConnection
from jobs.demo.verdict import say
from jobs.inspection import status
from jobs.publish import _Published
from jobs.terminal import interruption, progress, streaming
from jobs.terminal.options import connection_to
from jobs.terminal.progress import Progress
from jobs.terminal.rows import show_sentence, show_table
from ordering.base.errors import BrokerUnreachable, UsageError, counted
from ordering.base.names import BY_RELAYS, ROLES
from tests.cli.here import abcast_here, as_it_was
from tests.cli.process import abcast
from tests.ledger.test_sql import write_tables
from tests.waiting import eventually


class Terminal(io.StringIO):
    """A terminal that keeps its output."""

    def isatty(self) -> bool:
        return True


@contextmanager
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """Make standard error a terminal in the block. (In a fixture, pytest would take it away again.)"""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    with redirect_stderr(Terminal()) as terminal:
        yield terminal


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["status", "--site", "a b"], "site name 'a b' can't be used"),
        (["query", "SELECT * FROM nosuch"], "there is no table nosuch: there are ledger, views, "),
        (["doctor", "--bootstrap-servers", "127.0.0.1:1"], "refused. `abcast broker start` starts one here; ABCAST_B"),
        (["doctor", "--bootstrap-servers", "no.such.host.invalid:1"], ". ABCAST_BOOTSTRAP_SERVERS names another\n"),
        (["broker", "status", "--dir", "sites.toml"], "sites.toml/cluster.json can't be read (Not a directory): "),
        (["demo", "--sites", "nyc", "--data", "/proc/x"], "give two different names or more"),
        (["check", "-g", "g", "--sites", "nosuch"], "the sites' file nosuch can't be read: No such file or directory."),
    ],
)
def test_a_mistake(run: Callable[[list[str]], str], arguments: list[str], said: str) -> None:
    """The sentence is complete, and names the valid choices."""
    assert said in run(arguments)


def test_one_is_no_plural() -> None:
    assert [counted(count, "message") for count in (0, 1, 2)] == ["0 messages", "1 message", "2 messages"]
    assert [counted(count, "copy", "copies") for count in (1, 2)] == ["1 copy", "2 copies"]


class TestJoining:
    """`site add` with a group's name that is wrong makes no topics."""

    SITES = Sites("mesh", None, "micro-batch", {"a": Connection("a:1"), "b": Connection("b:1")}, frozenset())

    @pytest.fixture
    def found(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        """The groups at each site, or the reason why they are unknown."""
        found: dict[str, Any] = {"a": ["g"], "b": ["new"]}

        def find(_connection: Connection, site: str) -> list[str]:
            if isinstance(found[site], Exception):
                raise found[site]
            return cast("list[str]", found[site])

        monkeypatch.setattr(joining, "find_groups", find)
        return found

    @pytest.mark.usefixtures("found")
    def test_the_others_have_it(self) -> None:
        joining.check_has_begun(self.SITES, "g", "b")

    @pytest.mark.usefixtures("found")
    @pytest.mark.parametrize("group", ["gg", "new"])
    def test_nobody_else_has_it(self, group: str) -> None:
        with pytest.raises(UsageError, match=f"no other site has a group '{group}'"):
            joining.check_has_begun(self.SITES, group, "b")

    def test_who_does_not_answer_may_have_it(self, found: dict[str, Any]) -> None:
        found["a"] = BrokerUnreachable("nobody answers.")
        joining.check_has_begun(self.SITES, "gg", "b")


class TestWaiting:
    """A command that waits for a broker says so."""

    @pytest.mark.slow
    def test_a_client_says_for_what_it_waits(self) -> None:
        waited_for: list[str] = []

        def waiting(what: str) -> AbstractContextManager[object]:
            waited_for.append(what)
            return nullcontext()

        nowhere = Connection("127.0.0.1:1", timeout=0.1, waiting=waiting)
        ways: list[Callable[[], object]] = [
            nowhere.consumer,
            nowhere.producer,
            nowhere.cluster_id,
            lambda: nowhere.metadata_client().partitions_of("topic"),
        ]
        for way in ways:
            with pytest.raises(BrokerUnreachable):
                way()
        assert waited_for == ["waiting for Kafka at 127.0.0.1:1"] * len(ways)

    def test_commands_show_it(self) -> None:
        """The command's own thread shows it; other threads only wait."""
        waiting = connection_to("127.0.0.1:1", None, "test").waiting
        kinds = [type(waiting("x"))]
        other = threading.Thread(target=lambda: kinds.append(type(waiting("x"))))
        other.start()
        other.join(60)
        assert kinds == [Progress, nullcontext]

    @pytest.mark.slow
    def test_what_is_within_has_the_line_once_it_takes_a_while(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(progress, "SHOWN_AFTER_S", 0.3)
        with on_terminal(monkeypatch) as terminal, Progress("looking"):
            with Progress("for a moment"):
                pass
            eventually(lambda: "looking" in terminal.getvalue())
            with Progress("waiting"):
                eventually(lambda: "waiting" in terminal.getvalue())
        assert "for a moment" not in terminal.getvalue()
        assert "0/s" not in terminal.getvalue()


class TestPublish:
    @pytest.fixture
    def published(self) -> _Published:
        return _Published(timeout=1)

    def test_what_it_says(self, published: _Published) -> None:
        assert (str(published), published.is_waiting) == ("nothing was sent", False)
        published.sent = 1
        assert (str(published), published.is_waiting) == ("0 of 1 message ordered", True)
        published.ordered, published.last_seqno = 1, 7
        assert (str(published), published.is_waiting) == ("1 message ordered, last seqno 7", False)
        published.sent = 3
        assert (str(published), published.is_waiting) == ("1 of 3 messages ordered, last seqno 7", True)


class TestStatus:
    def test_a_sentence_fits_the_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its lines end between words. A program gets one line."""
        monkeypatch.setenv("COLUMNS", "80")
        text = "orders: engine spark, pid 21369 on host vm, epoch 1, since 2026-11-23 08:06:52 UTC"
        shown, piped = Terminal(), io.StringIO()
        show_sentence(text, shown)
        show_sentence(text, piped)
        assert piped.getvalue() == text + "\n"
        assert shown.getvalue().splitlines() == [text[: text.rindex(" ")], "  UTC"]

    def test_watch_goes_on_when_the_broker_is_away(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The command says so, shows the last answer, and looks again; Ctrl-C ends it."""
        answers: list[Any] = [BrokerUnreachable("nobody answers."), Statuses([])]
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) > len(answers):
                raise KeyboardInterrupt

        def read() -> Statuses:
            answer = answers[len(pauses) - 1]
            if isinstance(answer, Exception):
                raise answer
            return cast("Statuses", answer)

        monkeypatch.setattr(status, "time", type("Clock", (), {"sleep": staticmethod(pause)}))
        with on_terminal(monkeypatch) as terminal:
            show = partial(status._refresh, site="local", as_json=False)
            assert status._watch(read, Statuses([]), show, lambda _: False) == Statuses([])
        assert len(pauses) == 3
        assert capsys.readouterr().out.count("no groups at site local") == 3
        assert terminal.getvalue() == "abcast: nobody answers.\n\n"


class TestTerminals:
    def test_what_happens_stands_above_the_bars(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Events go to the console that draws the bars, or the bars would overwrite them."""
        shown = Terminal()
        console = Console(file=shown, force_terminal=True, width=80)
        monkeypatch.setattr("rich.get_console", lambda: console)
        with Bars(console=console) as bars:
            bars.add_task("local/a delivers", total=2)
            say("kill -9 to the sequencer; another one is started [now] :bomb: …")
            bars.refresh()
        assert "● kill -9 to the sequencer; another one is started [now] :bomb: …\n" in shown.getvalue()

    def test_a_reason_is_whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        shown = Terminal()
        row = ("2026-11-25 17:36:12", "local/alice", "a long reason that is not to be cut, as it says what to do " * 2)
        show_table(("time", "sender", "reason"), [row], shown, is_folded=True)
        lines = re.sub(r"\x1b\[[\d;]*m", "", shown.getvalue()).splitlines()
        assert "…" not in shown.getvalue()
        assert max(map(len, lines)) <= 80
        assert "".join(row[2].split()) in "".join("".join(line[35:] for line in lines).split())

    @pytest.mark.slow
    def test_what_its_encoding_lacks(self, tmp_path: Path) -> None:
        """A character that the encoding lacks is written as Python escapes it."""
        variables = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
        done = abcast(
            "query", "SELECT chr(252) || chr(8230)", "--data", write_tables(tmp_path), cwd=tmp_path, variables=variables
        )
        assert (done.returncode, "\\xfc\\u2026" in done.stdout) == (0, True), done


class TestCtrlC:
    def test_while_spark_starts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The signal is answered at once, in one line, although Spark can only be stopped once it has started."""
        monkeypatch.setattr(interruption, "_now", interruption._Now())
        said: list[bytes] = []
        monkeypatch.setattr("jobs.terminal.interruption.os.write", lambda _descriptor, text: said.append(text))
        stopped: list[bool] = []
        seen: list[bytes] = []

        class Session:
            def stop(self) -> None:
                stopped.append(True)

        def build(*_: object, **__: object) -> Session:
            signal.raise_signal(signal.SIGINT)
            seen.extend(said)
            return Session()

        monkeypatch.setattr("connectors.spark.session.build_session", build)
        with as_it_was(sys.stderr):
            with pytest.raises(KeyboardInterrupt):
                streaming.session_of_command("test")
            interruption.tell()
        assert seen == said == [b"Aborted.\n"]
        assert (stopped, interruption.has_come()) == ([True], True)


def test_whom_nobody_was_asked_to_forget_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command waits for a request before the next one; here the first one is not ordered."""
    known = [RememberedSender(f"local/{name}", 7, 1, is_member=False) for name in ("alice", "bob")]
    monkeypatch.setattr("connectors.kafka.topics.senders.known_senders", lambda *_: known)
    monkeypatch.setattr("connectors.kafka.topics.senders.forget_senders", lambda *_: Forgotten([], ["local/alice"]))
    told: list[Act] = []
    monkeypatch.setattr(
        "connectors.kafka.log.acts.record_act", lambda _connection, _group, _site, act: told.append(act)
    )
    done = abcast_here("members", "forget", "alice", "bob", "--group", "g", "--why", "they left", cwd=tmp_path)
    assert [(act.act, act.what, act.why) for act in told] == [("forget", "local/alice, local/bob", "they left")]
    assert done.stdout == "local/alice: requested, and forgotten once a sequencer of the group has read the request\n"
    assert (done.returncode, done.stderr) == (
        1,
        "abcast: local/bob: not forgotten. The request for it was not sent: run the command again then.\n",
    )


def test_the_status_of_the_others_is_shown_where_a_group_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = MemoryConnection()
    for group in ("g", "h"):
        kafka.create(group, "local")
    del kafka.topics.partitions[TopicPartition("abcast.h.epoch.local", 0)]
    found = [topic for role in ROLES if role not in BY_RELAYS for topic in kafka.topics_of("g", role)]
    monkeypatch.setattr("connectors.diagnosis.status.find_topics", lambda _: found)
    monkeypatch.setattr("connectors.kafka.topics.topics.find_groups", lambda *_: ["g", "h"])
    monkeypatch.setattr(status, "connection_to", lambda *_: kafka)
    done = abcast_here("status", cwd=tmp_path)
    assert "g: the group never had a sequencer" in done.stdout
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "abcast: topic abcast.h.epoch.local does not exist" in done.stderr
    alone = abcast_here("status", "--group", "h", cwd=tmp_path)
    assert (alone.returncode, alone.stdout) == (1, "")
