"""A replicated list in all orders, for tests; and one in a process of its own: `replica.py BOOTSTRAP GROUP MEMBER`.

The process prints `in` when it is in its view, and casts until it is killed. Asked for its state, it prints `sending`
when the first letter of several is on its way, and sends no more.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time

from connectors import Delivery, Member
from connectors.client.values.letter import LetterReceipt
from connectors.kafka.connection.connection import Connection
from ordering.base.errors import StateUnavailable
from ordering.casts.casts import ORDERS
from ordering.participant.events import ViewChange
from tests.waiting import WAIT, eventually


class Replica:
    """A list of all deliveries, in all orders."""

    def __init__(self, connection: Connection, group: str, name: str, *, state: bool = True) -> None:
        self.taken: list[str] = []
        self.counted = 0
        """Deliveries that came as part of a state."""
        self.ballast = 0
        self.views: list[int] = []
        address = name if "/" in name else f"nyc/{name}"
        self.member = Member(
            *(group, address), connection=connection, casts=True, get_state=self.dump, set_state=self.load
        )
        try:
            self.member.connect(state=state, timeout=WAIT)
        except StateUnavailable:
            self.member.close()
            raise
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def dump(self) -> bytes:
        return json.dumps(self.taken).encode() + b" " * self.ballast

    def load(self, state: bytes) -> None:
        self.taken = json.loads(state)
        self.counted = len(self.taken)

    def run(self) -> None:
        for what in self.member.deliveries(events=True):
            if isinstance(what, Delivery):
                self.taken.append(f"{what.order} {what.sender} {what.payload.decode()}")
            elif isinstance(what, ViewChange):
                self.views.append(what.view_id)

    def wait_for(self, count: int) -> None:
        """Wait until so many deliveries came, or were in the state."""
        eventually(lambda: len(self.taken) >= count)
        assert len(self.taken) == count

    def __enter__(self) -> Replica:
        return self

    def __exit__(self, *_: object) -> None:
        self.member.close()
        self.thread.join(WAIT)


class Talker:
    """A thread in which a member sends in all orders until it is told to stop."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.stopping = threading.Event()
        self.sent: list[str] = []
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        orders = itertools.cycle(ORDERS)
        for number in itertools.count():
            if self.stopping.wait(0.001):
                return
            order = next(orders)
            self.member.broadcast(b"%d" % number, order=order, timeout=WAIT)  # type: ignore[call-overload]
            self.sent.append(f"{order} {self.member.address} {number}")

    def say_more(self, count: int) -> None:
        """Wait until it has sent so many more."""
        wanted = len(self.sent) + count
        eventually(lambda: len(self.sent) >= wanted)

    def __enter__(self) -> Talker:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.thread.join(WAIT)


def of(taken: list[str], sender: str, order: str) -> list[str]:
    """Return one sender's deliveries of one order, in their order."""
    return [text for text in taken if text.startswith(f"{order} {sender} ")]


def main(bootstrap_servers: str, group: str, address: str) -> None:
    """Cast, and begin to supply the state."""
    replica = Replica(Connection(bootstrap_servers), group, address, state=False)
    replica.ballast = 2_000_000
    transfer = replica.member._transfer
    assert transfer is not None
    send = transfer.supplier._send
    letters = itertools.count()

    def send_one(*letter: object) -> LetterReceipt:
        if next(letters) == 1:
            print("sending", flush=True)
            time.sleep(60)
        return send(*letter)  # type: ignore[arg-type]

    transfer.supplier._send = send_one
    print("in", flush=True)
    sys.stdin.readline()
    with Talker(replica.member) as talker:
        talker.thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
