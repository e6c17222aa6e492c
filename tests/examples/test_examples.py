"""The examples as programs on a real broker, killed where it matters. `SequencerThread` orders."""

from __future__ import annotations

import itertools
import json
import queue
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from connectors import Delivery, Member
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.settings import change_settings
from connectors.kafka.topics.topics import create_topics
from connectors.local.broker import EmbeddedBroker
from connectors.testing import SequencerThread
from ordering.membership.membership import MemberIncarnation
from ordering.participant.events import ViewChange
from tests.examples.lock_service import Locks
from tests.examples.order_book import Book, Trade, send_order
from tests.waiting import WAIT, eventually

HERE = Path(__file__).parent
_numbers = itertools.count(1)


class Program:
    """An example that runs, and is talked to by lines."""

    def __init__(self, example: str, *arguments: str | Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / f"{example}.py"), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        """Kill it as kill -9 does."""
        self.process.kill()
        self.process.communicate(timeout=WAIT)


Start = Callable[..., Program]


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as programs:

        def started(example: str, *arguments: str | Path) -> Program:
            program = Program(example, *arguments)
            programs.callback(program.kill)
            return program

        yield started


@pytest.fixture
def connection(broker: EmbeddedBroker) -> Connection:
    return Connection(broker.bootstrap_servers)


@pytest.fixture
def group(connection: Connection) -> Iterator[str]:
    """A group of two partitions that is ordered."""
    name = f"example-{next(_numbers)}"
    create_topics(connection, name, ["local"], partitions=2)
    with SequencerThread(connection, name, "local"):
        yield name


def delivery(seqno: int, sender: str, body: object) -> Delivery:
    return Delivery(seqno, sender, 1, 1, json.dumps(body).encode(), (), 0, 1)


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.crash
def test_replicated_kv(connection: Connection, group: str, tmp_path: Path, start: Start) -> None:
    """A counter that three replicas raise by compare-and-set; one of them, then all are killed; another joins late."""
    servers = connection.bootstrap_servers

    def replica(name: str) -> Program:
        return start("replicated_kv", servers, group, name, tmp_path / f"{name}.sqlite")

    def count(program: Program, times: int) -> None:
        for _ in range(times):
            while True:
                value = program.ask("get counter")
                if program.ask(f"cas counter {value} {int(value) + 1}") == "True":
                    break

    replicas = {name: replica(name) for name in ("a", "b", "c")}
    assert replicas["a"].ask("cas counter - 0") == "True"
    eventually(lambda: all(program.ask("get counter") == "0" for program in replicas.values()))
    counting = [threading.Thread(target=count, args=(replicas[name], 10)) for name in ("a", "c")]
    for thread in counting:
        thread.start()
    for number in range(20):
        replicas["b"].ask(f"set b{number % 3} {number}")
    replicas["b"].kill()
    for thread in counting:
        thread.join(WAIT)
    replicas["b"] = replica("b")  # from its own file
    eventually(lambda: len({program.ask("digest") for program in replicas.values()}) == 1)
    assert replicas["b"].ask("get counter") == "20"
    assert replicas["b"].ask("get b1") == "19"
    for program in replicas.values():
        program.kill()
    replicas = {name: replica(name) for name in ("a", "b", "c", "late")}
    assert replicas["late"].ask("set after restart") == "True"
    eventually(lambda: len({program.ask("digest") for program in replicas.values()}) == 1)
    assert replicas["late"].ask("get counter") == "20"


def test_book() -> None:
    """Price before time; the rest waits."""
    book, seqnos = Book(), itertools.count(1)

    def take(side: str, price: int, quantity: int) -> list[Trade]:
        order = {"side": side, "price": price, "quantity": quantity}
        return list(book.take(delivery(next(seqnos), "local/x", order)))

    assert take("sell", 101, 5) == []
    assert take("sell", 100, 5) == []
    assert take("sell", 100, 5) == []
    assert take("buy", 99, 1) == []
    assert take("buy", 101, 12) == [Trade(5, 2, 100, 5), Trade(5, 3, 100, 5), Trade(5, 1, 101, 2)]
    assert take("sell", 99, 3) == [Trade(6, 4, 99, 1)]
    assert take("buy", 200, 9) == [Trade(7, 6, 99, 2), Trade(7, 1, 101, 3)]


