"""FORWARD records as any producer may write them, and what becomes of them: `(name, key, value, headers, reason)`.

`reason` is the dead letter's, None for a good record. The codec and Spark's columns run this one corpus. The
topic is `abcast.orders.forward.nyc`, or what the relay from sfo fills there; the sites are nyc, sfo and lax.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from connectors import codec
from ordering.records import MAX_HEADERS_BYTES, MAX_PAYLOAD_BYTES

TOPIC = "abcast.orders.forward.nyc"
RELAYED = "abcast.orders.relayed-sfo.nyc"
SITES = ("nyc", "sfo", "lax")

RawHeaders = Sequence[tuple[str, bytes]]


class Case(NamedTuple):
    """One record, and why it is a dead letter (or None)."""

    name: str
    key: bytes | None
    value: bytes | None
    headers: RawHeaders
    reason: str | None
    topic: str = TOPIC


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


def _relayed(
    name: str, visited: bytes | None, reason: str | None, sender: bytes = BOB, *more: tuple[str, bytes]
) -> Case:
    return _relayed_kind("message", name, visited, reason, sender, b"x", *more)


def _relayed_kind(
    kind: str,
    name: str,
    visited: bytes | None,
    reason: str | None,
    sender: bytes,
    value: bytes | None,
    *more: tuple[str, bytes],
) -> Case:
    headers = [*_with("abcast-sender", sender), MARK, *more]
    headers[1] = ("abcast-kind", kind.encode())
    if visited is not None:
        headers.insert(5, ("abcast-visited", visited))
    return Case(f"relayed, {name}", sender, value, headers, reason, RELAYED)


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
    Case("largest numbers", ALICE, b"x", [*GOOD[:3], (GOOD[3][0], b"9" * 18), (GOOD[4][0], b"9" * 18)], None),
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
    _relayed("from the neighbour", b"sfo", None),
    _relayed("with an application header", b"sfo", None, BOB, ("trace", b"1")),
    _relayed("by the neighbour, from afar", b"lax,sfo", None, b"lax/carol"),
    _relayed("and sent to others too", b"sfo,lax", None),
    _relayed("no list", None, codec.FORGED_VISITED),
    _relayed("an empty list", b"", codec.FORGED_VISITED),
    _relayed("an empty name in the list", b"sfo,", codec.FORGED_VISITED),
    _relayed("a name that no site can have", b"sfo,n yc", codec.FORGED_VISITED),
    _relayed("a line end in the list", b"sfo\n", codec.FORGED_VISITED),
    _relayed("a list that is not UTF-8", b"sfo,\xff", codec.FORGED_VISITED),
    _relayed("a site twice", b"sfo,sfo", codec.FORGED_VISITED),
    _relayed("not by the neighbour", b"lax", codec.FORGED_VISITED, b"lax/carol"),
    _relayed("here before", b"sfo,nyc", codec.FORGED_VISITED),
    _relayed("a site that is not configured", b"sfo,fra", codec.UNKNOWN_SITE),
    _relayed("a sender of another site than the first", b"sfo", codec.WRONG_SITE, b"lax/carol"),
    _relayed("a sender of this site", b"sfo", codec.WRONG_SITE, ALICE),
    _relayed("the list twice", b"sfo", codec.REPEATED_HEADER, BOB, ("abcast-visited", b"sfo")),
    _relayed_kind("remote-view", "a view of its site", b"sfo", None, RELAY, VIEW),
    _relayed_kind("remote-view", "a view that is none", b"sfo", None, RELAY, b"[\xff"),
    _relayed_kind("remote-view", "a view of a third site", b"sfo", None, RELAY, b'{"members":[["lax/dan",1]]}'),
    _relayed_kind("heartbeat", "a heartbeat", b"sfo", None, RELAY, b""),
    _relayed_kind("leave", "a farewell", b"sfo", None, RELAY, b""),
    _relayed_kind("message", "a message of the relay", b"sfo", codec.NOT_THE_RELAY, RELAY, b"x"),
    _relayed_kind("join", "a relay that joins", b"sfo", codec.NOT_THE_RELAY, RELAY, b""),
    _relayed_kind("remote-view", "a view told by a member", b"sfo", codec.NOT_THE_RELAY, BOB, VIEW),
    _relayed_kind("remote-view", "from afar", b"lax,sfo", codec.NOT_THE_RELAY, b"lax/abcast.relay", b'{"members":[]}'),
    _relayed_kind("heartbeat", "a tick from afar", b"lax,sfo", codec.NOT_THE_RELAY, b"lax/abcast.relay", b""),
    _relayed_kind("remote-view", "no view at all", b"sfo", codec.NO_PAYLOAD, RELAY, None),
    Case("a remote view that no relay brought", ALICE, VIEW, _with("abcast-kind", b"remote-view"), codec.NOT_THE_RELAY),
    Case(
        "a member with a relay's name",
        b"nyc/abcast.relay",
        b"x",
        _with("abcast-sender", b"nyc/abcast.relay"),
        codec.NOT_THE_RELAY,
    ),
    Case("a list of sites from a member", ALICE, b"x", [*GOOD, ("abcast-visited", b"sfo")], codec.NOT_RELAYED),
    Case("a relay's mark from a member", ALICE, b"x", [*GOOD, MARK], codec.NOT_RELAYED),
    Case("null payload", ALICE, None, GOOD, codec.NO_PAYLOAD),
    Case("payload too large", ALICE, b"x" * (MAX_PAYLOAD_BYTES + 1), GOOD, codec.PAYLOAD_TOO_LARGE),
    Case(
        "two reasons: the first in the list counts", b"nyc/bob", None, _without("abcast-version"), codec.WRONG_VERSION
    ),
)
"""An address that only `ordering.sequencer` refuses (`nyc/`, `nyc/a/b`) would be good here: it is a dead letter one
step later."""
