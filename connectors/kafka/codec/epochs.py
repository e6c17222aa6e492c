"""Encode and decode the records of a group's EPOCH topic.

`connectors.kafka.log.epoch_log` says what they mean; `connectors.relay.promotion` does for moves.

| record | header `abcast` | value |
| --- | --- | --- |
| claim | `2 claim` | `FLOOR HOST PID AGREEMENT`: who takes over, and where DATA ended before |
| claim of a format | `2 claim-as` | `FLOOR HOST PID AGREEMENT FORMAT VERSION`: the same, above format 1 |
| format | `2 format` | `FORMAT VERSION`: the group's from the next claim on (`ordering.base.formats`) |
| note | `2 note` | `OFFSET EPOCH SEQNO` |
| handover | `2 note` | `0 0 0 EPOCH HOST PID SIGNED_AT`: this standby shall replace the sequencer of EPOCH |
| base | that of an `epoch` record | a state; in a copy |
| exclusion | `2 exclude` | `VIEW SITE …`: in that view of sites that agree, these are not waited for any more |
| move | `2 move` | `HOME ABOVE`: the site that is the group's home from here on; in a hub, and after a restore |

A claim's epoch is its offset plus one, plus ABOVE of the last move before it. So a note, which claims nothing, only
makes the epochs skip a number. So does a stray: all readers pass over a record that has none of these forms. Only an
unknown kind stops a reader, since a later version may have written it; so does an unknown format. Thus claims above
format 1 stop readers that know no formats.
"""

from __future__ import annotations

import functools
import os
import re
import socket
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from connectors.kafka.codec.headers import HEADER, NOTHING, VERSION, first_fields
from ordering.base.formats import FIRST, Format, follow, known, later
from ordering.base.records import EPOCH, Exclusion

_CLAIM = f"{VERSION} claim".encode("ascii")
_CLAIM_AS = f"{VERSION} claim-as".encode("ascii")
_FORMAT = f"{VERSION} format".encode("ascii")
_NOTE = f"{VERSION} note".encode("ascii")
_MOVE = f"{VERSION} move".encode("ascii")
EXCLUSION = f"{VERSION} exclude".encode("ascii")
"""The header of an exclusion."""
_BASE = f"{VERSION} {EPOCH}".encode("ascii")

FEUD_CHANGES = 3
"""Changes of hosts between successive claims. Two are a handover and its way back; from the third on it is a feud."""
FEUD_GAP_MS = 15 * 60_000
"""Claims further apart than this are no feud."""
HANDOVER_MS = 25_000
"""A claim that comes later than this behind a handover, by the broker's clock, does not follow from it."""
FIRST_YIELD_S = 10.0
LONGEST_YIELD_S = 300.0


_LATER = re.compile(rf"{VERSION} [a-z][a-z-]*".encode("ascii"))


class StrayClaim(ValueError):
    """A record in EPOCH that no version of abcast wrote. It claims nothing, so the epochs skip its number."""


class Claim(NamedTuple):
    """A takeover: the seal of `epoch` is in DATA at offset `floor` or later, if it was written at all.

    `host`, `pid`: the claimer ("" and 0 in claims of earlier versions); `at_ms`: the broker's timestamp. `agreement`:
    "isis" if the claimer agrees with other sites, "" if it decides alone. `format` is the group's from here on.
    `is_planned`: an operator asked the claimer to take over. EPOCH tells it by the record before (`Handover`).
    """

    epoch: int
    floor: int
    host: str = ""
    pid: int = 0
    at_ms: int = 0
    agreement: str = ""
    format: int = FIRST.number
    is_planned: bool = False

    @property
    def who(self) -> str:
        """A description of the claimer."""
        return f"process {self.pid} on host {self.host}" if self.host else "another process"

    @property
    def is_own(self) -> bool:
        """Whether this process is the claimer, or has the pid of one that has ended."""
        return (self.host, self.pid) == this_process()

    @property
    def is_over(self) -> bool:
        """Whether the claimer is known to have ended: its pid on this host is gone, or is now this process's own."""
        return self.is_own or (self.host == this_host() and not _is_there(self.pid))


class Note(NamedTuple):
    """A fact about DATA below Kafka offset `offset`: `epoch` is in force there, and `seqno` is the last one decided.

    A takeover writes a note about its seal. A deletion of DATA writes one about the snapshot that remains.
    """

    offset: int
    epoch: int
    seqno: int


class Handover(NamedTuple):
    """An operator's request that a standby, `pid` on `host`, replaces the sequencer of `epoch`.

    `signed_ms`: the time of the standby's sign that the request answers, by its clock. `at_ms`: the broker's time.
    Earlier versions read a note that tells nothing.
    """

    epoch: int
    host: str
    pid: int
    signed_ms: int
    at_ms: int = 0

    def leads_to(self, claim: Claim, before: int) -> bool:
        """Whether a claim behind the one of epoch `before` follows from this request."""
        is_asked = (self.epoch, self.host, self.pid) == (before, claim.host, claim.pid)
        return is_asked and claim.at_ms - self.at_ms <= HANDOVER_MS


class Move(NamedTuple):
    """A change of the group's home to `home`. That site was promoted; every other site's sequencer has lost the group.

    Claims behind it have epochs above `above`, and so above the epochs of any earlier home.
    """

    home: str
    above: int = 0


Entry = Claim | Note | Handover | Move | Exclusion | Format
"""A record of EPOCH that is no base."""

RESTORING = "(restoring)"
"""The home in the move with which a restore begins. No site has that name, so no sequencer starts."""
IS_RESTORED = "is being restored from its ledger. If `abcast restore` was interrupted, run it again"
"""The end of a sentence about a group with that home."""


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's process
        return True
    return True


