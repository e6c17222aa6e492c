"""Random FORWARD logs for the property tests, close enough to senders' logs that many records are accepted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import strategies as st

from ordering.base.packs import encode_pack
from ordering.base.records import MESSAGE, MESSAGES, Data, Forward, Malformed, Source
from ordering.sequencer.sequencer import absorb, begin_batch, end_batch, seal, step
from ordering.sequencer.state import SequencerState

TOPIC = "abcast.g.forward.s"
SENDERS = ("s/a", "s/b", "s/c", "no-address", "s/")

Log = list[Forward | Malformed]


@st.composite
def logs(draw: st.DrawFn, max_records: int = 40, packs: bool = False) -> Log:
    """A FORWARD log over several partitions (sorted by source): runs, repeats, gaps, restarts, malformed records.

    With `packs`, some records have several messages, and packs overlap.
    """
    next_local: dict[str, int] = {}
    incarnations: dict[str, int] = {}
    offsets: dict[int, int] = {}
    log: Log = []
    for _ in range(draw(st.integers(0, max_records))):
        partition = draw(st.sampled_from((0, 0, 0, 2, 10)))
        offset = offsets.get(partition, 0) + draw(st.sampled_from((0, 0, 0, 3)))
        offsets[partition] = offset + 1
        source = Source(TOPIC, partition, offset)
        what = draw(
            st.sampled_from(("next",) * 8 + ("repeat", "gap", "restart", "old incarnation", "any", "malformed"))
        )
        if what == "malformed":
            log.append(Malformed(source, "a reason"))
            continue
        sender = draw(st.sampled_from(SENDERS))
        incarnation, local = incarnations.get(sender, 1), next_local.get(sender, 1)
        if what == "restart":
            incarnation, local = incarnation + 1, 1
        elif what == "repeat":
            local = max(1, local - draw(st.integers(1, 3)))
        elif what == "gap":
            local += draw(st.integers(1, 3))
        elif what == "old incarnation":
            incarnation = max(1, incarnation - 1)
        elif what == "any":
            incarnation, local = draw(st.integers(1, 3)), draw(st.integers(1, 5))
        count = draw(st.sampled_from((1, 1, 2, 3, 5))) if packs else 1
        if what in ("next", "restart") or (packs and what == "repeat"):
            last = max(local + count, next_local.get(sender, 1) if incarnation == incarnations.get(sender, 1) else 1)
            incarnations[sender], next_local[sender] = incarnation, last
        log.append(forward(sender, incarnation, local, source, count))
    return sorted(log, key=lambda record: record.source)


def forward(sender: str, incarnation: int, local: int, source: Source, count: int = 1) -> Forward:
    """Return a record of FORWARD; with a `count` above one, a pack."""
    payloads = [f"{sender} {incarnation} {local + n}".encode() for n in range(count)]
    kind, payload = (MESSAGES, encode_pack(payloads)) if count > 1 else (MESSAGE, payloads[0])
    return Forward(sender, incarnation, local, payload, source, kind=kind, count=count)


def opened(epoch: int = 1, state: SequencerState | None = None, of_format: int = 1) -> SequencerState:
    """Return a state right after its seal."""
    return absorb(state or SequencerState("g"), [seal(epoch, of_format)])


def deliveries(outputs: Sequence[object]) -> list[tuple[int, str]]:
    """Return a member's deliveries as (seqno, id)."""
    return [(record.seqno, str(record.id)) for record in outputs if isinstance(record, Data) and record.seqno]


def run(state: SequencerState, batches: Sequence[Log]) -> tuple[SequencerState, list[Data]]:
    """Decide batch after batch; return the state and the DATA written."""
    written: list[Data] = []
    for batch in batches:
        state, opening = begin_batch(state)
        state, outputs = step(state, batch)
        written.extend(opening)
        written.extend(record for record in outputs if isinstance(record, Data))
        state, closing = end_batch(state)
        written.extend(closing)
    return state, written


def cut(log: Log, at: Sequence[int]) -> list[Log]:
    bounds = [0, *sorted(min(where, len(log)) for where in at), len(log)]
    return [log[start:end] for start, end in pairwise(bounds)]