@pytest.mark.long
@pytest.mark.broker
def test_order_book(connection: Connection, group: str, start: Start) -> None:
    """Four traders at the same time; engines that run from the start and one that starts later make the same trades."""
    count, dice = 80, random.Random(7)
    engines = [start("order_book", connection.bootstrap_servers, group, "match", f"e{n}", str(count)) for n in range(2)]
    orders = [(dice.choice(["buy", "sell"]), dice.randrange(95, 106), dice.randrange(1, 9)) for _ in range(count - 1)]

    def trade(name: str, share: list[tuple[str, int, int]]) -> None:
        with Member(group, name, connection=connection) as trader:
            for order in share:
                send_order(trader, *order)

    traders = [threading.Thread(target=trade, args=(f"t{number}", orders[number::4])) for number in range(4)]
    for thread in traders:
        thread.start()
    by_hand = start("order_book", connection.bootstrap_servers, group, "trade", "hand", "buy", "100", "1")
    assert int(by_hand.answer()) > 0
    for thread in traders:
        thread.join(WAIT)
    engines.append(start("order_book", connection.bootstrap_servers, group, "match", "late", str(count)))
    seen = [engine.process.communicate(timeout=WAIT)[0].splitlines() for engine in engines]
    assert len(seen[0]) > 10
    assert seen[0] == seen[1] == seen[2]


def test_locks() -> None:
    """In the order of requests; who leaves makes room; tokens grow; what the state counts already changes nothing."""
    locks = Locks()
    for seqno, sender in enumerate(["local/a", "local/b", "local/b", "local/c"], 1):
        locks.apply(delivery(seqno, sender, ["acquire", "x"]))
    assert (locks.holder("x"), locks.tokens["x"]) == ("local/a", 1)
    locks.apply(delivery(5, "local/c", ["release", "y"]))
    locks.apply(delivery(6, "local/a", ["release", "x"]))
    assert (locks.holder("x"), locks.tokens["x"]) == ("local/b", 6)
    locks.apply(ViewChange(7, 2, (MemberIncarnation("local/c", 1),), (), ("local/b",)))
    assert (locks.holder("x"), locks.tokens["x"]) == ("local/c", 7)
    locks.apply(ViewChange(3, 1, (), (), ("local/c",)))
    assert locks.holder("x") == "local/c"
    locks.apply(ViewChange(8, 3, (), (), (), ("local/c",)))
    assert locks.holder("x") is None


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.crash
def test_lock_service(connection: Connection, group: str, start: Start) -> None:
    """The holder is killed; the next one has the lock when the view without it comes, with a higher token."""
    change_settings(connection, group, "local", suspect_after_ms=3000)
    servers = connection.bootstrap_servers
    holder = start("lock_service", servers, group, "first", "job")
    first = int(holder.answer())
    waiting = [start("lock_service", servers, group, name, "job") for name in ("second", "third")]
    with Member(group, "local/reader", connection=connection) as reader:
        requests = reader.deliveries(1)
        for _ in (holder, *waiting):
            next(requests)
    holder.kill()
    answers: queue.Queue[tuple[Program, int]] = queue.Queue()
    for program in waiting:
        threading.Thread(target=lambda p=program: answers.put((p, int(p.answer()))), daemon=True).start()
    tokens = [first]
    for _ in waiting:  # in whichever order they asked
        program, token = answers.get(timeout=WAIT)
        tokens.append(token)
        program.process.communicate("done\n", timeout=WAIT)
    again = start("lock_service", servers, group, "first", "job")
    tokens.append(int(again.answer()))
    assert tokens == sorted(set(tokens))