@functools.cache
def this_host() -> str:
    """Return this machine's name as claims have it: without blanks, in ASCII."""
    return "".join(socket.gethostname().split()).encode("ascii", "replace").decode("ascii") or "unknown"


def this_process() -> tuple[str, int]:
    """Return this machine's name and this process's pid, as claims have them."""
    return this_host(), os.getpid()


def encode_claim(
    floor: int, agreement: str = "", of_format: int = FIRST.number
) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Return (value, headers) of this process's claim."""
    host, pid = this_process()
    who = f"{floor} {host} {pid}"
    if of_format == FIRST.number:
        return f"{who} {agreement}".rstrip().encode("ascii"), [(HEADER, _CLAIM)]
    text = f"{who} {agreement or NOTHING} {_text(known(of_format))}"
    return text.encode("ascii"), [(HEADER, _CLAIM_AS)]


def encode_format(wanted: Format) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Return (value, headers) of the record that gives the group a format."""
    return _text(wanted).encode("ascii"), [(HEADER, _FORMAT)]


def _text(wanted: Format) -> str:
    return f"{wanted.number} {wanted.version}"


def encode_note(note: Note) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Return (value, headers) of a note."""
    return b"%d %d %d" % note, [(HEADER, _NOTE)]


def encode_handover(asked: Handover) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Return (value, headers) of an operator's request."""
    text = f"0 0 0 {asked.epoch} {asked.host} {asked.pid} {asked.signed_ms}"
    return text.encode("ascii"), [(HEADER, _NOTE)]


def encode_move(move: Move) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Return (value, headers) of a move."""
    return f"{move.home} {move.above}".encode("ascii"), [(HEADER, _MOVE)]


def encode_exclusion(exclusion: Exclusion) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Return (value, headers) of an exclusion."""
    return " ".join([str(exclusion.view), *exclusion.sites]).encode("ascii"), [(HEADER, EXCLUSION)]


def decode(
    topic: str, offset: int, value: bytes | None, headers: Sequence[tuple[str, bytes]], at_ms: int, above: int = 0
) -> Entry | None:
    """Decode a record of an EPOCH topic; None for a base. `above`: ABOVE of the last move before the record.

    Raises StrayClaim for a record that no version wrote, LaterVersion for one that only a later version knows.
    """
    try:
        version_and_kind = b" ".join(first_fields(headers, 2))
        if version_and_kind == _CLAIM:
            floor, host, pid, *more = (value or b"").decode("ascii").split()
            return Claim(above + offset + 1, int(floor), host, int(pid), at_ms, more[0] if more else "")
        if version_and_kind == _CLAIM_AS:
            floor, host, pid, agreement, *of_format = (value or b"").decode("ascii").split()
            claimed = _followed(topic, of_format)
            agreement = "" if agreement == NOTHING else agreement
            return Claim(above + offset + 1, int(floor), host, int(pid), at_ms, agreement, claimed.number)
        if version_and_kind == _FORMAT:
            return _followed(topic, (value or b"").decode("ascii").split())
        if version_and_kind == _MOVE:
            home, highest = (value or b"").decode("ascii").split()[:2]
            return Move(home, int(highest))
        if version_and_kind == _NOTE:
            fields = (value or b"").split()
            if len(fields) >= 7:
                return Handover(int(fields[3]), fields[4].decode("ascii"), int(fields[5]), int(fields[6]), at_ms)
            return Note(*map(int, fields[:3]))
        if version_and_kind == EXCLUSION:
            view, *names = (value or b"").decode("ascii").split()
            return Exclusion(int(view), tuple(names))
        if version_and_kind == _BASE:
            return None
    except (ValueError, TypeError) as error:
        raise StrayClaim(f"{topic} at offset {offset} can't be read ({error})") from error
    if _LATER.fullmatch(version_and_kind):
        raise later(f"{topic} at offset {offset} is of a kind that only a later version of abcast knows")
    raise StrayClaim(f"{topic} at offset {offset} is neither a claim nor a note ({HEADER}: {version_and_kind!r})")


def _followed(topic: str, fields: Sequence[str]) -> Format:
    """Return the format that these fields begin with. Raises LaterVersion, or ValueError."""
    number, version, *_ = [*fields, ""]
    found = Format(int(number), version)
    if found.number < FIRST.number:
        raise ValueError("formats begin at 1")
    follow(topic, found)
    return found


def seconds_to_yield(claims: Sequence[Claim], host: str, now_ms: int) -> tuple[float, Claim] | None:
    """Return how long a sequencer that starts on `host` must not fence its rival, and the rival's claim; None if it
    may.

    Two supervised sequencers would fence each other for ever: each is restarted and takes over. EPOCH then has claims
    of two hosts in turn, in quick succession. The sequencer that starts then waits, each time twice as long, while the
    rival works. A sequencer restarted after a crash finds a claim of its own host, which is no feud; nor is a planned
    handover one.
    """
    if not claims or claims[-1].host in ("", host):
        return None
    rival, changes = claims[-1], 0
    for newer, earlier in pairwise(reversed(claims)):
        if newer.at_ms - earlier.at_ms > FEUD_GAP_MS or earlier.host not in (host, rival.host):
            break
        changes += newer.host != earlier.host and not newer.is_planned
    if changes < FEUD_CHANGES:
        return None
    whole = min(LONGEST_YIELD_S, FIRST_YIELD_S * 2.0 ** min(changes - FEUD_CHANGES, 10))
    remaining = whole - max(0, now_ms - rival.at_ms) / 1000
    return (remaining, rival) if remaining > 0 else None
