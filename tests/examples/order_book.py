"""An order book: traders send limit orders at the same time, and every engine makes the same trades of them.

Price comes before time, and time is the seqno: of two orders at one price, the one that was ordered first is filled
first. No clock is asked, so engines agree, and one that starts later finds the same book.

    python order_book.py SERVERS GROUP trade NAME SIDE PRICE QUANTITY
    python order_book.py SERVERS GROUP match NAME COUNT      prints the trades of the group's first COUNT orders
"""

from __future__ import annotations

import heapq
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from abcast import Delivery, Member


class Trade(NamedTuple):
    """The order `taker` met the order `maker`, which was in the book; orders are known by their seqnos."""

    taker: int
    maker: int
    price: int
    quantity: int


@dataclass
class Book:
    """The orders that wait, the best price first and then the lowest seqno: (rank, seqno, price, quantity)."""

    waiting: dict[str, list[tuple[int, int, int, int]]] = field(default_factory=lambda: {"buy": [], "sell": []})

    def take(self, delivery: Delivery) -> Iterator[Trade]:
        """The trades that an order makes. What it leaves waits in the book."""
        order = json.loads(delivery.payload)
        side, price, quantity = order["side"], order["price"], order["quantity"]
        others = self.waiting["sell" if side == "buy" else "buy"]
        while quantity and others:
            _, maker, asked, there = others[0]
            if (price < asked) if side == "buy" else (price > asked):
                break
            traded = min(quantity, there)
            yield Trade(delivery.seqno, maker, asked, traded)
            quantity -= traded
            if traded == there:
                heapq.heappop(others)
            else:
                others[0] = (*others[0][:3], there - traded)
        if quantity:
            rank = -price if side == "buy" else price
            heapq.heappush(self.waiting[side], (rank, delivery.seqno, price, quantity))


def send_order(trader: Member, side: str, price: int, quantity: int) -> int:
    """Send an order; its number, when every engine will count it."""
    order = {"side": side, "price": price, "quantity": quantity}
    return trader.broadcast(json.dumps(order).encode()).result(timeout=30)


def trades(engine: Member, count: int) -> Iterator[Trade]:
    """The trades of the group's first `count` orders."""
    book = Book()
    for number, delivery in enumerate(engine.deliveries(from_seqno=1), 1):
        yield from book.take(delivery)
        if number == count:
            return


def main() -> None:
    if len(sys.argv) not in (6, 8):
        sys.exit(__doc__)
    servers, group, command, name, *rest = sys.argv[1:]
    with Member(group, name, bootstrap_servers=servers) as member:
        if command == "trade":
            print(send_order(member, rest[0], int(rest[1]), int(rest[2])))
        else:
            for trade in trades(member, int(rest[0])):
                print(*trade)


if __name__ == "__main__":
    main()
