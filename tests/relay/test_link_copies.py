"""A mesh's relay makes the copies of a message that the rule of links makes, though it asks the rule once a sender."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from connectors.kafka.codec.codec import decode_data, encode_data, forward_headers
from connectors.kafka.codec.plain_record import PlainRecord
from connectors.kafka.connection.sites import Direction
from connectors.relay.process.copying import MadeRecord, copier
from connectors.relay.rules import mesh_data
from ordering.base.packs import encode_pack
from ordering.base.records import MESSAGE, MESSAGES, STRAY, VIEW, Data, Link, Source
from ordering.sequencer.links import carry_each
from tests import data_corpus
from tests.ordering.linked import FAR, LAX, SITE, LinkedLog

DATA, FILLED = f"abcast.g.data.{LAX}", f"abcast.g.relayed-{LAX}.{SITE}"
SESSION, NOT_CARRIED = 17, {SITE, "other"}
RULE = mesh_data(Direction(LAX, SITE), {DATA: SESSION}, NOT_CARRIED)


def record_of(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, Any]]) -> PlainRecord:
    return PlainRecord(DATA, 0, 5, 1_700_000_000_000, key, value, list(headers))


def by_rule(record: PlainRecord) -> list[MadeRecord]:
    data = decode_data(record.key, record.value, record.headers)
    made = carry_each(data, LAX, SESSION, lambda origin: origin not in NOT_CARRIED) if data.kind != STRAY else []
    return [
        MadeRecord(
            FILLED,
            said.sender.encode(),
            said.payload,
            forward_headers(
                said.incarnation, said.local_seqno, data.headers if said.kind == MESSAGE else (), said.kind, said.link
            ),
        )
        for said in made
    ]


@given(st.integers(0, 2**32))
def test_all_sorts_of_data(seed: int) -> None:
    """Takeovers, views, refused records, messages of the site and of another, in one copier after each other."""
    make = copier(RULE)
    for data in LinkedLog(seed).data[FAR]:
        record = record_of(*encode_data(data))
        assert list(make(record)) == by_rule(record)


numbers = st.one_of(st.integers(1, 10**18 - 1), st.sampled_from([1, 10**17, 10**17 + 1, 10**17 + 6, 10**18 - 1]))
messages = st.builds(
    Data,
    st.sampled_from([MESSAGE] * 4 + [VIEW, "later-kind"]),
    numbers,
    numbers,
    numbers,
    st.sampled_from([f"{LAX}/a", f"{LAX}/a", f"{LAX}2/a", f"{FAR}/a", f"{SITE}/a", "other/a", "bad"]),
    numbers,
    numbers,
    st.sampled_from([b"", b"x", b"\x00\xff%(SEQNO)b"]),
    st.just(Source(f"abcast.g.forward.{LAX}", 0, 7)),
    st.sampled_from([(), (("trace", b"%b"),), (("a", b""), ("a", b"\xff"))]),
    numbers,
    st.one_of(st.none(), st.builds(Link, numbers, numbers, numbers, st.one_of(st.just(0), numbers))),
    st.sampled_from([1, 1, 1, 3]),
)


@given(st.lists(messages, max_size=20), st.sampled_from([b""] * 4 + [b" -", b" 0", b" \xff later", b"\n"]))
@example([Data(MESSAGE, 1, 2, 3, f"{LAX}/a", 4, 5, b"x", Source("t", 0, 7))] * 2, b" -")
def test_any_messages(sent: list[Data], more: bytes) -> None:
    """Messages of few senders, so most find the answer for another one; and records that are nearly messages."""
    make = copier(RULE)
    for data in sent:
        key, value, [(name, text), *headers] = encode_data(data)
        for record in (record_of(key, value, [(name, text + more), *headers]), record_of(key, None, [(name, text)])):
            assert list(make(record)) == by_rule(record)


@pytest.mark.parametrize("case", data_corpus.CASES, ids=lambda case: case.name)
def test_the_corpus(case: data_corpus.Case) -> None:
    make, record = copier(RULE), record_of(case.key, b"x", case.headers)
    good = record_of(data_corpus.ALICE, b"y", [("abcast", data_corpus.MESSAGE)])
    for each in (good, record, good):
        assert list(make(each)) == by_rule(each)


def test_each_message_of_a_pack_goes_alone() -> None:
    data = Data(MESSAGES, 1, 2, 3, f"{LAX}/a", 4, 5, encode_pack([b"x", b"y"]), Source(DATA, 0, 7), count=2)
    record = record_of(*encode_data(data))
    assert [made.value for made in copier(RULE)(record)] == [b"x", b"y"]
    assert list(copier(RULE)(record)) == by_rule(record)


def test_the_rule_is_asked_once_for_a_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def asks(data: Data, *rest: Any) -> Any:
        asked.append(data.sender)
        return carry_each(data, *rest)

    monkeypatch.setattr("ordering.sequencer.links.carry_each", asks)
    make = copier(RULE)
    for seqno in range(1, 20):
        sender = f"{LAX}/{'ab'[seqno % 2]}"
        assert make(record_of(*encode_data(Data(MESSAGE, 1, seqno, 0, sender, 1, seqno, b"x", Source(DATA, 0, seqno)))))
    assert asked == [f"{LAX}/b", f"{LAX}/a"]
