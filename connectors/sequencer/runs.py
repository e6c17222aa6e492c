"""Runs: the rows in which the sequencer's operator returns its decisions, many records in one row."""

from __future__ import annotations

import functools
import json
from base64 import b64decode
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from connectors.kafka.codec.codec import encode_data
from ordering.base.records import Data, Headers

RUN_SCHEMA = (
    "group string, role string, kind string, topic string, partition int, first_offset long, first_seqno long, "
    "epoch long, view long, size int, seqnos int, aside boolean, key array<binary>, value array<binary>, "
    "names array<array<string>>, values array<array<binary>>, records binary"
)
"""A run: consecutive records for the same topic, as its arrays have them; `names` and `values` have the headers.

`size`: the number of records. `seqnos`: the number of seqnos that they take. They are more if the records are packs;
fewer messages than a pack has are its last ones, and that pack is a run of its own.

The records of a run that is `aside` are in the JVM's buffer of this task, or in `records`, as in a block
(`connectors.sequencer.blocks`). Its arrays are null, but for dead letters `names` and `values` have the headers to
append.
"""
DATA_ROLE = "data"

RUN_COLUMNS = [field.split()[0] for field in RUN_SCHEMA.split(", ")]
_RUN_INDEX = pd.Index(RUN_COLUMNS)
_OF_ROWS = ["key", "value", "names", "values"]
"""The columns with an element for each record."""


def unpack_headers(packed: str | None) -> Headers:
    """Unpack headers of `connectors.spark.forward_rows`. A null value, which Kafka allows, stays null."""
    return (_remembered if len(packed or "") <= _REMEMBERED_LENGTH else _unpacked)(packed)


def _unpacked(packed: str | None) -> Headers:
    found: list[tuple[str, Any]] = [(header["key"], header.get("value")) for header in json.loads(packed or "[]")]
    return tuple((name, None if value is None else b64decode(value)) for name, value in found)  # type: ignore[misc]


_REMEMBERED_LENGTH = 4096
_remembered = functools.lru_cache(maxsize=100)(_unpacked)  # an application often repeats its headers


def record_columns(
    records: Iterable[tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes]]]],
) -> dict[str, list[Any]]:
    """Return the columns of a run of (key, value, headers)."""
    keys, values, headers = zip(*records, strict=True)
    return {"key": list(keys), "value": list(values), **header_columns(headers)}


def header_columns(headers: Iterable[Sequence[tuple[str, bytes]]]) -> dict[str, list[list[Any]]]:
    """Return each record's headers, as columns of a run."""
    of_rows = list(headers)
    return {
        "names": [[name for name, _ in row] for row in of_rows],
        "values": [[value for _, value in row] for row in of_rows],
    }


def without_first(runs: pd.DataFrame, last: int) -> pd.DataFrame:
    """Return a sequencer's runs without the DATA up to seqno `last`, which is written already."""
    if all(first is None or first > last for first in runs["first_seqno"]):
        return runs
    return frame_of([rest for run in runs.to_dict("records") if (rest := _beyond(run, last)) is not None])


def _beyond(run: dict[str, Any], last: int) -> dict[str, Any] | None:
    """Return the part of a run with seqnos above `last`; None if there is none. Its records take one seqno each."""
    left_out = last - run["first_seqno"] + 1 if run["role"] == DATA_ROLE else 0
    if left_out <= 0:
        return run
    if left_out >= run["size"]:
        return None
    assert run["seqnos"] == run["size"]
    begins = {name: run[name] + left_out for name in ("first_offset", "first_seqno")}
    of_rows = {name: run[name][left_out:] for name in _OF_ROWS if run[name] is not None}
    return {**run, **begins, **of_rows, **{name: run[name] - left_out for name in ("size", "seqnos")}}


def run_of(group: str, record: Data) -> pd.DataFrame:
    """Return the run of a single record of the sequencer's own (a snapshot, a view)."""
    encoded = record_columns([encode_data(record)])
    return frame_of(
        [{"group": group, "role": DATA_ROLE, "kind": record.kind, "size": 1, "seqnos": record.count, **encoded}]
    )


def frame_of(runs: list[dict[str, Any]]) -> pd.DataFrame:
    """Return runs as rows; columns that a run does not name are null."""
    # As one array: a series for each column would take longer than the decision of a small group's batch.
    cells = np.empty((len(runs), len(RUN_COLUMNS)), dtype=object)
    for row, run in enumerate(runs):
        for column, name in enumerate(RUN_COLUMNS):
            cells[row, column] = run.get(name)
    return pd.DataFrame(cells, columns=_RUN_INDEX)
