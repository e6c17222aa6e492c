"""FORWARD records as any producer may write them, and what becomes of them: `(name, key, value, headers, reason)`.

`reason` is the dead letter's, None for a good record. The codec and Spark's columns run this one corpus. The
topic is `abcast.orders.forward.nyc`, or what the relay from sfo fills there: as in a hub, and as in a mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from connectors.kafka import codec
from ordering.records import MAX_HEADERS_BYTES, MAX_NUMBER, MAX_PAYLOAD_BYTES

TOPIC = "abcast.orders.forward.nyc"
RELAYED = "abcast.orders.relayed-sfo.nyc"
TIMESTAMP_MS = 1_700_000_000_123

RawHeaders = Sequence[tuple[str, bytes]]


class Case(NamedTuple):
    """One record, and why it is a dead letter (or None)."""

    name: str
    key: bytes | None
    value: bytes | None
    headers: RawHeaders
    reason: str | None
    topic: str = TOPIC
    timestamp_ms: int = TIMESTAMP_MS


ALICE = b"nyc/alice"
GOOD: RawHeaders = (
    ("abcast-version", b"1"),
    ("abcast-kind", b"message"),
    ("abcast-sender", ALICE),
    ("abcast-incarnation", b"1"),
    ("abcast-local-seqno", b"1"),
)


def _with(name: str, value: bytes) -> RawHeaders:
    return [(known, value if known == name else old) for known, old in GOOD]


def _without(name: str) -> RawHeaders:
    return [header for header in GOOD if header[0] != name]


def _number_cases(header: str, reason: str) -> list[Case]:
    wrong = {
        "is missing": _without(header),
        "is empty": _with(header, b""),
        "is 0": _with(header, b"0"),
        "is negative": _with(header, b"-1"),
        "has a plus": _with(header, b"+1"),
        "has a leading zero": _with(header, b"01"),
        "has a blank before it": _with(header, b" 1"),
        "has a line end behind it": _with(header, b"1\n"),
        "has an underscore": _with(header, b"1_0"),
        "is a fraction": _with(header, b"1.0"),
        "is hexadecimal": _with(header, b"0x1"),
        "has an exponent": _with(header, b"1e3"),
        "is a word": _with(header, b"one"),
        "has digits that are not ASCII": _with(header, "\N{ARABIC-INDIC DIGIT ONE}".encode()),
        "is not UTF-8": _with(header, b"\xff"),
        "has 19 digits": _with(header, b"1" + b"0" * 18),
        "overflows 64 bits": _with(header, b"9" * 40),
    }
    return [Case(f"{header} {what}", ALICE, b"x", headers, reason) for what, headers in wrong.items()]


BOB = b"sfo/bob"
RELAY = b"sfo/abcast.relay"
VIEW = b'{"members":[["sfo/bob",7],["sfo/carol",9]],"joined":["sfo/carol"],"left":[],"suspected":[],"flush":0}'
MARK = ("abcast-relayed-from", b"sfo/abcast.orders.data.sfo-0:7")


def _asked(
    name: str, reason: str | None, sender: bytes = BOB, kind: str = "message", value: bytes | None = b"x"
) -> Case:
    """What the relay to a hub's home brings; or what a relay of a mesh says for itself."""
    return Case(f"relayed, {name}", sender, value, [*_own(sender, kind), MARK], reason, RELAYED)


def _linked(
    name: str,
    reason: str | None,
    sender: bytes = BOB,
    kind: str = "message",
    value: bytes | None = b"x",
    link: bytes = b"17 4 9 3",
    more: RawHeaders = (),
) -> Case:
    """What a link of a mesh brings."""
    return Case(f"linked, {name}", sender, value, [*_own(sender, kind), (codec.H_LINK, link), *more], reason, RELAYED)


def _own(sender: bytes, kind: str) -> RawHeaders:
    return [GOOD[0], ("abcast-kind", kind.encode()), ("abcast-sender", sender), *GOOD[3:]]


def _link_cases() -> list[Case]:
    wrong = {
        "is empty": b"",
        "has three numbers": b"17 4 9",
        "has five numbers": b"17 4 9 3 1",
        "has two blanks": b"17 4  9 3",
        "has a blank before it": b" 17 4 9 3",
        "has a blank behind it": b"17 4 9 3 ",
        "has a line end behind it": b"17 4 9 3\n",
        "has tabs": b"17\t4\t9\t3",
        "has commas": b"17,4,9,3",
        "has a leading zero": b"17 4 09 3",
        "has a plus": b"17 4 +9 3",
        "is negative": b"17 4 9 -3",
        "has a fraction": b"17 4 9.0 3",
        "has a word": b"17 4 nine 3",
        "has 19 digits": b"17 4 9 1000000000000000000",
        "has digits that are not ASCII": "17 4 \N{ARABIC-INDIC DIGIT NINE} 3".encode(),
        "is not UTF-8": b"17 4 9 \xff",
        "has a zero byte": b"17 4 9 3\0",
    }
    return [_linked(f"what the link says {what}", codec.WRONG_LINK, link=link) for what, link in wrong.items()]


