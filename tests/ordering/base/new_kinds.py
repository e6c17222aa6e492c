"""Parts of abcast with three more rows in the table of kinds: `python -m tests.ordering.base.new_kinds PART`.

The table is read when its module is imported. So the rows are added to its source before any other module imports it.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

POLL, LOAD, TOTAL = "poll", "load", "total"
"""A kind of members, one of relays, and one of the sequencer's own."""
ROWS = """
    Kind("poll", Way.NEXT, WrittenBy.CLIENT, Rank.MEMBER),
    Kind("load", Way.NEWER, WrittenBy.RELAY, linked=Linked.MAYBE),
    Kind("total", Way.DECIDED, WrittenBy.SEQUENCER, across="load", watches=True),
"""
NYC, RELAYED = "abcast.orders.forward.nyc", "abcast.orders.relayed-far.nyc"
ALICE, BOB, RELAY = "nyc/alice", "nyc/bob", "far/abcast.relay"


def add_rows() -> None:
    """Import `ordering.base.kinds` with the new rows."""
    name = "ordering.base.kinds"
    assert name not in sys.modules
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    source = Path(spec.origin).read_text()
    begin, end = source.split("KINDS = (", 1)
    exec(compile(f"{begin}KINDS = ({ROWS}{end}", spec.origin, "exec"), vars(module))


def codec() -> None:
    from connectors.kafka.codec.codec import (
        NOT_THE_RELAY,
        RESERVED_NAME,
        WRONG_LINK,
        decode_data,
        decode_forward,
        encode_data,
        forward_headers,
    )
    from ordering.base.records import STRAY, Data, Link, Malformed, Source

    def judged(topic: str, sender: str, kind: str, link: Link | None = None) -> str:
        headers = forward_headers(1, 1, (), kind, link)
        record = decode_forward(Source(topic, 0, 0), sender.encode(), b"", headers)
        return record.reason if isinstance(record, Malformed) else record.kind

    assert judged(NYC, ALICE, POLL) == POLL
    assert judged(NYC, "nyc/abcast.admin", POLL) == RESERVED_NAME
    assert judged(RELAYED, "far/carol", POLL, Link(1, 1, 1, 0)) == WRONG_LINK
    assert judged(RELAYED, RELAY, POLL) == NOT_THE_RELAY
    assert judged(RELAYED, RELAY, LOAD) == judged(RELAYED, RELAY, LOAD, Link(1, 1, 1, 0)) == LOAD
    assert judged(NYC, ALICE, LOAD) == NOT_THE_RELAY
    poll = Data(POLL, 1, 2, 0, ALICE, 1, 1, source=Source(NYC, 0, 0), forwarded_at_ms=3)
    for data in (poll, Data(TOTAL, 1, 2, 1, payload=b"{}")):
        assert decode_data(*encode_data(data)) == data
    assert decode_data(*encode_data(Data(POLL, 1, 2, 1))).kind == STRAY


def decided(*sent: tuple[str, str], by_columns: bool = False, **settings: bool) -> list[tuple[str, str]]:
    """Decide records (sender, kind) behind the settings; return (kind or reason, payload) of those."""
    from ordering.base.records import SETTINGS, DeadLetter, Forward, Source
    from ordering.sequencer.sequencer import step
    from ordering.sequencer.state import SequencerState
    from tests.simulator.columns import step_by_columns

    records, local_seqnos = [], {ALICE: 0, BOB: 0, RELAY: 0, "nyc/operator": 0}
    for offset, (sender, kind) in enumerate([("nyc/operator", SETTINGS), *sent]):
        local_seqnos[sender] += 1 if kind != LOAD else 5
        payload = json.dumps(settings).encode() if kind == SETTINGS else b""
        source = Source(RELAYED if sender == RELAY else NYC, 0, offset)
        records.append(Forward(sender, 1, local_seqnos[sender], payload, source, (), kind))
    after = (step_by_columns if by_columns else step)(SequencerState("orders", epoch=1), records)
    assert after.state.unsnapped == len(records)
    return [
        (each.reason, "") if isinstance(each, DeadLetter) else (each.kind, each.payload.decode())
        for each in after.outputs[1:]
    ]


