"""The state that the ledger tells: in a mesh, with each origin's last seqno. No Spark."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from connectors.ledger.state import state_from_ledger
from connectors.ledger.table_state import LedgerDamaged, commit_file
from connectors.relay.link_start import link_start
from ordering.base.records import FORGET, MESSAGE, REMOTE_VIEW, Data, Forward, Source
from ordering.sequencer.sequencer import step
from tests.ledger.ledger_of import LEDGER


def row(seqno: int, site: str, origin_seqno: int | None, kind: str = MESSAGE) -> dict[str, object]:
    sender = f"{site}/m" if kind == MESSAGE else f"{site}/abcast.relay"
    payload = b"" if kind == MESSAGE else b'{"members":[]}'
    numbers = {"epoch": 1, "view_id": 0, "incarnation": 1, "local_seqno": seqno}
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    return {
        "group_name": "g", "seqno": seqno, "site": site, "sender": sender, "kind": kind, "payload": payload,
        "forwarded_at": at, "origin_seqno": origin_seqno, **numbers,
    }  # fmt: skip


def test_the_ledger_tells_how_far_each_origin_is_known(tmp_path: Path) -> None:
    """A sequencer that takes over from it knows each link's last message, and its own site's."""
    rows = [
        row(1, "a", None), row(2, "b", 7), row(3, "a", None), row(4, "c", 2), row(5, "b", 9),
        row(6, "b", None, REMOTE_VIEW), row(7, "b", 0, REMOTE_VIEW),
    ]  # fmt: skip
    write_deltalake(tmp_path / "ledger", pa.Table.from_pylist(rows, LEDGER))
    state = state_from_ledger(tmp_path / "ledger", "g")
    assert state is not None
    assert (state.own_seqno, state.origins) == (3, {"b": 9, "c": 2})
    assert link_start(state, "a", lambda _: True).origins == {"a": 3, "b": 9, "c": 2}


def test_a_ledger_of_an_earlier_version_has_no_such_column(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([row(1, "a", None), row(2, "a", None)], LEDGER)
    write_deltalake(tmp_path / "ledger", table.drop_columns(["origin_seqno"]))
    state = state_from_ledger(tmp_path / "ledger", "g")
    assert state is not None
    assert (state.own_seqno, state.origins) == (2, {})


def sent(seqno: int, sender: str, incarnation: int, local_seqno: int) -> dict[str, object]:
    return {**row(seqno, "a", None), "sender": sender, "incarnation": incarnation, "local_seqno": local_seqno}


def forgotten(seqno: int, incarnation: int, *rows: tuple[str, int, int]) -> dict[str, object]:
    by_admin = sent(seqno, "a/abcast.admin", incarnation, 1)
    return {**by_admin, "kind": FORGET, "payload": json.dumps({"senders": rows}).encode()}


def test_who_is_forgotten_stays_so(tmp_path: Path) -> None:
    """No message up to the floor is ordered, as with a start from DATA, although FORWARD is read from its beginning.

    "a/other" has raised the floor above the incarnation of "a/m". This ledger, which was made anew, has no message of
    "a/gone". "a/back" has come again.
    """
    rows = [
        sent(1, "a/m", 50, 1), sent(2, "a/m", 50, 2), sent(3, "a/other", 200, 1), sent(4, "a/back", 7, 1),
        forgotten(5, 1, ("a/m", 50, 2), ("a/gone", 4, 4), ("a/back", 7, 1)), forgotten(6, 2, ("a/other", 200, 1)),
        sent(7, "a/back", 201, 1),
    ]  # fmt: skip
    write_deltalake(tmp_path / "ledger", pa.Table.from_pylist(rows, LEDGER))
    state = state_from_ledger(tmp_path / "ledger", "g")
    assert state is not None
    assert state.received == {"a/back": (201, 1), "a/abcast.admin": (2, 1)}
    assert [state.is_over("a/m", incarnation) for incarnation in (50, 51, 200, 201)] == [True, True, True, False]
    again = [("a/m", 50, 2), ("a/m", 50, 3), ("a/m", 100, 1), ("a/m", 200, 1), ("a/gone", 5, 1), ("a/back", 7, 2)]
    new = [("a/m", 201, 1), ("a/gone", 300, 1), ("a/back", 201, 2)]
    topic, at = "abcast.g.forward.a", 1_800_000_000_000
    records = [
        Forward(*numbers, b"", Source(topic, 0, offset), timestamp_ms=at) for offset, numbers in enumerate(again + new)
    ]
    data = [output for output in step(state, records).outputs if isinstance(output, Data)]
    assert [(each.sender, each.incarnation, each.local_seqno) for each in data] == new


def test_a_ledger_that_is_damaged_is_told_in_a_sentence(tmp_path: Path) -> None:
    assert state_from_ledger(tmp_path / "ledger", "g") is None
    write_deltalake(tmp_path / "ledger", pa.Table.from_pylist([row(1, "a", None)], LEDGER))
    commit_file(tmp_path / "ledger", 0).write_text("{ no commit", encoding="utf-8")
    with pytest.raises(LedgerDamaged, match="both are written anew"):
        state_from_ledger(tmp_path / "ledger", "g")
