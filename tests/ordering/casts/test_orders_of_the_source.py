"""The examples of the source Group Communication (docs/sources.md), each run on the core that it explains."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest

from ordering.base.records import MESSAGE, VIEW, Data, Forward, Source
from ordering.casts.casts import CAUSAL, FIFO, TOTAL, Cast, OrderedRecord
from ordering.casts.causal import CausalReceiver
from ordering.casts.outgoing import Broadcast, Outgoing
from ordering.membership.membership import MemberIncarnation
from ordering.sequencer.sequencer import step
from ordering.sequencer.state import SequencerState

ME, SHOP, BANK = (MemberIncarnation(f"s/{name}", 1) for name in ("me", "shop", "bank"))
VIEW_1 = OrderedRecord(1, VIEW, view=1, members=(ME, SHOP, BANK))


class Member:
    """A member in a view with the others, and what its application sees."""

    def __init__(self, life: MemberIncarnation) -> None:
        self.life = life
        self.receiver = CausalReceiver()
        self.receiver.step(VIEW_1)
        self.outgoing = Outgoing(life, self.receiver)
        self.seen: list[str] = []

    def send(self, order: str, payload: str) -> Cast | Broadcast:
        self.outgoing.send(order, payload.encode())
        (message,) = self.outgoing.release()
        return message

    def cast(self, order: str, payload: str) -> Cast:
        """Send a cast: it is written, and read back by its sender."""
        message = self.send(order, payload)
        assert isinstance(message, Cast)
        self.receive(message)
        return message

    def receive(self, record: Cast | OrderedRecord) -> None:
        for delivery in self.receiver.step(record).deliveries:
            self.outgoing.delivered(delivery)
            self.seen.append(delivery.payload.decode() if isinstance(delivery, Cast) else str(delivery.record))


def test_the_deposit_and_the_cheque_of_one_sender() -> None:
    """ "The check gets cashed before my deposit is received by the bank": not if letters come in FIFO order."""
    me, bank = Member(ME), Member(BANK)
    deposit, cheque = me.cast(FIFO, "deposit"), me.cast(FIFO, "cheque")
    bank.receive(cheque)
    assert bank.seen == []
    bank.receive(deposit)
    assert bank.seen == ["deposit", "cheque"]


def the_shop_cashes_my_cheque(order: str) -> Member:
    """I send my deposit, and the shop, which has seen it, the cheque. The deposit's way is slow."""
    me, shop, bank = Member(ME), Member(SHOP), Member(BANK)
    deposit = me.cast(order, "deposit")
    shop.receive(deposit)
    cheque = shop.cast(order, "cheque")
    bank.receive(cheque)
    bank.receive(deposit)
    return bank


def test_fifo_that_is_not_causal() -> None:
    """Quote: "If a system enforces causal ordering then it also enforces FIFO ordering, but not viceversa." """
    assert the_shop_cashes_my_cheque(FIFO).seen == ["cheque", "deposit"]


def test_causal_order_delays_what_is_out_of_order() -> None:
    """ "We want to delay the delivery of messages … until all the causally preceding messages have been delivered." """
    assert the_shop_cashes_my_cheque(CAUSAL).seen == ["deposit", "cheque"]


class Numbered(NamedTuple):
    """A message in the source's plain sequencer: its number was asked for first, then it was multicast."""

    number: int
    payload: str


class PlainReceiver:
    """Delayed if greater than 1 plus the local number, accepted if equal, discarded if less."""

    def __init__(self) -> None:
        self.last = 0
        self.held: dict[int, str] = {}
        self.seen: list[str] = []

    def receive(self, message: Numbered) -> None:
        if message.number > self.last:
            self.held[message.number] = message.payload
        while self.last + 1 in self.held:
            self.last += 1
            self.seen.append(self.held.pop(self.last))


@pytest.mark.parametrize("arrivals", list(itertools.permutations(range(3))))
def test_the_diagram_that_is_total_but_not_causal(arrivals: tuple[int, ...]) -> None:
    """s(m1) happens before s(m2), yet m2 is delivered first, everywhere.

    The second node has its number before it knows of m1, and sends under it after m1 has reached it.
    """
    numbers = itertools.count(1)
    number_of_m2 = next(numbers)
    m1 = Numbered(next(numbers), "m1")
    nodes = [PlainReceiver() for _ in range(3)]
    nodes[1].receive(m1)
    m2 = Numbered(number_of_m2, "m2")
    for node in arrivals:
        nodes[node].receive(m2)
        nodes[node].receive(m1)
    assert [node.seen for node in nodes] == [["m2", "m1"]] * 3


