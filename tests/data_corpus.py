"""Records of a DATA topic, and whether they are DATA: for the codec, and for its form in Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

ALICE = b"sfo/alice"
MESSAGE = b"2 message 1 1 1 1 0 t-0:1 0"
EPOCH = b"2 epoch - - - 7 - - -"
VIEW = b"2 view - - 3 1 1 - -"


class Case(NamedTuple):
    """A record of a data topic."""

    name: str
    key: bytes | None
    headers: Sequence[tuple[str, Any]]
    is_data: bool


def _data(name: str, key: bytes | None, text: bytes | None) -> Case:
    return Case(name, key, [("abcast", text)], is_data=True)


def _stray(name: str, text: bytes | None, key: bytes | None = ALICE) -> Case:
    return Case(f"stray: {name}", key, [("abcast", text)], is_data=False)


CASES = (
    _data("a message", ALICE, MESSAGE),
    _data("a message of a link", ALICE, MESSAGE + b" 1.2.3.4"),
    _data("of no link", ALICE, MESSAGE + b" -"),
    _data("fields that nobody knows yet", ALICE, MESSAGE + b" - \xff later\n "),
    _data("a kind that nobody knows yet", ALICE, MESSAGE.replace(b"message", b"later-kind")),
    _data("a topic with dashes", ALICE, MESSAGE.replace(b"t-0", b"abcast.g-1.forward.n-y-c-12")),
    _data("18 digits", ALICE, MESSAGE.replace(b" 1 1 1", b" " + b"9" * 18 + b" 1 1")),
    _data("an epoch record", None, EPOCH),
    _data("an epoch record with more", None, EPOCH + b" more"),
    _data("a view", None, VIEW),
    _data("an entry", None, b"2 entry - 4 - 1 - - -"),
    Case("application headers", ALICE, [("abcast", MESSAGE), ("mine", b"1"), ("null", None)], is_data=True),
    Case("stray: no header", ALICE, [], is_data=False),
    Case("stray: another header first", ALICE, [("mine", b""), ("abcast", MESSAGE)], is_data=False),
    _stray("null", None),
    _stray("empty", b""),
    _stray("version 1", MESSAGE.replace(b"2 ", b"1 ", 1)),
    _stray("too few fields", b"2 message 1 1"),
    _stray("one field less", b"2 message 1 1 1 1 0 t-0:1"),
    _stray("no seqno", b"2 message 1 1 - 1 0 t-0:1 0"),
    _stray("seqno 0", b"2 message 1 1 0 1 0 t-0:1 0"),
    _stray("a word for a seqno", b"2 message 1 1 one 1 0 t-0:1 0"),
    _stray("a signed seqno", b"2 message 1 1 +1 1 0 t-0:1 0"),
    _stray("a seqno with 07", b"2 message 1 1 07 1 0 t-0:1 0"),
    _stray("an epoch below 0", b"2 message 1 1 1 -1 0 t-0:1 0"),
    _stray("19 digits", b"2 message 1 1 1 " + b"1" * 19 + b" 0 t-0:1 0"),
    _stray("other digits", "2 message 1 1 \N{ARABIC-INDIC DIGIT ONE} 1 0 t-0:1 0".encode()),
    _stray("no source", b"2 message 1 1 1 1 0 - 0"),
    _stray("a source without an offset", b"2 message 1 1 1 1 0 t-0 0"),
    _stray("a kind that is not ASCII", b"2 message\xff 1 1 1 1 0 t-0:1 0"),
    _stray("the kind of strays", MESSAGE.replace(b"message", b"(stray)")),
    _stray("two blanks", b"2 message 1 1 1  1 0 t-0:1 0"),
    _stray("a line end behind it", MESSAGE + b"\n"),
    _stray("a broken link", MESSAGE + b" 1.2.3"),
    _stray("an epoch record with the fields of a message", MESSAGE.replace(b"message", b"epoch")),
    _stray("an epoch record with a key", EPOCH),
    _stray("an epoch record without an epoch", EPOCH.replace(b"7", b"-"), None),
    _stray("a view with a key", VIEW),
    _stray("an entry with a key", b"2 entry - 4 - 1 - - -"),
    _stray("an entry with the fields of a message", MESSAGE.replace(b"message", b"entry")),
    _stray("an entry without a number", b"2 entry - - - 1 - - -", None),
    _stray("a view without a seqno", VIEW.replace(b"3", b"-"), None),
    _stray("a message of nobody", MESSAGE, None),
    _stray("a message of an empty key", MESSAGE, b""),
    _stray("a message without a site", MESSAGE, b"alice"),
    _stray("a key that is not ASCII", MESSAGE, b"sfo/\xffalice"),
    _stray("a key with a line end", MESSAGE, ALICE + b"\n"),
    _stray("a message of the sequencer's own", b"2 message - - 3 1 1 - -", None),
)
