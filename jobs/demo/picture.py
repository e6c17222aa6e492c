"""Pictures of a total order: a lane for each sender, by seqno, and below it the deliveries of each observer.

Pure functions from deliveries to text and to SVG. Two observers that deliver the same in the same order have the same
row; a swap, a gap or a repeat shows as a difference.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits
MAX_LANES = 12
"""The lanes in the terminal, for the senders with the most messages; the others share one more."""

COLOURS = (
    *("#3266ad", "#d1572c", "#3f8f5b", "#8a5ab0", "#b8860b", "#2a9d9d"),
    *("#c2437b", "#6b7a2e", "#7a5136", "#5b6c8f", "#9a2a2a", "#5fae2e"),
)
_WIDTH, _LEFT, _RIGHT = 1200, 150, 24
_TOP, _LANE, _BAR, _GAP, _NAME = 114, 26, 30, 10, 20
_NUMBERS = 8
"""The number of seqnos below the lanes, roughly."""
_LEGEND = (
    "A tick is a message at its place in the order, in the lane of its sender. Below, each observer's deliveries as "
    "they came: the same bands in each row mean the same order."
)


class DeliveryMark(NamedTuple):
    """A delivery: its place in the order, and its sender."""

    seqno: int
    sender: str


class Moment(NamedTuple):
    """An event just before the delivery of a seqno."""

    seqno: int
    text: str


class Story(NamedTuple):
    """The deliveries of each observer, in order, and the events between them."""

    observed: Mapping[str, Sequence[DeliveryMark]]
    moments: Sequence[Moment] = ()

    @property
    def order(self) -> Sequence[DeliveryMark]:
        """The order, as the first observer saw it."""
        return next(iter(self.observed.values()), ())

    @property
    def senders(self) -> list[str]:
        """Return the senders, those with the most messages first."""
        counts = Counter(mark.sender for mark in self.order)
        return sorted(counts, key=lambda sender: (-counts[sender], sender))


def terminal(story: Story, width: int, middle: int) -> list[str]:
    """Return the lines of a picture `width` columns wide: as many deliveries around the seqno `middle` as fit."""
    senders = story.senders
    letters = dict(zip(senders, LETTERS, strict=False))
    label = min(28, max((len(name) + 2 for name in (*senders[:MAX_LANES], *story.observed)), default=0))
    room = max(10, width - label - 4)
    before = sum(mark.seqno < middle for mark in story.order)
    first = max(0, min(before - room // 2, len(story.order) - room))
    window = story.order[first : first + room]
    if not window:
        return []
    breaks = {moment.seqno for moment in story.moments}

    def row(name: str, signs: str) -> str:
        return f"  {name[:label]:<{label}}  {signs}"

    head = f"seqno {window[0].seqno}"
    lines = [row("", f"{head}{window[-1].seqno:>{max(1, len(window) - len(head))}}")]
    for sender in senders[:MAX_LANES]:
        signs = ("●" if mark.sender == sender else "┊" if mark.seqno in breaks else "·" for mark in window)
        lines.append(row(f"{letters[sender]} {sender}", "".join(signs)))
    if others := set(senders[MAX_LANES:]):
        lines.append(row("  others", "".join("●" if mark.sender in others else "·" for mark in window)))
    for observer, marks in story.observed.items():
        seen = marks[first : first + room]
        lines.append(row(observer, "".join(letters.get(mark.sender, "*") for mark in seen)))
    shown = range(window[0].seqno, window[-1].seqno + 1)
    lines += [row("", f"┊ {moment.seqno}: {moment.text}") for moment in story.moments if moment.seqno in shown]
    return lines


def svg(story: Story, title: str) -> str:
    """Return the whole order as an SVG document."""
    senders, order = story.senders, story.order
    last = max((mark.seqno for marks in story.observed.values() for mark in marks), default=1)
    lanes_end = _TOP + _LANE * len(senders)
    height = lanes_end + 40 + (_BAR + _GAP) * len(story.observed) + 24

    def x(seqno: int) -> float:
        return _LEFT + (seqno - 1) / max(1, last) * (_WIDTH - _LEFT - _RIGHT)

    tick = max(0.8, (_WIDTH - _LEFT - _RIGHT) / max(1, last))
    colours = {sender: COLOURS[number % len(COLOURS)] for number, sender in enumerate(senders)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
        ' font-family="system-ui, sans-serif" font-size="12" fill="#333">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="24" y="32" font-size="18" font-weight="600">{escape(title)}</text>',
        f'<text x="24" y="52" fill="#666">{_LEGEND}</text>',
    ]
    for number, moment in enumerate(story.moments):
        parts += _moment(x(moment.seqno), number, moment, height)
    for number, sender in enumerate(senders):
        middle = _TOP + _LANE * number + _LANE / 2
        xs = [x(mark.seqno) for mark in order if mark.sender == sender]
        parts.append(f'<line x1="{_LEFT}" y1="{middle}" x2="{_WIDTH - _RIGHT}" y2="{middle}" stroke="#ddd"/>')
        parts.append(_label(sender, middle))
        parts.append(_ticks(xs, middle - 8, 16, tick, colours[sender], "sender"))
    parts.append(_label("seqno", lanes_end + 16))
    for seqno in _numbers(last):
        parts.append(f'<text x="{x(seqno):.1f}" y="{lanes_end + 20}" text-anchor="middle">{seqno:,}</text>')
    for number, (observer, marks) in enumerate(story.observed.items()):
        top = lanes_end + 40 + (_BAR + _GAP) * number
        parts.append(_label(observer, top + _BAR / 2))
        for sender in senders:
            # Drawn by the observer's own count: an observer that misses or repeats a message is out of step.
            xs = [x(count) for count, mark in _counted(marks, order) if mark.sender == sender]
            parts.append(_ticks(xs, top, _BAR, tick, colours[sender], "observer"))
    return "\n".join([*parts, "</svg>", ""])


def _numbers(last: int) -> list[int]:
    """Return the seqnos to label: the first, the last, and round ones between, not too near to these."""
    step = next(first * 10**power for power in range(20) for first in (1, 2, 5) if first * 10**power * _NUMBERS >= last)
    return sorted({1, last, *(seqno for seqno in range(step, last, step) if min(seqno, last - seqno) > step / 2)})


def _counted(marks: Sequence[DeliveryMark], order: Sequence[DeliveryMark]) -> list[tuple[int, DeliveryMark]]:
    """Place the observer's nth delivery at the nth seqno of the order."""
    beyond = order[-1].seqno if order else 0
    return [
        (order[number].seqno if number < len(order) else beyond + number - len(order) + 1, mark)
        for number, mark in enumerate(marks)
    ]


def _ticks(xs: Sequence[float], top: float, height: int, width: float, colour: str, kind: str) -> str:
    path = "".join(f"M{x:.1f} {top:g}v{height}" for x in xs)
    return f'<path class="{kind}" d="{path}" stroke="{colour}" stroke-width="{width:.2f}" fill="none"/>'


def _label(name: str, middle: float) -> str:
    shown = name if len(name) <= _NAME else name[: _NAME - 1] + "…"
    return f'<text x="{_LEFT - 10}" y="{middle + 4:g}" text-anchor="end">{escape(shown)}</text>'


def _moment(x: float, number: int, moment: Moment, height: int) -> list[str]:
    """Draw a line through all lanes; the texts alternate between two rows, on the side with more room."""
    anchor, away = ("end", -6) if x > _WIDTH / 2 else ("start", 6)
    y = _TOP - 34 + 18 * (number % 2)
    across = f'x1="{x:.1f}" y1="{y - 10}" x2="{x:.1f}" y2="{height - 20}"'
    return [
        f'<line {across} stroke="#c00" stroke-dasharray="4 3"/>',
        f'<text x="{x + away:.1f}" y="{y}" text-anchor="{anchor}" fill="#c00">{escape(moment.text)}</text>',
    ]
