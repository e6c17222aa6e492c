"""Each reader of JSON that another process wrote answers any bytes as it promises: a value, or its one error."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from connectors.client.deliveries.cut import Cut
from connectors.client.state.state_letters import H_STATE, decode_state_letter
from connectors.client.tail.merged_log import ordered
from connectors.kafka.codec.letter_codec import WrittenLetter
from connectors.kafka.log.acts import Act, act_header, read_act
from connectors.kafka.log.effective import effective
from ordering.base.canonical import canonical_json
from ordering.base.errors import ProtocolViolation, UsageError
from ordering.base.reader import Seal
from ordering.base.records import (
    FLUSH_COMPLETED,
    FORGET,
    LINK_START,
    REMOTE_VIEW,
    SETTINGS,
    START_FLUSH,
    STOP_FLUSH,
    VIEW,
    Data,
    Partition,
)
from ordering.casts.casts import OrderedRecord
from ordering.casts.causal import CausalState
from ordering.casts.fifo import FifoState
from ordering.casts.merging import MergedState, Merger
from ordering.letters.letter_care import Base
from ordering.membership.forgetting import from_payload
from ordering.membership.membership import (
    FormerMember,
    MemberIncarnation,
    Membership,
    ReceivedRow,
    RemoteSite,
    refused_kind,
    remote_members,
)
from ordering.membership.settings import DEFAULT_SETTINGS
from ordering.participant.events import KnownGroup
from ordering.participant.participant import FlushRequest, Participant, step
from ordering.participant.participant_table import ParticipantPhase
from ordering.sequencer.links import LinkRow, LinkStart
from ordering.sequencer.sequencer import absorb, seal
from ordering.sequencer.state import SequencerState

ROOT = Path(__file__).parents[2]
ALICE = MemberIncarnation("nyc/a", 7)
VALUES: tuple[Any, ...] = (None, True, -1, 1.5, 1e999, 10**400, "x", [], [[]], [["nyc/a", "7"]], {}, {"a": 1}, "@deep@")
DEEP = "[" * 100_000 + "]" * 100_000


def variants(body: Any) -> Iterator[Any]:
    """Yield the JSON value with each part of it replaced, and with each part of an object or list left out."""
    yield from VALUES
    if isinstance(body, dict):
        for name, part in body.items():
            rest = {other: value for other, value in body.items() if other != name}
            yield rest
            yield from ({**rest, name: variant} for variant in variants(part))
    elif isinstance(body, list):
        for at, part in enumerate(body):
            yield [*body[:at], *body[at + 1 :]]
            yield from ([*body[:at], variant, *body[at + 1 :]] for variant in variants(part))


def texts(body: Any) -> Iterator[bytes]:
    yield from (b"", b"{", b"\xff", DEEP[:100_000].encode(), b'{"a":' * 100_000)
    for variant in variants(body):
        yield json.dumps(variant).replace('"@deep@"', DEEP).encode()


class Case(NamedTuple):
    """A reader, and JSON that it reads. `error`: the one error that it may raise."""

    read: Callable[[bytes], object]
    body: Any
    error: type[Exception] | None = ProtocolViolation


def data(kind: str, raw: bytes, sender: str) -> Data:
    return Data(kind, 1, 2, 1, sender, 7, 1, raw)


def absorbing(kind: str, sender: str = "") -> Callable[[bytes], object]:
    before = absorb(SequencerState("g"), [seal(1), Data(SETTINGS, 1, 1, 0, "nyc/x", 1, 1, b'{"closed":true}')])
    return lambda raw: absorb(before, [data(kind, raw, sender)])


def knowing(kind: str, sender: str = "") -> Callable[[bytes], object]:
    return lambda raw: KnownGroup(flush_id=1).after(kind, 2, 1, sender, raw)


VIEW_BODY = {"members": [["nyc/a", 7]], "joined": ["nyc/a"], "left": ["nyc/b"], "suspected": [], "flush": 0}
OWN_REMOTE = {"site": "lon", "members": [["lon/a", 7]], "silent": False}
STATE = SequencerState(
    "g",
    1,
    5,
    received={"nyc/a": ReceivedRow(7, 1)},
    positions={Partition("abcast.g.forward.nyc", 0): 4},
    decided={Partition("abcast.g.forward.nyc", 0): 4},
    seals=(Seal(1, 1),),
    links={"lon": LinkRow(1, 1, 1)},
    membership=Membership(members=(ALICE,), left=(FormerMember("nyc/b", 1, 1),), remote={"lon": RemoteSite((ALICE,))}),
)
MERGED = MergedState(CausalState(1, (ALICE,), (1,), 5, (1,)), FifoState({"nyc/a": ReceivedRow(7, 1)}))


def body_of(raw: bytes) -> Any:
    return json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)


def zipped(read: Callable[[bytes], object]) -> Callable[[bytes], object]:
    return lambda raw: read(gzip.compress(raw, 1, mtime=0))


def seen_by_a_member(kind: str, sender: str = "") -> Callable[[bytes], object]:
    return lambda raw: step(
        Participant(ALICE, ParticipantPhase.MEMBER, request=FlushRequest(1, id=1)), data(kind, raw, sender)
    )


def letter(raw: bytes) -> Any:
    return WrittenLetter("nyc/b", 1, 1, b"", ((H_STATE, raw),))


CASES: dict[str, Case] = {
    "absorb a view": Case(absorbing(VIEW), VIEW_BODY),
    "absorb settings": Case(absorbing(SETTINGS, "nyc/x"), {"closed": True, "later": 1}),
    "absorb a forget": Case(absorbing(FORGET, "nyc/x"), {"senders": [["nyc/a", 7, 1]]}),
    "absorb a remote view": Case(absorbing(REMOTE_VIEW), OWN_REMOTE),
    "absorb a relay's view": Case(absorbing(REMOTE_VIEW, "lon/abcast.relay"), {"members": [["lon/a", 7]]}),
    "absorb a start-flush": Case(absorbing(START_FLUSH), {"requester": "nyc/a"}),
    "absorb a link-start": Case(absorbing(LINK_START, "lon/abcast.relay"), {"epoch": 1, "seqno": 1, "origins": {}}),
    "know a view": Case(knowing(VIEW), VIEW_BODY),
    "know a remote view": Case(knowing(REMOTE_VIEW), OWN_REMOTE),
    "know a start-flush": Case(knowing(START_FLUSH), {"requester": "nyc/a"}),
    "know a stop-flush": Case(knowing(STOP_FLUSH), {"reason": "x"}),
    "a member's stop-flush": Case(seen_by_a_member(STOP_FLUSH), {"reason": "x"}),
    "a member's flush-completed": Case(seen_by_a_member(FLUSH_COMPLETED), {"flush": 1}),
    "a member's refused": Case(seen_by_a_member("refused", ALICE.address), {"kind": "start-flush", "reason": "x"}),
    "a member's settings": Case(seen_by_a_member(SETTINGS), {"closed": True, "later": 1}),
    "a member's forget": Case(seen_by_a_member(FORGET), {"senders": [["nyc/a", 7, 1]]}),
    "settings for casts": Case(lambda raw: Merger().step(OrderedRecord(1, SETTINGS, payload=raw)), {"flush": True}),
    "a view for casts": Case(
        lambda raw: ordered(effective((2, 5, VIEW, None, 0, 0, 1, 1, 0, (), raw, 0))),
        {"members": [["a", 1]], "flush": 0},
    ),
    "a snapshot": Case(zipped(SequencerState.from_bytes), body_of(STATE.to_bytes())),
    "a causal state": Case(zipped(CausalState.from_bytes), body_of(MERGED.causal.to_bytes())),
    "a fifo state": Case(FifoState.from_bytes, body_of(MERGED.fifo.to_bytes())),
    "a merged state": Case(MergedState.from_bytes, body_of(MERGED.to_bytes())),
    "a cut": Case(Cut.from_bytes, body_of(Cut(MERGED, {}).to_bytes())),
    "settings": Case(DEFAULT_SETTINGS.updated, {"closed": True, "suspect_after_ms": 1}, UsageError),
    "a forget": Case(from_payload, {"senders": [["nyc/a", 7, 1]]}, None),
    "a relay's view": Case(lambda raw: remote_members("lon/abcast.relay", raw), {"members": [["lon/a", 7]]}, None),
    "a link-start": Case(LinkStart.from_json, {"epoch": 1, "seqno": 1, "origins": {"lon": 1}}, None),
    "a base of letters": Case(lambda raw: Base.parse(1, raw), {"lost": 1, "received": {"nyc/a": [7, 1]}}, None),
    "an act": Case(lambda raw: read_act([(act_header(Act("a", "", "", "", 0))[0], raw)], 0), {"act": "a"}, None),
    "a letter of a state": Case(lambda raw: decode_state_letter(letter(raw)), ["chunk", 1, 2, 3, 4, 5], None),
    "what was refused": Case(refused_kind, {"kind": "join", "reason": "x"}, None),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_reads_or_says_that_it_can_t(case: Case) -> None:
    case.read(canonical_json(case.body) if isinstance(case.body, dict) else json.dumps(case.body).encode())
    for text in texts(case.body):
        error = raised_by(case.read, text)
        is_promised = error is None or (case.error is not None and isinstance(error, case.error))
        assert is_promised, f"{error!r:.300} for {text[:300]!r}"


def raised_by(read: Callable[[bytes], object], text: bytes) -> Exception | None:
    try:
        read(text)
    except Exception as error:  # noqa: BLE001 - looked at by the caller
        return error
    return None


def test_each_reader_catches_all_errors_of_reading() -> None:
    """The others read what the same process wrote, or name more errors than these themselves."""
    others = ("client/memory/outbox.py", "agreement/codec.py", "agreement/log.py")
    rooms = ("ordering", "connectors/client", "connectors/kafka")
    for path in (path for room in rooms for path in ROOT.glob(f"{room}/**/*.py")):
        text = path.read_text(encoding="utf-8")
        if "json.load" in text and not str(path).endswith(others):
            assert "UNREADABLE" in text, path