HIGHEST = (TIMESTAMP_MS + codec.CLOCK_AHEAD_MS) * codec.INCARNATIONS_A_MS
"""The highest incarnation that a record may have, by its timestamp."""


def _of(incarnation: int) -> RawHeaders:
    return _with("abcast-incarnation", b"%d" % incarnation)


CORPUS: tuple[Case, ...] = (
    Case("good", ALICE, b"buy 100", GOOD, None),
    Case("empty payload", ALICE, b"", GOOD, None),
    *(
        Case(f"kind {kind}", ALICE, b"", _with("abcast-kind", kind.encode()), None)
        for kind in ("join", "leave", "heartbeat", "settings", "start-flush", "flush-ok", "stop-flush")
    ),
    Case("a view from outside", ALICE, b"x", _with("abcast-kind", b"view"), codec.WRONG_KIND),
    Case("payload of zero bytes and wild bytes", ALICE, b"\0\xff\n\r", GOOD, None),
    Case("largest payload", ALICE, b"x" * MAX_PAYLOAD_BYTES, GOOD, None),
    Case("headers in another order", ALICE, b"x", tuple(reversed(GOOD)), None),
    Case("the largest local seqno", ALICE, b"x", _with("abcast-local-seqno", b"9" * 18), None),
    Case("the largest incarnation, of a time that is not known", ALICE, b"x", _of(MAX_NUMBER), None, TOPIC, 0),
    Case("an incarnation of less than a day ahead", ALICE, b"x", _of(HIGHEST), None),
    Case("an incarnation of more than a day ahead", ALICE, b"x", _of(HIGHEST + 1), codec.FUTURE_INCARNATION),
    Case("the largest incarnation", ALICE, b"x", _of(MAX_NUMBER), codec.FUTURE_INCARNATION),
    Case("an incarnation ahead, of a time beyond all", ALICE, b"x", _of(MAX_NUMBER), None, TOPIC, 250_000_000_000_000),
    Case("application headers", ALICE, b"x", [*GOOD, ("trace", b"\xff\0"), ("trace", b"2"), ("", b"")], None),
    Case(
        "application headers between ours", ALICE, b"x", [GOOD[0], ("a", b"1"), *GOOD[1:4], ("b", b"2"), GOOD[4]], None
    ),
    Case("application header like ours in capitals", ALICE, b"x", [*GOOD, ("Abcast-Version", b"9")], None),
    Case("longest address", b"nyc/" + b"n" * 128, b"x", _with("abcast-sender", b"nyc/" + b"n" * 128), None),
    Case("a header of ours twice, the same", ALICE, b"x", [*GOOD, GOOD[4]], codec.REPEATED_HEADER),
    Case("a header of ours twice, another", ALICE, b"x", [*GOOD, ("abcast-local-seqno", b"2")], codec.REPEATED_HEADER),
    Case("a header of DATA", ALICE, b"x", [*GOOD, ("abcast-seqno", b"7")], codec.RESERVED_HEADER),
    Case("a header nobody knows", ALICE, b"x", [*GOOD, ("abcast-colour", b"red")], codec.RESERVED_HEADER),
    Case("the bare prefix as a header", ALICE, b"x", [*GOOD, ("abcast-", b"")], codec.RESERVED_HEADER),
    Case("largest headers", ALICE, b"x", [*GOOD, ("h", b"x" * (MAX_HEADERS_BYTES - 1))], None),
    Case("headers too large", ALICE, b"x", [*GOOD, ("h", b"x" * MAX_HEADERS_BYTES)], codec.HEADERS_TOO_LARGE),
    Case("no headers", ALICE, b"x", (), codec.WRONG_VERSION),
    Case("no version", ALICE, b"x", _without("abcast-version"), codec.WRONG_VERSION),
    Case("another version", ALICE, b"x", _with("abcast-version", b"2"), codec.WRONG_VERSION),
    Case("a version with a blank", ALICE, b"x", _with("abcast-version", b"1 "), codec.WRONG_VERSION),
    Case("a version that is not UTF-8", ALICE, b"x", _with("abcast-version", b"\xff"), codec.WRONG_VERSION),
    Case("no kind", ALICE, b"x", _without("abcast-kind"), codec.WRONG_KIND),
    Case("an unknown kind", ALICE, b"x", _with("abcast-kind", b"gossip"), codec.WRONG_KIND),
    Case("the sequencer's kind", ALICE, b"x", _with("abcast-kind", b"epoch"), codec.WRONG_KIND),
    Case("a kind in capitals", ALICE, b"x", _with("abcast-kind", b"Message"), codec.WRONG_KIND),
    Case("no sender", ALICE, b"x", _without("abcast-sender"), codec.NO_SENDER),
    Case("an empty sender", b"", b"x", _with("abcast-sender", b""), codec.NO_SENDER),
    Case("a sender in UTF-8", "nyc/zoë".encode(), b"x", _with("abcast-sender", "nyc/zoë".encode()), codec.NO_SENDER),
    Case("a sender that is not UTF-8", b"nyc/\xff", b"x", _with("abcast-sender", b"nyc/\xff"), codec.NO_SENDER),
    Case("no key", None, b"x", GOOD, codec.KEY_IS_NOT_SENDER),
    Case("an empty key", b"", b"x", GOOD, codec.KEY_IS_NOT_SENDER),
    Case("another key", b"nyc/bob", b"x", GOOD, codec.KEY_IS_NOT_SENDER),
    Case("a key that is not UTF-8", b"\xff", b"x", GOOD, codec.KEY_IS_NOT_SENDER),
    *_number_cases("abcast-incarnation", codec.WRONG_INCARNATION),
    *_number_cases("abcast-local-seqno", codec.WRONG_LOCAL_SEQNO),
    Case("another site", b"sfo/bob", b"x", _with("abcast-sender", b"sfo/bob"), codec.WRONG_SITE),
    Case("a site that begins like ours", b"nyc2/bob", b"x", _with("abcast-sender", b"nyc2/bob"), codec.WRONG_SITE),
    Case("no site", b"alice", b"x", _with("abcast-sender", b"alice"), codec.WRONG_SITE),
    _asked("from the neighbour", None),
    Case(
        "relayed, with an application header", BOB, b"x", [*_own(BOB, "message"), MARK, ("trace", b"1")], None, RELAYED
    ),
    Case("relayed, without a mark", BOB, b"x", _own(BOB, "message"), None, RELAYED),
    Case("relayed, a mark in front", BOB, b"x", [MARK, *_own(BOB, "message")], None, RELAYED),
    Case("relayed, marked twice", BOB, b"x", [*_own(BOB, "message"), MARK, MARK], codec.REPEATED_HEADER, RELAYED),
    *(_asked(f"kind {kind}", None, kind=kind) for kind in ("join", "leave", "heartbeat", "settings", "start-flush")),
    Case(
        "relayed, an incarnation of more than a day ahead",
        BOB,
        b"x",
        [*GOOD[:2], (GOOD[2][0], BOB), (GOOD[3][0], b"%d" % (HIGHEST + 1)), GOOD[4], MARK],
        codec.FUTURE_INCARNATION,
        RELAYED,
    ),
    _asked("a sender of a third site", codec.WRONG_SITE, b"lax/carol"),
    _asked("a sender of a site that begins like the neighbour", codec.WRONG_SITE, b"sfo2/carol"),
    _asked("a sender of this site", codec.WRONG_SITE, ALICE),
    _asked("a sender without a site", codec.WRONG_SITE, b"bob"),
    _asked("a skip", codec.WRONG_LINK, RELAY, "skip", b""),
    _asked("a member's skip", codec.WRONG_LINK, kind="skip", value=b""),
    _asked("a view of its site", None, RELAY, "remote-view", VIEW),
    _asked("a view that is none", None, RELAY, "remote-view", b"[\xff"),
    _asked("a view of a third site", None, RELAY, "remote-view", b'{"members":[["lax/dan",1]]}'),
    _asked("a heartbeat", None, RELAY, "heartbeat", b""),
    _asked("a farewell", None, RELAY, "leave", b""),
    _asked("the beginning of a session", None, RELAY, "link-start", b'{"epoch":4,"origins":{},"seqno":8}'),
    _asked("a beginning that is none", None, RELAY, "link-start", b"[\xff"),
    _asked("a beginning told by a member", codec.NOT_THE_RELAY, kind="link-start"),
    _asked("a beginning told from afar", codec.WRONG_SITE, b"lax/abcast.relay", "link-start"),
    _asked("a message of the relay", codec.NOT_THE_RELAY, RELAY),
    _asked("a relay that joins", codec.NOT_THE_RELAY, RELAY, "join", b""),
    _asked("a view told by a member", codec.NOT_THE_RELAY, BOB, "remote-view", VIEW),
    _asked("a view told from afar", codec.WRONG_SITE, b"lax/abcast.relay", "remote-view", b'{"members":[]}'),
    _asked("a heartbeat from afar", codec.WRONG_SITE, b"lax/abcast.relay", "heartbeat", b""),
    _asked("no view at all", codec.NO_PAYLOAD, RELAY, "remote-view", None),
    _linked("from the neighbour", None),
    _linked("with application headers", None, more=[("trace", b"1"), ("trace", b"\xff")]),
    _linked("from afar", None, b"lax/carol"),
    _linked("of a site that begins like this one", None, b"nyc2/carol"),
    _linked("the first numbers", None, link=b"0 0 0 0"),
    _linked("the largest numbers", None, link=b"%d %d %d %d" % (MAX_NUMBER, MAX_NUMBER, MAX_NUMBER, MAX_NUMBER)),
    _linked("no payload", codec.NO_PAYLOAD, value=None),
    Case("linked, a link in front", BOB, b"x", [(codec.H_LINK, b"17 4 9 3"), *_own(BOB, "message")], None, RELAYED),
    Case(
        "linked, an incarnation of more than a day ahead",
        BOB,
        b"x",
        [*GOOD[:2], (GOOD[2][0], BOB), (GOOD[3][0], b"9" * 18), GOOD[4], (codec.H_LINK, b"17 4 9 3")],
        None,
        RELAYED,
    ),
    _linked("a mark, too", None, more=[MARK]),
    _linked("a link twice", codec.REPEATED_HEADER, more=[(codec.H_LINK, b"17 4 9 3")]),
    _linked("a header that nobody knows", codec.RESERVED_HEADER, more=[("abcast-visited", b"sfo")]),
    _linked("a sender of this site", codec.WRONG_SITE, ALICE),
    _linked("a sender without a site", codec.WRONG_SITE, b"bob"),
    _linked("a message of the relay", codec.NOT_THE_RELAY, RELAY),
    _linked("a message of a relay afar", codec.NOT_THE_RELAY, b"lax/abcast.relay"),
    _linked("a skip", None, RELAY, "skip", b""),
    _linked("a member's skip", codec.NOT_THE_RELAY, BOB, "skip", b""),
    _linked("a skip from afar", codec.NOT_THE_RELAY, b"lax/abcast.relay", "skip", b""),
    _linked("this site's skip", codec.WRONG_SITE, b"nyc/abcast.relay", "skip", b""),
    _linked("a view of its site", None, RELAY, "remote-view", VIEW),
    _linked("a view told by a member", codec.NOT_THE_RELAY, BOB, "remote-view", VIEW),
    *(
        _linked(f"kind {kind} of {sender.decode()}", codec.WRONG_LINK, sender, kind, b"")
        for kind, sender in (
            ("heartbeat", RELAY),
            ("leave", RELAY),
            ("link-start", RELAY),
            ("join", BOB),
            ("leave", BOB),
        )
    ),
    *_link_cases(),
    Case("a remote view that no relay brought", ALICE, VIEW, _with("abcast-kind", b"remote-view"), codec.NOT_THE_RELAY),
    Case(
        "a member with a relay's name",
        b"nyc/abcast.relay",
        b"x",
        _with("abcast-sender", b"nyc/abcast.relay"),
        codec.NOT_THE_RELAY,
    ),
    Case("a skip that no relay brought", ALICE, b"", _with("abcast-kind", b"skip"), codec.WRONG_LINK),
    Case("a beginning that no relay brought", ALICE, b"{}", _with("abcast-kind", b"link-start"), codec.NOT_THE_RELAY),
    Case("a link from a member", ALICE, b"x", [*GOOD, (codec.H_LINK, b"17 4 9 3")], codec.NOT_RELAYED),
    Case("a link from a member, malformed", ALICE, b"x", [*GOOD, (codec.H_LINK, b"")], codec.NOT_RELAYED),
    Case("a relay's mark from a member", ALICE, b"x", [*GOOD, MARK], codec.NOT_RELAYED),
    Case("null payload", ALICE, None, GOOD, codec.NO_PAYLOAD),
    Case("payload too large", ALICE, b"x" * (MAX_PAYLOAD_BYTES + 1), GOOD, codec.PAYLOAD_TOO_LARGE),
    Case(
        "two reasons: the first in the list counts", b"nyc/bob", None, _without("abcast-version"), codec.WRONG_VERSION
    ),
)
"""An address that only `ordering.sequencer` refuses (`nyc/`, `nyc/a/b`) would be good here: it is a dead letter one
step later."""
