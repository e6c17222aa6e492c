"""Packs of a sequencer: successive messages of one sender become one record of DATA (`ordering.base.packs`).

A pack of FORWARD becomes a pack of DATA, whole or from the sender's row on. Single messages become packs, too: a *run*
is a series of accepted messages of one sender's incarnation, with equal headers, at consecutive offsets of a
partition, in one batch. It becomes packs, each as large as the limits allow. A message that a link has brought goes
alone. A sequencer packs what a batch has, and never waits for more.

Invariant. DATA with packs tells the same state as DATA without them.

1. Nothing is decided between two messages of a run, and go-back-N accepts only the next local seqno. So their seqnos,
   and their local seqnos, are consecutive, and they have one view: the first of each, with COUNT, tells all.
2. The record has the headers of each message, and readers give them to each.
3. SOURCE is the place of the last message. So all before it is considered once the pack is in DATA, as with any record.

Crashes. A pack is one record of Kafka, so DATA has it whole or not at all, and a kill leaves a prefix of the outputs
that ends between two records.

* A takeover amid packs: a pack before the seal is decided, with all of its messages; one behind it is stale, with all
  of them. The successor reads FORWARD again from the last snapshot's positions. By the received row it drops each
  message that a pack has, wherever its own batches begin. So no two packs in force overlap.
* A member that sends a part of a pack again has it dropped, as any repeat: the row has the last local seqno.
* A reader that stops within a pack goes on with the next message: the reading rule takes the rest of the pack.
* A sequencer that makes no packs of single messages (Spark's; sites that agree) goes on from the same state. One that
  does not know packs stops at the group's format, before it claims.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard

import numpy as np

from ordering.base.packs import encode_pack, parts
from ordering.base.records import MESSAGE, MESSAGES, Data, DeadLetter, Headers
from ordering.sequencer.columns import ForwardColumns, Ints


def packed(outputs: Iterable[Data | DeadLetter]) -> list[Data | DeadLetter]:
    """Return the outputs of `step` with the runs among them in packs."""
    made: list[Data | DeadLetter] = []
    run: list[Data] = []
    for output in outputs:
        if not _is_plain(output):
            made += [*_packs(run), output]
            run = []
            continue
        if run and not _follows(run[-1], output):
            made += _packs(run)
            run = []
        run.append(output)
    return [*made, *_packs(run)]


def runs(rows: ForwardColumns, seqno: Ints, headers: Mapping[int, Headers]) -> Iterator[tuple[int, int]]:
    """Yield the first row and the end of each run of two messages or more.

    `seqno`: as decided, by row. `headers`: the application's, by row; rows without any may be left out.
    """
    plain = (seqno > 0) & rows.is_message & ~rows.linked & (rows.counts == 1)
    follows = plain[1:] & plain[:-1] & (np.diff(rows.offset) == 1)
    for column in (rows.partition, rows.sender, rows.incarnation):
        follows &= column[1:] == column[:-1]
    for row in {place for each in headers for place in (each - 1, each)}:
        if 0 <= row < len(follows):
            follows[row] &= headers.get(row, ()) == headers.get(row + 1, ())
    begins = np.flatnonzero(np.append(follows, False) & ~np.append(False, follows))
    ends = np.flatnonzero(np.append(False, follows) & ~np.append(follows, False)) + 1
    yield from zip(begins.tolist(), ends.tolist(), strict=True)


def pack_of(run: Sequence[Data]) -> Data:
    """Return the pack of these messages, which are a run."""
    last = run[-1]
    return replace(
        run[0],
        kind=MESSAGES,
        payload=encode_pack([each.payload for each in run]),
        source=last.source,
        forwarded_at_ms=last.forwarded_at_ms,
        count=len(run),
    )


def _packs(run: Sequence[Data]) -> Iterator[Data]:
    for begin, end in parts([len(each.payload) for each in run], run[0].headers if run else ()):
        yield run[begin] if end - begin == 1 else pack_of(run[begin:end])


def _is_plain(output: Data | DeadLetter) -> TypeGuard[Data]:
    return isinstance(output, Data) and output.kind == MESSAGE and output.link is None


def _follows(before: Data, other: Data) -> bool:
    """Whether a message is the next one of the same incarnation, directly behind it in FORWARD, with its headers."""
    assert before.source is not None
    after = before.source._replace(offset=before.source.offset + 1), before.headers
    return (other.sender, other.incarnation, other.source, other.headers) == (before.sender, before.incarnation, *after)
