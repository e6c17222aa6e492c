"""Mutations of a group whose sequencer writes packs: each breaks a rule of `ordering.sequencer.packing`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from connectors.client.incarnation.send_queue import SendQueue
from connectors.client.tail.subscription import Subscription
from connectors.engine.batch import decide as true_decide
from connectors.kafka.codec.codec import pack_headers
from ordering.base.packs import decode_pack, encode_pack, rest_of
from ordering.base.records import MESSAGES, Data, Forward
from ordering.checker.anomalies import DIVERGENT, DUPLICATE, GAP, LOST
from ordering.membership.membership import ReceivedRow
from ordering.sequencer.packing import pack_of
from ordering.sequencer.sequencer import absorb, next_accepted
from ordering.sequencer.state import SequencerState
from tests.simulator.mutation import Mutation
from tests.world.group import UNKNOWN_MESSAGE, WRONG_STATE


def torn(state: SequencerState, records: Iterable[Data]) -> SequencerState:
    """Go on behind the first message of the last pack."""
    log = list(records)
    last = max((at for at, record in enumerate(log) if record.kind == MESSAGES), default=len(log))
    return absorb(state, [replace(each, count=1) if at == last else each for at, each in enumerate(log)])


def as_one_message(state: SequencerState, records: Iterable[Data]) -> SequencerState:
    """Take the received row from the first message of each pack."""
    log = list(records)
    after = absorb(state, log)
    rows = dict(after.received)
    for record in log:
        if record.kind == MESSAGES and record.last_local_seqno == rows.get(record.sender, (0, 0))[1]:
            rows[record.sender] = rows[record.sender]._replace(local_seqno=record.local_seqno)
    return replace(after, received=rows)


def one_seqno_each(state: SequencerState, polled: Any, topics: Any, **how: bool) -> Any:
    """Give a pack one seqno."""
    after, outputs = true_decide(state, polled, topics, **how)
    return replace(after, seqno=state.seqno + sum(topic == topics.data for topic, _ in outputs)), outputs


def uncounted(state: SequencerState, polled: Any, topics: Any, **how: bool) -> Any:
    """Do not note that a record took several seqnos."""
    after, outputs = true_decide(state, polled, topics, **how)
    return replace(after, counted=state.counted), outputs


def named_by_the_first(run: Sequence[Data]) -> Data:
    """Name the place of the first message."""
    return replace(pack_of(run), source=run[0].source)


def of_any_life(before: Data, other: Data) -> bool:
    """Let a run go on with another incarnation."""
    return before.sender == other.sender and of_anyone(before, other)


def of_anyone(before: Data, other: Data) -> bool:
    """Let a run go on with another sender."""
    assert before.source is not None
    return before.source._replace(offset=before.source.offset + 1) == other.source


def uncut(record: Forward, _taken: int) -> Forward:
    """Take a pack whole, though its first messages are ordered."""
    return record


def as_its_first_message(accepted: ReceivedRow, incarnation: int, local_seqno: int, _count: int) -> Any:
    """Take the received row from a pack's first message."""
    return next_accepted(accepted, incarnation, local_seqno)


def at_once(_subscription: Subscription, _state: SequencerState) -> Any:
    """Write packs, whatever the group's format is."""
    return lambda: True


def without_the_newest(queue: SendQueue) -> None:
    """Send the table again without the messages that have gathered."""
    gathering = queue._common_headers
    queue._send(queue._pending_messages.table.acknowledged + 1, queue._sent)
    queue._common_headers = gathering


def one_too_low(incarnation: int, local_seqno: int, *others: Any) -> Any:
    """Name a pack by the local seqno before its first message's."""
    return pack_headers(incarnation, max(1, local_seqno - 1), *others)


_true_rest_of = rest_of


def without_its_last(record: Forward, taken: int) -> Forward:
    """Cut off the end, not the beginning."""
    rest = _true_rest_of(record, taken)
    if rest.count == record.count:
        return record
    payload = encode_pack(decode_pack(record.payload, record.count)[: rest.count])
    return replace(rest, payload=payload)


_CUTS = "ordering.sequencer.sequencer.rest_of", "connectors.engine.batch.rest_of"
_DECIDE, _FOLLOWS = "connectors.engine.sequencing.decide", "ordering.sequencer.packing._follows"

MUTATIONS = tuple(
    mutation._replace(needs=("packs",))
    for mutation in (
        Mutation(
            "pack-torn",
            "A takeover goes on behind the first message of the last pack",
            (DIVERGENT, WRONG_STATE),
            (("connectors.kafka.log.log_state.absorb", torn),),
        ),
        Mutation(
            "pack-as-its-first",
            "A takeover takes a pack's first message for the sender's last one",
            (DUPLICATE, WRONG_STATE),
            (("connectors.kafka.log.log_state.absorb", as_one_message),),
        ),
        Mutation(
            "pack-as-one-seqno",
            "The sequencer counts one seqno for a pack",
            (DIVERGENT, LOST, WRONG_STATE),
            ((_DECIDE, one_seqno_each),),
        ),
        Mutation(
            "pack-uncounted",
            "A snapshot does not tell that a pack took several seqnos",
            GAP,
            ((_DECIDE, uncounted),),
        ),
        Mutation(
            "pack-of-the-first",
            "The SOURCE of a pack is the place of its first message",
            WRONG_STATE,
            (("ordering.sequencer.packing.pack_of", named_by_the_first),),
        ),
        Mutation(
            "pack-uncut",
            "The sequencer takes a pack of FORWARD whole, though its first messages are ordered",
            (DIVERGENT, DUPLICATE, WRONG_STATE),
            tuple((target, uncut) for target in _CUTS),
        ),
        Mutation(
            "pack-cut-at-its-end",
            "The sequencer cuts a pack of FORWARD at its end, and not at the received row",
            (DUPLICATE, LOST),
            tuple((target, without_its_last) for target in _CUTS),
        ),
        Mutation(
            "pack-moves-by-one",
            "The received row moves on to the first message of a pack of FORWARD",
            (DIVERGENT, DUPLICATE, LOST, WRONG_STATE),
            (("ordering.sequencer.sequencer.next_accepted", as_its_first_message),),
        ),
        Mutation(
            "packs-at-once",
            "A member writes packs before the group takes them",
            LOST,
            (("connectors.client.tail.subscription.Subscription.packs_from", at_once),),
        ),
        Mutation(
            "pack-left-out",
            "A member sends its table again without the messages that it has gathered",
            LOST,
            (("connectors.client.incarnation.send_queue.SendQueue.send_table", without_the_newest),),
        ),
        Mutation(
            "pack-named-too-low",
            "A member names a pack by the local seqno before its first",
            (DIVERGENT, DUPLICATE, LOST, UNKNOWN_MESSAGE),
            (("connectors.client.incarnation.send_queue.pack_headers", one_too_low),),
        ),
        Mutation(
            "pack-of-two-lives",
            "A pack goes on with another incarnation",
            (DUPLICATE, LOST, WRONG_STATE),
            ((_FOLLOWS, of_any_life),),
        ),
        Mutation(
            "pack-of-two-senders",
            "A pack goes on with another sender",
            (DUPLICATE, LOST, UNKNOWN_MESSAGE, WRONG_STATE),
            ((_FOLLOWS, of_anyone),),
        ),
    )
)
