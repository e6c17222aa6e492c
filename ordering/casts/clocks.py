"""Vector clocks as one ASCII field without a blank: the shortest of three forms.

A clock has a number for each member of a view, in the view's order (oldest first), so it needs no names. A sender's
numbers only grow within a view, so each clock is written in full, or as the difference to its sender's last one:

| form       | example     | meaning                                                                     |
| ---------- | ----------- | --------------------------------------------------------------------------- |
| the clock  | `5,,7`      | 5, 0, 7, 0 … (zeros are empty, and left out at the end; all zeros: `0`)       |
| increments | `.0010211`  | a digit a member, 0-9 and a-z (zeros are left out at the end)               |
| changes    | `+3,10=2`   | member 3 has one more, member 10 two more (counted from 0)                  |

The first clock of an incarnation in a view is written in full. A producer in another language may always do that.

Measured, in bytes a cast, by tests/ordering/casts/test_clocks.py. The members that cast do so equally often, and lag by
up to 5 casts. `casts` counts the casts of all members before the measurement. Silent members cost nothing:

| members | that cast    | casts  | the clock in full  | as written |
| ------- | ------------ | ------ | ------------------ | ---------- |
| 10      | 10           | 10,000 | 35                 | 8          |
| 100     | 100          | 10,000 | 289                | 84         |
| 1,000   | 10           | 5,000  | 34                 | 8          |
| 1,000   | 1,000        | 20,000 | 2,450              | 902        |
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import sub

from ordering.base.records import MAX_NUMBER

Clock = tuple[int, ...]

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}
_MAX_DIGITS = len(str(MAX_NUMBER))


class ClockMalformed(ValueError):
    """A field that is no clock of this view, or a difference without a clock before it."""


def write(clock: Clock, base: Clock | None) -> str:
    """Return the shortest field for `clock`, given its sender's last one in this view, or None for the first."""
    full = ",".join([str(number) if number else "" for number in clock]).rstrip(",") or "0"
    if base is None:
        return full
    forms = [full]
    increments = list(map(sub, clock, base))
    fits_a_digit = max(increments, default=0) < len(_DIGITS)
    changed = len(increments) - increments.count(0)
    if 2 * changed <= len(increments) + 1 or not fits_a_digit:  # else it is longer, and 1,000 members take their time
        forms.append(
            "+" + ",".join([str(i) if more == 1 else f"{i}={more}" for i, more in enumerate(increments) if more])
        )
    if fits_a_digit:
        forms.append("." + "".join([_DIGITS[more] for more in increments]).rstrip("0"))
    return min(forms, key=len)


def read(field: str, base: Clock | None, size: int) -> Clock:
    """Return the inverse of `write` for a view of `size` members. Raises ClockMalformed."""
    if not field:
        raise ClockMalformed("no clock")
    if field[0] not in "+.":
        numbers = [_number(part) if part else 0 for part in field.split(",")]
        if len(numbers) > size:
            raise ClockMalformed(f"{len(numbers)} numbers in a view of {size}")
        return (*numbers, *(0,) * (size - len(numbers)))
    if base is None:
        raise ClockMalformed("a difference, but no clock before it")
    clock = list(base)
    for index, more in _increments(field):
        if index >= size:
            raise ClockMalformed(f"member {index} in a view of {size}")
        clock[index] += more
    return tuple(clock)


class ClockReader:
    """A reader of the clocks of a view's causal casts, each written in full or as a difference to its sender's last.

    Invariant. `last` has the clock of each member's last delivered causal cast, by the member's index. Only the clock
    of a member's next cast is read, and only once, however often the cast is looked at. Another cast may come under the
    number of one that found no room: its own clock counts.
    """

    def __init__(self, last: Mapping[int, Clock]) -> None:
        self.last = dict(last)
        self._next: dict[int, tuple[str, Clock]] = {}

    def next(self, index: int, field: str, size: int) -> Clock:
        """Return the clock of a member's next cast in a view of `size` members. Raises ClockMalformed."""
        known = self._next.get(index)
        if known is not None and known[0] == field:
            return known[1]
        self._next.pop(index, None)
        clock = read(field, self.last.get(index), size)
        self._next[index] = field, clock
        return clock

    def go_past(self, index: int) -> None:
        """Note that the member's next cast, a causal one, is delivered, or dropped without a readable clock."""
        known = self._next.pop(index, None)
        if known is not None:
            self.last[index] = known[1]


class ClockWriter:
    """A writer of one sender's clocks.

    Invariant. A causal cast's clock is a difference only to the sender's last one in the same view, which each reader
    of the cast has read before. A total message without a clock depends on the same casts as the sender's last one.
    """

    def __init__(self) -> None:
        self.view = 0
        self._last: Clock | None = None
        self._last_of_total: Clock | None = None

    def enter(self, view: int) -> None:
        """Follow the sender into a view: in a new one the first clocks are written in full."""
        if view != self.view:
            self.view = view
            self._last = self._last_of_total = None

    def of_cast(self, clock: Clock) -> str:
        """Return the field of a causal cast."""
        field = write(clock, self._last)
        self._last = clock
        return field

    def of_total(self, clock: Clock) -> str | None:
        """Return the field of a total message; None if it needs no clock."""
        if clock == self._last_of_total or not any(clock):
            return None
        self._last_of_total = clock
        return write(clock, None)


def _increments(field: str) -> list[tuple[int, int]]:
    if field[0] == ".":
        try:
            return [(index, _VALUES[digit]) for index, digit in enumerate(field[1:]) if digit != "0"]
        except KeyError as error:
            raise ClockMalformed(f"not a digit: {error}") from error
    found = []
    for part in field[1:].split(",") if len(field) > 1 else ():
        index, equals, more = part.partition("=")
        found.append((_number(index), _number(more) if equals else 1))
    return found


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise ClockMalformed(f"not a number: {text[:40]!r}")
    return int(text)
