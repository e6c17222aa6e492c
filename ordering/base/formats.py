"""Formats of a group: each fixes what may be written in it, and so which versions of abcast can read it.

Two rules let several versions work in one group:

* An addition that readers may pass over needs no switch: a field, a kind, a setting (docs/upgrades.md says where).
  Readers of format 1 stop at some of these, so they begin with format 2.
* A feature that readers must know is switched on for the group by one record in EPOCH. Each later claim repeats it, and
  so does each seal in DATA. A reader that finds a format it does not know stops, and names the version that knows it.

A group begins with the format NEW_GROUPS of its first sequencer. `abcast topics upgrade` switches on a later one, also
before the first start.

Invariant. A group's format never decreases. A claim repeats the highest format before it in EPOCH or DATA, and a
sequencer that does not know this format does not claim. So DATA has no record of a later format before a seal that
announces it. A crash between the switch and the next claim costs nothing: the claim after it repeats the switch.
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
"""The format of a group that 0.1.0 began, until it is upgraded."""
ADDITIONS = Format(2, "0.2.0")
"""The format whose readers all pass over fields, kinds, settings and counts of later versions."""
PACKS = Format(3, "0.2.0")
"""The format in which a sequencer may write packs (`ordering.sequencer.packing`)."""

FORMATS = (FIRST, ADDITIONS, PACKS)
"""The formats that this version knows. A feature that readers must know is one more row; the sequencer uses it if
`SequencerState.format` has it."""
NEWEST = FORMATS[-1]
"""The format that `abcast topics upgrade` gives, unless it is told another one."""
NEW_GROUPS = ADDITIONS
"""The format with which a group begins."""


def known(number: int) -> Format:
    """Return the format of that number. The caller has seen that it is one of `FORMATS`."""
    return FORMATS[number - FIRST.number]


def follow(where: str, wanted: Format, formats: Sequence[Format] = FORMATS) -> None:
    """Raise LaterVersion if `formats` ends before the `wanted` one. `where`: the place in words, for the message."""
    if wanted.number > formats[-1].number:
        raise later_format(where, wanted, formats)


def later_format(where: str, wanted: Format, formats: Sequence[Format] = FORMATS) -> LaterVersion:
    """Return the error of `follow`."""
    newest = formats[-1].number
    problem = f"{where} has format {wanted.number}, and this version of abcast knows those up to {newest}"
    return later(problem, wanted.version)


def later(problem: str, version: str = "") -> LaterVersion:
    """Return the error of a reader that is too old. `version`: the first that is new enough, if known."""
    wanted = f"abcast {version} or later" if version else "the version of abcast that the others run"
    how = f"abcast>={version}" if version else "abcast"
    return LaterVersion(f"{problem}: install {wanted} here (`pip install --upgrade '{how}'`), and start again.")
