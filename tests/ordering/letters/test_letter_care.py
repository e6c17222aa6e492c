"""Deleting letters: any history of letters, receivers, purges side by side and crashes in the middle of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import pytest

from ordering.base.errors import HistoryUnavailable
from ordering.letters import letter_care
from ordering.letters.inbox import InboxReader
from ordering.letters.letter_care import NO_BASE, Base, InboxEntry, Plan, Times, base_at, plan, superseded
from ordering.membership.membership import ReceivedRow

RECEIVERS = ("b/x", "b/y")
SENDERS = ("a/s", "a/t")
SEEDS = 300
STEPS = 70


class World:
    """A partition of an inbox, its notes, and all records that it ever had."""

    looks_again = True
    """Whether a reader checks that the log's beginning is the same as before it read the notes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.log: list[InboxEntry] = []
        self.beginning = 0
        self.bases: dict[tuple[str, int], Base] = {}
        self.positions: dict[str, int] = {}
        self.taken: dict[str, set[int]] = {receiver: set() for receiver in RECEIVERS}
        self.forgotten: set[str] = set()
        """Receivers whose positions Kafka has forgotten."""
        self.purges: list[Iterator[None]] = []

    def run(self) -> Iterator[str]:
        """Take random steps, and yield each violation."""
        steps: list[Callable[[], None]] = [self._send] * 6 + [self._take] * 3 + [self._forget] + [self._purge] * 10
        for _ in range(STEPS):
            self.random.choice(steps)()
            yield from self._wrong()

    def _send(self) -> None:
        """Append the next letter, a repeat, or one behind a gap; of this incarnation or the next; a state; or a
        stray.
        """
        offset, mark = len(self.log), self.random.choice((*[""] * 20, "c/inbox-0", "d/inbox-0"))
        if self.random.random() < 0.1:
            self.log.append(InboxEntry(offset, relayed_from=mark))
            return
        sender, receiver = self.random.choice(SENDERS), self.random.choice(RECEIVERS)
        row = self._truth(receiver, offset)[0].get(sender, ReceivedRow(1, 0))
        number = row.local_seqno + self.random.choice((1, 1, 1, 0, 2))
        numbers = (row.incarnation, max(number, 1)) if self.random.random() < 0.9 else (row.incarnation + 1, 1)
        is_own = self.random.random() < 0.2
        self.log.append(InboxEntry(offset, receiver, sender, *numbers, is_own=is_own, relayed_from=mark))

    def _truth(self, receiver: str, end: int | None = None) -> tuple[dict[str, ReceivedRow], list[InboxEntry]]:
        """Return the table of the whole log, and the letters that the rule takes."""
        return self._read(receiver, InboxReader(), 0, end)

    def _read(
        self, receiver: str, reader: InboxReader, start: int, end: int | None = None
    ) -> tuple[dict[str, ReceivedRow], list[InboxEntry]]:
        accepted = [
            entry
            for entry in self.log[start:end]
            if entry.receiver == receiver and reader.accept(entry.sender, entry.incarnation, entry.local_seqno)
        ]
        return reader.received, [entry for entry in accepted if not entry.is_own]

    def _bases(self) -> dict[str, list[Base]]:
        found: dict[str, list[Base]] = {}
        for (receiver, below), base in self.bases.items():
            # As it is written, and read again.
            found.setdefault(receiver, []).append(Base.parse(below, base.to_json()))
        return found

    def _base(self, receiver: str) -> Base:
        return letter_care.base_at(self._bases().get(receiver, ()), self.beginning)

    def _take(self) -> None:
        """Let a receiver read on. Without a position, or if letters are gone, it begins at the beginning."""
        receiver = self.random.choice(RECEIVERS)
        position, end = self.positions.get(receiver, 0), self.random.randint(self.beginning, len(self.log))
        _, letters = self._read(receiver, InboxReader(self._base(receiver).received), self.beginning)
        self.taken[receiver] |= {entry.offset for entry in letters if position <= entry.offset < end}
        self.positions[receiver] = max(position, end)

    def _forget(self) -> None:
        """Let Kafka forget a position."""
        receiver = self.random.choice(RECEIVERS)
        if self.positions.pop(receiver, None) is not None:
            self.forgotten.add(receiver)

    def _purge(self) -> None:
        """Run a step of one of up to three purges; a crash is a purge that takes no further step."""
        if len(self.purges) < 3:
            self.purges.append(self._purging())
        one = self.random.choice(self.purges)
        if self.random.random() < 0.1 or next(one, self) is self:
            self.purges.remove(one)

    def _purging(self) -> Iterator[None]:
        beginning = self.beginning
        yield
        bases = self._bases()
        yield
        if not self.looks_again:
            beginning = self.beginning
        if beginning != self.beginning:
            return
        end = self.random.randint(beginning, len(self.log))
        old = self.random.randint(beginning, len(self.log))
        times = Times(old, self.random.randint(old, len(self.log)))
        due = plan(self.log[beginning:end], beginning, bases, self.positions, times)
        yield
        for receiver, base in due.bases.items():
            self.bases[receiver, base.below] = base
            yield
        self.beginning = max(self.beginning, due.below)
        yield
        for receiver, base in due.bases.items():
            for below in letter_care.superseded([*bases.get(receiver, ()), base], due.below):
                self.bases.pop((receiver, below), None)
                yield

    def _wrong(self) -> Iterator[str]:
        for receiver in RECEIVERS:
            base, position = self._base(receiver), self.positions.get(receiver, 0)
            table, accepted = self._truth(receiver)
            if self._read(receiver, InboxReader(base.received), self.beginning)[0] != table:
                yield "another table"
            gone = [entry.offset for entry in accepted if entry.offset < self.beginning]
            missed = [offset for offset in gone if offset not in self.taken[receiver]]
            if missed and base.lost <= missed[-1]:
                yield "lost in silence"
            if not missed and base.lost > position and receiver not in self.forgotten:
                yield "told of a loss that is none"
        for source in ("c/inbox-0", "d/inbox-0"):
            marks = [entry.offset for entry in self.log if entry.relayed_from == source]
            if marks and marks[-1] < self.beginning:
                yield "a relay's last mark is gone"


