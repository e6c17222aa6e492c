"""The formats that a group can have: what is written in it, and so which versions of abcast can follow it.

Two rules let versions be together in a group:

* What a reader may pass over is added without a word to it: a field, a kind, a setting (docs/upgrades.md says where).
  The readers of format 1 stop at some of that, so it begins with format 2.
* What a reader has to know is switched on for a group: by one record in its EPOCH, which each claim repeats, and each
  seal in DATA. Whoever reads there of a format that it does not know stops, and says which version knows it.

A group begins with the newest format that its first sequencer knows. `abcast topics upgrade` switches on a later one.

Invariant. A group's format never becomes lower. A claim has the highest one that stands before it in EPOCH or DATA, and
a sequencer that does not know that one does not claim. So nothing of a later format stands in DATA before a seal that
says so, and a crash between the switch and the next claim leaves it to be taken up by the one after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ordering.base.errors import LaterVersion


class Format(NamedTuple):
    """A format, and the first version of abcast that knows it."""

    number: int
    version: str


FIRST = Format(1, "0.1.0")
"""Of groups that were begun by 0.1.0, until they are upgraded."""
ADDITIONS = Format(2, "0.2.0")
"""All who follow it pass over fields, kinds, settings and counts of later versions."""

FORMATS = (FIRST, ADDITIONS)
"""All that this version knows. A feature that readers have to know is one more row; `SequencerState.format` tells the
sequencer whether it may use it."""
NEWEST = FORMATS[-1]


def known(number: int) -> Format:
    """Return the format of that number, one of `FORMATS`."""
    return FORMATS[number - FIRST.number]


def follow(where: str, wanted: Format, formats: Sequence[Format] = FORMATS) -> None:
    """Raise LaterVersion if `where`, in words, has a format that is not among `formats`."""
    if wanted.number > formats[-1].number:
        raise later_format(where, wanted, formats)


def later_format(where: str, wanted: Format, formats: Sequence[Format] = FORMATS) -> LaterVersion:
    """Return the error of `follow`."""
    newest = formats[-1].number
    problem = f"{where} has format {wanted.number}, and this version of abcast knows those up to {newest}"
    return later(problem, wanted.version)


def later(problem: str, version: str = "") -> LaterVersion:
    """Return the error of a reader that is too old. `version`: the first that is not, if it is known."""
    wanted = f"abcast {version} or later" if version else "the version of abcast that the others run"
    how = f"abcast>={version}" if version else "abcast"
    return LaterVersion(f"{problem}: install {wanted} here (`pip install --upgrade '{how}'`), and start again.")
