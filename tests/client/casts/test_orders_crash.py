"""A member is killed with casts in flight, starts again and joins late: on a real broker, with real processes."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors import Delivery, Member
from connectors.client.state import state_joiner
from connectors.diagnosis.report import check_group
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.settings import change_settings
from connectors.testing.sequencer_thread import SequencerThread
from jobs.deliver import _line
from ordering.casts.casts import ORDERS
from ordering.participant.events import ViewChange
from tests.client.conftest import ON_A_BROKER
from tests.client.replica import Replica, Talker, of
from tests.client.victim import Victim, victim
from tests.waiting import WAIT, eventually

ROOT = Path(__file__).parents[3]


class Recorder:
    """A member whose application records its deliveries and views, and answers some messages."""

    def __init__(self, connection: Connection, group: str, name: str) -> None:
        self.member = Member(group, f"nyc/{name}", connection=connection, casts=True)
        self.member.connect(timeout=WAIT)
        self.seen: list[Delivery | ViewChange] = []
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        for what in self.member.deliveries(events=True):
            if isinstance(what, Delivery | ViewChange):
                self.seen.append(what)
            if isinstance(what, Delivery) and what.sender == "nyc/c" and int(what.payload) % 10 == 0:
                order = ("causal", "total")[len(self.seen) % 2]
                self.member.broadcast(b"seen " + what.payload, order=order, timeout=WAIT)  # type: ignore[call-overload]

    def views(self) -> list[tuple[str, ...]]:
        return [what.members for what in self.seen if isinstance(what, ViewChange)]

    def saw_it_go(self, name: str, since: int) -> bool:
        """Whether the member joined and left in the views after the first `since`."""
        views = self.views()[since:]
        return any(name in view for view in views) and name not in views[-1]

    def in_views(self) -> dict[int, Counter[tuple[str, int, bytes]]]:
        """Return the deliveries in each view, by the view's id."""
        found: dict[int, Counter[tuple[str, int, bytes]]] = {}
        view = 0
        for what in self.seen:
            if isinstance(what, ViewChange):
                view = what.view_id
            else:
                found.setdefault(view, Counter())[what.sender, what.incarnation, what.payload] += 1
        return found

    def write(self, path: Path) -> Path:
        path.write_text("".join(_line(what, as_json=True) + "\n" for what in self.seen if isinstance(what, Delivery)))
        return path


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_joiner, "PATIENCE_S", 1.0)


@pytest.mark.long
@ON_A_BROKER
@pytest.mark.timeout(150)
@pytest.mark.usefixtures("impatient")
def test_the_supplier_of_a_cut_is_killed_while_it_serves(connection: Connection, group: str) -> None:
    """Both suppliers cast. The joiner asks the next one, and has each message once, in all orders, also the dead
    one's.
    """
    change_settings(connection, group, "nyc", flush=True, suspect_after_ms=10_000)
    command = "-m", "tests.client.replica", connection.bootstrap_servers, group, "nyc/v"
    with SequencerThread(connection, group), contextlib.ExitStack() as closing:
        process = closing.enter_context(victim(*command))
        process.await_line("in")
        a = closing.enter_context(Replica(connection, group, "a", state=False))
        process.tell("go")
        with Talker(a.member) as talker:
            talker.say_more(100)
            joined: list[Replica] = []
            joining = threading.Thread(target=lambda: joined.append(Replica(connection, group, "b")))
            joining.start()
            process.await_line("sending")
            process.kill()
            joining.join(WAIT)
            b = closing.enter_context(joined[0])
            talker.say_more(100)
        eventually(lambda: a.member.view is not None and a.member.view.members == ("nyc/a", "nyc/b"))
        a.member.broadcast(b"the end", order="causal").result(WAIT)
        for each in (a, b):
            eventually(lambda each=each: "causal nyc/a the end" in each.taken)  # type: ignore[misc]
        assert b.counted >= 100
        assert sorted(a.taken) == sorted(b.taken)
        assert len(set(a.taken)) == len(a.taken)
        for sender, order in itertools.product(("nyc/v", "nyc/a"), ORDERS):
            assert of(a.taken, sender, order) == of(b.taken, sender, order)
            assert len(of(a.taken, sender, order)) > 10


@contextlib.contextmanager
def caster(connection: Connection, group: str, *options: object) -> Iterator[Victim]:
    """Yield a process that casts; kill it at the end."""
    with victim("-m", "tests.client.caster", connection.bootstrap_servers, group, "nyc/c", *options) as process:
        process.await_line("in")
        yield process