def ever_shows(wrong: str) -> bool:
    """Whether some history has it; rare events are searched for longer."""
    return any(wrong in World(seed).run() for seed in range(10 * SEEDS))


@pytest.mark.slow
def test_nothing_is_lost_and_nothing_comes_twice() -> None:
    assert {wrong for seed in range(SEEDS) for wrong in World(seed).run()} == set()


@pytest.mark.slow
def test_something_is_deleted() -> None:
    """Otherwise nothing could go wrong."""
    worlds = [World(seed) for seed in range(100)]
    assert all(list(world.run()) == [] for world in worlds)
    assert sum(world.beginning for world in worlds) > 100


def _without_a_base(bases: Iterable[Base], beginning: int) -> Base:
    return NO_BASE


def _newest_base(bases: Iterable[Base], beginning: int) -> Base:
    return max(bases, default=NO_BASE, key=lambda base: base.below)


def _all_older(bases: Collection[Base], beginning: int) -> list[int]:
    newest = max(base.below for base in bases)
    return [base.below for base in bases if base.below < newest]


def _all_go(entry: InboxEntry, positions: Mapping[str, int], old: int) -> bool:
    return False


_BELOW = letter_care._below


def _without_marks(entries: Any, beginning: int, positions: Any, times: Times) -> int:
    return _BELOW([entry._replace(relayed_from="") for entry in entries], beginning, positions, times)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "broken", "shows"),
    [
        ("base_at", _without_a_base, "another table"),
        ("base_at", _newest_base, "another table"),
        pytest.param("superseded", _all_older, "another table", marks=pytest.mark.long),
        ("is_waited_for", _all_go, "lost in silence"),
        ("_below", _without_marks, "a relay's last mark is gone"),
    ],
)
def test_a_rule_that_is_broken_shows(
    monkeypatch: pytest.MonkeyPatch, rule: str, broken: Callable[..., Any], shows: str
) -> None:
    monkeypatch.setattr(letter_care, rule, broken)
    assert ever_shows(shows)


def test_notes_that_are_older_than_the_beginning_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "looks_again", False)
    assert ever_shows("another table")


def test_a_base_is_read_as_it_was_written() -> None:
    base = Base(7, {"a/s": ReceivedRow(3, 4)}, 5)
    assert Base.parse(7, base.to_json()) == base
    for text in (b"", b"{}", b"[]", b'{"lost":0,"received":{"a":[1]}}', b"\xff", b"[" * 100_000):
        assert Base.parse(7, text) == Base(7, is_damaged=True)


def test_behind_a_base_that_is_damaged_nothing_is_deleted() -> None:
    letters = [InboxEntry(offset, "b/x", "a/s", 1, offset + 1) for offset in range(4, 6)]
    bases = {"b/x": [Base(2), Base(4, is_damaged=True), Base(9, is_damaged=True)]}
    with pytest.raises(HistoryUnavailable, match="letters to b/x below 4 can't be read"):
        plan(letters, 4, bases, {"b/x": 6}, Times(6, 6))
    assert plan(letters, 4, bases, {"b/x": 4}, Times(6, 6)) == Plan(4, {}), "nothing would be deleted"
    assert plan(letters, 3, bases, {"b/x": 6}, Times(6, 6)).below == 6, "those are of no use yet"


def test_what_is_kept() -> None:
    """Keep letters that their receiver has yet to take, recent ones of a receiver without a position, and recent
    states.
    """
    letters = [InboxEntry(offset, "b/x", "a/s", 1, offset + 1) for offset in range(6)]
    settled = Times(old=3, settled=6)
    assert plan(letters, 0, {}, {"b/x": 2}, settled).below == 2
    assert plan(letters, 0, {}, {}, settled) == Plan(3, {"b/x": Base(3, {"a/s": ReceivedRow(1, 3)}, lost=3)})
    assert plan(letters, 0, {}, {"b/x": 6}, Times(3, 5)).below == 5
    states = [letter._replace(is_own=True) for letter in letters]
    assert plan(states, 0, {}, {}, settled) == Plan(6, {"b/x": Base(6, {"a/s": ReceivedRow(1, 6)}, lost=0)})
    assert plan([], 4, {}, {}, settled) == Plan(4, {})
    assert superseded([Base(1), Base(3), Base(9)], 5) == [1]
    assert base_at([Base(1), Base(3), Base(9)], 5).below == 3