def membership() -> None:
    from dataclasses import replace

    from ordering.base.records import REFUSED, Data, Forward, Source
    from ordering.membership.membership import (
        NO_MEMBERS,
        NOT_A_MEMBER,
        MemberIncarnation,
        Membership,
        fold,
        refusal,
    )
    from ordering.membership.settings import Settings

    assert decided((ALICE, POLL), closed=True) == [(NOT_A_MEMBER, "")]
    [(kind, why)] = decided((ALICE, POLL))
    assert (kind, json.loads(why)) == (REFUSED, {"kind": POLL, "reason": "the sender is not a member"})
    assert decided((RELAY, LOAD), (RELAY, LOAD), closed=True) == [(LOAD, ""), (LOAD, "")]
    group = Membership(Settings(closed=True), members=(MemberIncarnation(ALICE, 1),))
    assert [group.may_send(who, POLL) for who in (ALICE, BOB)] == [True, False]
    assert refusal(group, Forward(ALICE, 1, 1, b"", Source(NYC, 0, 0), kind=POLL), {}) == ""
    joining = replace(NO_MEMBERS, joining=(MemberIncarnation(BOB, 1),))
    assert refusal(joining, Forward(BOB, 1, 1, b"", Source(NYC, 0, 0), kind=POLL), {}) != ""
    assert fold(group, Data(POLL, 1, 1, sender=ALICE, incarnation=1), {}).membership == group


def columns() -> None:
    from ordering.base.records import HEARTBEAT, JOIN, MESSAGE

    sent = [(ALICE, MESSAGE), (ALICE, POLL), (BOB, HEARTBEAT), (BOB, JOIN), (RELAY, LOAD), (RELAY, LOAD)]
    for closed in (False, True):
        assert decided(*sent, by_columns=True, closed=closed) == decided(*sent, closed=closed)


def engine() -> None:
    from kafka.structs import TopicPartition

    from connectors.engine.batch import by_columns
    from connectors.kafka.codec.codec import decode_data, forward_headers
    from connectors.takeover.rows import OutputTopics, by_rows
    from ordering.base.records import MESSAGE
    from ordering.sequencer.state import SequencerState
    from tests.engine.test_batch import Raw

    raws = [
        Raw(number, ALICE.encode(), b"", forward_headers(1, number + 1, (), MESSAGE if number % 3 else POLL), topic=NYC)
        for number in range(100)
    ]
    topics = OutputTopics.of("orders", "nyc")
    state, rows = SequencerState("orders", epoch=1), [(TopicPartition(NYC, 0), raws)]
    outcome = by_columns(state, rows, topics)
    assert outcome == by_rows(state, rows, topics)
    assert [decode_data(*record).local_seqno for _, record in outcome[1]] == list(range(1, 101))


def mesh() -> None:
    from ordering.base.records import SKIP, Data, Source
    from ordering.sequencer.links import carry

    def carried(data: Data) -> tuple[Any, ...]:
        return carry(data, "far", 9, lambda _: True)[:5]

    assert carried(Data(TOTAL, 3, 7, 2, payload=b"{}")) == (LOAD, RELAY, 3, 2, b"{}")
    poll = Data(POLL, 3, 7, 2, "far/carol", 1, 1, b"?", Source("abcast.orders.forward.far", 0, 0))
    assert carried(poll) == (SKIP, RELAY, 1, 1, b"")


def checker() -> None:
    from ordering.base.kinds import DATA_KINDS, WATCH_KINDS
    from ordering.base.records import MESSAGE, Data
    from ordering.checker.checker import Checker
    from ordering.sequencer.sequencer import seal

    def anomalies(*local_seqnos: int) -> list[str]:
        found = Checker()
        for record in (
            seal(1),
            Data(MESSAGE, 1, 1, 0, ALICE, 1, local_seqnos[0]),
            Data(POLL, 1, 2, 0, ALICE, 1, local_seqnos[1]),
            Data(TOTAL, 1, 3, 0),
            Data(MESSAGE, 1, 4, 0, ALICE, 1, local_seqnos[2]),
        ):
            found.data("nyc", record)
        return [anomaly.name for anomaly in found.finish()]

    assert anomalies(1, 2, 3) == []
    assert anomalies(1, 1, 2) != []
    assert DATA_KINDS.issuperset((POLL, LOAD, TOTAL))
    assert TOTAL in WATCH_KINDS


def spark() -> None:
    from connectors.spark import forward_rows
    from ordering.base.kinds import FORWARD_KINDS

    rules = json.loads(forward_rows._rules("nyc", relayed=True, agreed=False))
    assert not {POLL, LOAD}.intersection(rules["kinds"])
    assert {POLL, LOAD}.issubset(FORWARD_KINDS)


PARTS: list[Callable[[], None]] = [codec, membership, columns, engine, mesh, checker, spark]

if __name__ == "__main__":
    add_rows()
    {part.__name__: part for part in PARTS}[sys.argv[1]]()
