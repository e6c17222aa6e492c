"""A table has features of Delta that only Spark reads: each reader says what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connectors.diagnosis.check import check_ledger
from connectors.ledger.delta_files import LedgerUnreadable
from connectors.ledger.history import message_numbers
from connectors.ledger.last_row import LedgerEnd
from connectors.ledger.maintenance import plan_maintenance
from connectors.ledger.query.sql import question
from connectors.ledger.state import state_from_ledger
from connectors.ledger.table_state import read_table_state, read_views_state
from ordering.checker.checker import Checker
from tests.ledger.ledger_of import decided, write_ledger

COLUMN_MAPPING = {"delta.columnMapping.mode": "name"}
DELETION_VECTORS = {"delta.enableDeletionVectors": "true"}
ASKED = "SELECT count(*) FROM ledger"


def _query(ledger: Path) -> None:
    with question(ledger.parent) as asked:
        list(asked.ask(ASKED).rows)


READERS: dict[str, Callable[[Path], Any]] = {
    "ledger job": read_table_state,
    "ledger job, views": read_views_state,
    "query": _query,
    "check": lambda ledger: check_ledger(Checker(), ledger, "g"),
    "site add": lambda ledger: state_from_ledger(ledger, "g"),
    "member": lambda ledger: message_numbers(ledger, "g"),
    "purge": lambda ledger: LedgerEnd(ledger).last_seqno("g"),
    "last row": lambda ledger: LedgerEnd(ledger).row("g", 1),
    "maintain": lambda ledger: plan_maintenance(ledger.parent),
}


def _tables_in(directory: Path) -> Path:
    """Write a ledger, and something beside it for the views; return where the ledger is."""
    write_ledger(directory / "views", decided(linked=False))
    return write_ledger(directory / "ledger", decided(linked=False))


def _fields(part: Any) -> list[dict[str, Any]]:
    """Return the fields of a schema, nested ones included."""
    if not isinstance(part, dict):
        return []
    fields = part.get("fields", [])
    below = [part.get("elementType"), *(field["type"] for field in fields)]
    return [*fields, *(each for one in below for each in _fields(one))]


@pytest.mark.parametrize(
    ("version", "features", "given", "names"),
    [
        (3, ["columnMapping"], COLUMN_MAPPING, ["columnMapping"]),
        (2, None, COLUMN_MAPPING, ["columnMapping"]),
        (3, ["deletionVectors"], DELETION_VECTORS, ["deletionVectors"]),
        (3, ["deletionVectors", "columnMapping"], {}, ["columnMapping", "deletionVectors"]),
    ],
)
def test_each_reader_names_the_feature(
    tmp_path: Path, version: int, features: list[str] | None, given: dict[str, str], names: list[str]
) -> None:
    ledger = _tables_in(tmp_path)
    for reader in READERS.values():
        reader(ledger)
    first = ledger / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in first.read_text().splitlines()]
    metadata = next(action["metaData"] for action in actions if "metaData" in action)
    metadata["configuration"] |= given
    schema = json.loads(metadata["schemaString"])
    for number, field in enumerate(_fields(schema), 1):
        mapped = {"id": number, "physicalName": field["name"]}
        field["metadata"] |= {f"delta.columnMapping.{name}": value for name, value in mapped.items()}
    metadata["schemaString"] = json.dumps(schema)
    protocol: dict[str, object] = {"minReaderVersion": version, "minWriterVersion": 5 if features is None else 7}
    if features is not None:
        protocol |= {"readerFeatures": features, "writerFeatures": features}
    second = [{"protocol": protocol}, {"metaData": metadata}]
    (first.parent / f"{1:020d}.json").write_text("".join(json.dumps(action) + "\n" for action in second))
    for reader in READERS.values():
        with pytest.raises(LedgerUnreadable, match=f"has {' and '.join(names)}, which only Spark reads"):
            reader(ledger)