@pytest.mark.parametrize("partitions", list(itertools.product(range(2), repeat=2)))
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_the_diagram_is_impossible_here(partitions: tuple[int, int], cut: int) -> None:
    """Number and sending are one action: the sequencer's. m2 leaves after m1 was delivered, so m1 has a number.

    Whatever partitions the messages go through, and however the log is cut into batches: a message that the second
    node had sent before (m0), m1, and m2, which it sends when it has delivered m1.
    """
    m0, m1, m2 = (
        Forward(sender, 1, local_seqno, payload, Source("abcast.g.forward.s", partition, offset))
        for offset, (sender, local_seqno, payload, partition) in enumerate(
            [("s/b", 1, b"m0", partitions[0]), ("s/a", 1, b"m1", partitions[1]), ("s/b", 2, b"m2", partitions[0])]
        )
    )
    state = SequencerState("g")
    data: list[Data] = []
    log = sorted([m0, m1], key=lambda record: record.source)
    for batch in (log[:cut], log[cut:]):
        state, outputs = step(state, batch)
        data += [output for output in outputs if isinstance(output, Data)]
    assert b"m1" in {record.payload for record in data}  # the second node delivers it, and sends m2
    state, outputs = step(state, [m2])
    data += [output for output in outputs if isinstance(output, Data)]
    seqnos = {record.payload: record.seqno for record in data}
    assert sorted(seqnos.values()) == [1, 2, 3]
    assert seqnos[b"m1"] < seqnos[b"m2"]


def test_a_causal_cast_comes_after_the_total_message_that_its_sender_had_delivered() -> None:
    shop, bank = Member(SHOP), Member(BANK)
    rate = OrderedRecord(2, MESSAGE, *ME, 1, record="new rate")
    shop.receive(rate)
    order = shop.cast(CAUSAL, "order at the new rate")
    bank.receive(order)
    assert bank.seen == []
    bank.receive(rate)
    assert bank.seen == ["new rate", "order at the new rate"]


def test_a_total_message_comes_after_the_cast_that_its_sender_had_delivered() -> None:
    me, shop, bank = Member(ME), Member(SHOP), Member(BANK)
    deposit = me.cast(CAUSAL, "deposit")
    shop.receive(deposit)
    message = shop.send(TOTAL, "cheque")
    assert isinstance(message, Broadcast)
    cheque = OrderedRecord(2, MESSAGE, *SHOP, 1, message.depends, record="cheque")
    bank.receive(cheque)
    assert bank.seen == []
    bank.receive(deposit)
    assert bank.seen == ["deposit", "cheque"]


def test_synchronous_messages_divide_the_time_of_everybody_alike() -> None:
    """Quote: "It is as if the sending and delivery of a message were instantaneous."

    The sender of a synchronous message does nothing until it delivers it: that is its send. Casts travel as they like,
    and yet no member has one on another side of the message than its sender.
    """
    me, shop, bank = Member(ME), Member(SHOP), Member(BANK)
    before_mine, before_shops = me.cast(CAUSAL, "me: before"), shop.cast(CAUSAL, "shop: before")
    me.receive(before_shops)
    message = me.send(TOTAL, "--- stocktaking ---")
    assert isinstance(message, Broadcast)
    instant = OrderedRecord(2, MESSAGE, *ME, 1, message.depends, record="--- stocktaking ---")
    me.receive(instant)
    after_mine = me.cast(CAUSAL, "me: after")
    for record in (instant, after_mine, before_shops, before_mine):
        bank.receive(record)
    for record in (after_mine, before_mine, instant):
        shop.receive(record)
    after_shops = shop.cast(CAUSAL, "shop: after")
    for member in (me, bank):
        member.receive(after_shops)
    for member in (me, shop, bank):
        instant_at = member.seen.index("--- stocktaking ---")
        assert sorted(member.seen[:instant_at]) == ["me: before", "shop: before"]
        assert sorted(member.seen[instant_at + 1 :]) == ["me: after", "shop: after"]