@pytest.mark.long
@ON_A_BROKER
@pytest.mark.timeout(150)
def test_a_killed_member_with_an_outbox_loses_nothing(connection: Connection, group: str, tmp_path: Path) -> None:
    """Each accepted message is delivered once, in all orders, whether or not it was written or known as written."""
    change_settings(connection, group, "nyc", flush=True, suspect_after_ms=3_000)
    outbox, accepted = tmp_path / "outbox", Counter[int]()
    with SequencerThread(connection, group), contextlib.ExitStack() as closing:
        a = Recorder(connection, group, "a")
        closing.callback(a.member.close)
        for start in range(2):
            since = len(a.views())
            with caster(connection, group, outbox, 1_000_000 * start) as process:
                accepted.update(int(process.lines.readline()) for _ in range(200))
            eventually(lambda since=since: a.saw_it_go("nyc/c", since))  # type: ignore[misc]
        with Member(group, "nyc/c", connection=connection, casts=True, outbox=outbox) as last:
            last.connect(timeout=WAIT)
            last.broadcast(b"2000000", order="causal", timeout=WAIT).result(WAIT)
            accepted[2_000_000] = 1
            last.wait_ordered(WAIT)
        seen = Counter[int]()
        eventually(lambda: any(isinstance(what, Delivery) and what.payload == b"2000000" for what in a.seen))
        seen.update(int(w.payload) for w in a.seen if isinstance(w, Delivery) and w.sender == "nyc/c")
        assert set(seen.values()) == {1}
        assert accepted.keys() <= seen.keys()
        for run in range(2):  # accepted and not printed, or not read here
            numbers = sorted(number for number in seen if number // 1_000_000 == run)
            assert numbers == list(range(1_000_000 * run, 1_000_000 * run + len(numbers)))


@pytest.mark.long
@ON_A_BROKER
@pytest.mark.timeout(150)
def test_a_member_is_killed_with_casts_in_flight(connection: Connection, group: str, tmp_path: Path) -> None:
    """Survivors deliver the same of its casts in each view, in orders that hold; also of its next incarnation."""
    change_settings(connection, group, "nyc", flush=True, suspect_after_ms=2_000)
    with SequencerThread(connection, group), contextlib.ExitStack() as closing:
        a, b = (Recorder(connection, group, name) for name in "ab")
        closing.callback(b.member.close)
        closing.callback(a.member.close)
        for _ in range(2):  # and again, under the same name
            since = [(each, len(each.views())) for each in (a, b)]
            with caster(connection, group) as process:
                assert all(process.lines.readline() for _ in range(300))
            eventually(lambda since=since: all(each.saw_it_go("nyc/c", count) for each, count in since))  # type: ignore[misc]
        late = Recorder(connection, group, "late")
        closing.callback(late.member.close)
        a.member.broadcast(b"the end", order="causal").result(WAIT)
        for each in (a, b, late):
            eventually(lambda each=each: any(isinstance(w, Delivery) and w.payload == b"the end" for w in each.seen))  # type: ignore[misc]
        mine, others = a.in_views(), b.in_views()
        whole = sorted(mine)[:-1]  # the last view goes on
        assert sum(len(mine[view]) >= 10 for view in whole) >= 2
        assert {view: mine[view] for view in whole} == {view: others.get(view) for view in whole}
        incarnations = {what.incarnation for what in a.seen if isinstance(what, Delivery) and what.sender == "nyc/c"}
        assert len(incarnations) == 2
        assert {what.order for what in a.seen if isinstance(what, Delivery)} == {"fifo", "causal", "total"}
        logs = [each.write(tmp_path / f"{name}.jsonl") for name, each in (("a", a), ("b", b), ("late", late))]
        assert check_group(group, connection, names=["nyc"], deliveries=logs).anomalies == []
        rows = [json.loads(line) for line in logs[0].read_text().splitlines()]
        answered = next(at for at, row in enumerate(rows) if row["payload"].startswith("seen"))
        logs[0].write_text("".join(json.dumps(row) + "\n" for row in [rows[answered], *rows[:answered]]))
        broken = check_group(group, connection, names=["nyc"], deliveries=logs[:1]).anomalies
        assert "causal-violation" in {anomaly.name for anomaly in broken}
