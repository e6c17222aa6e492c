"""The state that the ledger tells: in a mesh, with how far each origin is known. No Spark."""

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
from ordering.records import FORGET, MESSAGE, REMOTE_VIEW, Data, Forward, Source
from ordering.sequencer import step
from tests.ledger.ledger_of import LEDGER


def row(seqno: int, site: str, origin_seqno: int | None, kind: str = MESSAGE) -> dict[str, object]:
    sender = f"{site}/m" if kind == MESSAGE else f"{site}/abcast.relay"
    payload = b"" if kind == MESSAGE else b'{"members":[]}'
    numbers = {"epoch": 1, "view_id": 0, "incarnation": 1, "local_seqno": seqno}
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    return {
        "group": "g", "seqno": seqno, "site": site, "sender": sender, "kind": kind, "payload": payload,
        "forwarded_at": at, "origin_seqno": origin_seqno, **numbers,
    }  # fmt: skip


def test_the_ledger_tells_how_far_each_origin_is_known(tmp_path: Path) -> None:
    """A sequencer that takes over from it knows what links have brought, and what its own site has said."""
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


def test_who_is_forgotten_stays_so(tmp_path: Path) -> None:
    """The ledger has their rows; nothing of these lives is ordered again, although FORWARD is read from its beginning.

    Of "x/gone" this ledger, which was made anew, has no message.
    """
    forgotten = {"senders": [["a/m", 1, 2], ["x/gone", 4, 4]]}
    by_admin = {**row(3, "a", None, FORGET), "sender": "a/abcast.admin", "payload": json.dumps(forgotten).encode()}
    rows = [row(1, "a", None), row(2, "a", None), by_admin, row(4, "b", None)]
    write_deltalake(tmp_path / "ledger", pa.Table.from_pylist(rows, LEDGER))
    state = state_from_ledger(tmp_path / "ledger", "g")
    assert state is not None
    assert state.is_over("a/m", 1)
    assert state.is_over("x/gone", 4)
    topic, at = "abcast.g.forward.a", 1_800_000_000_000
    late = [
        Forward(sender, life, number, b"", Source(topic, 0, offset), timestamp_ms=at)
        for offset, (sender, life, number) in enumerate([("a/m", 1, 2), ("a/m", 1, 3), ("x/gone", 4, 5), ("a/m", 5, 1)])
    ]
    outputs = step(state, late).outputs
    assert [output.seqno for output in outputs if isinstance(output, Data)] == [5]
    assert isinstance(outputs[-1], Data)
    assert (outputs[-1].sender, outputs[-1].incarnation) == ("a/m", 5)


def test_a_ledger_that_is_damaged_is_told_in_a_sentence(tmp_path: Path) -> None:
    assert state_from_ledger(tmp_path / "ledger", "g") is None
    write_deltalake(tmp_path / "ledger", pa.Table.from_pylist([row(1, "a", None)], LEDGER))
    commit_file(tmp_path / "ledger", 0).write_text("{ no commit", encoding="utf-8")
    with pytest.raises(LedgerDamaged, match="both are written anew"):
        state_from_ledger(tmp_path / "ledger", "g")
