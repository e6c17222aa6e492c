"""Mutations of a group with one sequencer at a time: each breaks a rule on purpose, and the world must name the
violation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kafka.structs import TopicPartition

from connectors.client.incarnation.driver import Driver
from connectors.client.incarnation.send_queue import SendQueue
from connectors.engine.batch import decide as true_decide
from connectors.engine.writing import Writer, WrittenBatch
from connectors.kafka.codec.codec import encode_data
from connectors.kafka.codec.epochs import Note, encode_claim, encode_note
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.epoch_log import Epochs
from connectors.kafka.log.stored_record import StoredRecord, StoredRecords
from connectors.kafka.topics.purge import Purged, delete_below
from connectors.takeover import takeover
from connectors.takeover.fencing import check_not_fenced
from ordering.base.errors import ProtocolViolation
from ordering.base.reader import Seal, with_seal
from ordering.base.records import EPOCH, FORGET, Data, Headers
from ordering.checker.anomalies import DIVERGENT, DUPLICATE, FIFO_VIOLATION, GAP, LOST
from ordering.membership.forgetting import SenderRow, from_payload
from ordering.membership.membership import Fold, Membership, ReceivedRow
from ordering.participant.forward_table import Pending
from ordering.participant.participant import Participant, ParticipantStep, step
from ordering.participant.participant_events import Event, RowKnown
from ordering.sequencer.pipeline import Begun, Pipeline
from ordering.sequencer.sequencer import absorb, begin_batch, end_batch, next_accepted, seal, snapshot
from ordering.sequencer.state import SequencerState
from tests.simulator.mutation import Mutation
from tests.world import handover_mutations, pack_mutations
from tests.world.group import STUCK, WRONG_STATE
from tests.world.group_readers import (
    CountlessReader,
    EpochBlindReader,
    GreedyReader,
    RepeatingReader,
    StrayReader,
    readers,
)
from tests.world.ledgers import Table

NOT_YET = 1 << 60
"""The floor of a claim that has none."""


def not_lower(accepted: ReceivedRow, incarnation: int, local_seqno: int, count: int = 1) -> ReceivedRow | None:
    """The SEQUENCER seed's rule: 'discard if not higher' (JGRP-1461: message 1 is lost if 2 overtakes it)."""
    last = ReceivedRow(incarnation, local_seqno + count - 1)
    return last if last > accepted else None


def any_incarnation(accepted: ReceivedRow, incarnation: int, local_seqno: int, count: int = 1) -> ReceivedRow | None:
    """Accept the next local seqno of any incarnation: all count as one."""
    return next_accepted(accepted._replace(incarnation=incarnation), incarnation, local_seqno, count)


def higher_incarnation_anywhere(
    accepted: ReceivedRow, incarnation: int, local_seqno: int, count: int = 1
) -> ReceivedRow | None:
    """Let an incarnation begin with any local seqno, so its second message can overtake its first."""
    if incarnation > accepted.incarnation:
        return ReceivedRow(incarnation, local_seqno)
    if incarnation == accepted.incarnation and local_seqno == accepted.local_seqno + 1:
        return ReceivedRow(incarnation, local_seqno)
    return None


def any_message(_ours: Pending, _kind: str, _payload: bytes, _headers: Headers) -> bool:
    """Accept any DATA of the id."""
    return True


def at_any_depth(pipeline: Pipeline) -> Begun | None:
    """Begin a batch without waiting for earlier ones, even if it begins with a snapshot."""
    return Begun(*begin_batch(pipeline.state)) if len(pipeline.in_flight) < pipeline.depth else None


def asked_for(rows: Sequence[SenderRow], *_: object) -> tuple[SenderRow, ...]:
    """Forget a named sender that has sent since."""
    return tuple(rows)


def without_a_floor(membership: Membership, record: Data, received: Mapping[str, ReceivedRow]) -> Fold:
    """Drop the rows without a floor for later incarnations."""
    rows = from_payload(record.payload) or ()
    return Fold(membership, tuple(row.sender for row in rows if received.get(row.sender) == row[1:]))


def deaf(participant: Participant, event: Event) -> ParticipantStep:
    """Let a member not read that it is forgotten."""
    is_control = isinstance(event, Data) and event.kind == FORGET
    return ParticipantStep(participant) if is_control else step(participant, event)


def of_its_life(participant: Participant, event: Event) -> ParticipantStep:
    """Let a member not learn that its name has a row."""
    return ParticipantStep(participant) if isinstance(event, RowKnown) else step(participant, event)


def at_or_after(_log: StoredRecords, _offset: int, _seqno: int, _epoch: int) -> bool:
    """Say of every offset that the record is there or later."""
    return True


def claim_anew(
    found: Any, producer: Any, by: Any, *_: object, floor_first: bool = True, is_unique: bool = True
) -> SequencerState:
    """Claim, seal, read the rest, and open the epoch, with one rule broken."""
    data, logs = found.data, found.data.connection.topics.partitions
    below, format_ = data.end(), found.format
    known = data.epochs.known.highest_epoch
    at = takeover._append(
        data, producer, data.epochs.topic, (None, *encode_claim(below if floor_first else NOT_YET, "", format_))
    )
    epoch = data.epochs.known.epoch_of_claim(at) if is_unique else known + 1
    by.claimed[data.topic.group] = epoch
    sealed_at = takeover._append_data(data, producer, seal(epoch, format_))
    if not floor_first:
        log = logs[TopicPartition(data.epochs.topic, 0)]
        log[at] = log[at]._replace(value=encode_claim(data.end(), "", format_)[0])
    before = absorb(found.state, (stored.data for stored in data.records(found.end, sealed_at)))
    if before.epoch >= epoch and is_unique:
        check_not_fenced(data, epoch)
        raise ProtocolViolation("a higher epoch is before the seal.")
    seals = with_seal(before.seals, Seal(epoch, before.seqno + 1))
    state = replace(before, epoch=epoch, seals=seals, unsnapped=0, format=format_)
    by.opened[data.topic.group] = takeover._append_data(data, producer, snapshot(state)) + 1
    note = encode_note(Note(sealed_at + 1, epoch, state.seqno))
    takeover._append(data, producer, data.epochs.topic, (None, *note))
    return state


def floor_last(found: Any, producer: Any, by: Any, *_: object) -> SequencerState:
    """Note the floor behind the seal."""
    return claim_anew(found, producer, by, floor_first=False)


def next_epoch(found: Any, producer: Any, by: Any, *_: object) -> SequencerState:
    """Take one more than the last known epoch, as others may."""
    return claim_anew(found, producer, by, is_unique=False)


def snapshot_in_the_middle(machine: Any) -> Any:
    """Decide half of a batch, snap, and decide the rest."""
    begun = machine.pipeline.begin() if machine._held else None
    if begun is None:
        return None
    held, machine._held, machine._is_full = machine._held, {}, False
    first = {place: records[: len(records) // 2] for place, records in held.items()}
    rest = {place: records[len(records) // 2 :] for place, records in held.items()}
    state, outputs = begun.state, list[Any]()
    for part in (first, rest):
        state, decided = machine.decide(state, {place: records for place, records in part.items() if records})
        outputs += decided
        if part is first and begun.opening:
            outputs.append((machine.topics.data, encode_data(snapshot(state))))
    state, closing = end_batch(state)
    machine.pipeline = machine.pipeline.decided(state)
    return [*outputs, *(machine.topics.encode(each, None) for each in closing)]


_true_write = Writer.write
_kept: dict[int, tuple[Writer, list[Any]]] = {}
"""By the list of a batch's records: the batch."""


def write_and_keep(writer: Writer, outputs: Any) -> WrittenBatch:
    """Write a batch, and keep it for another attempt."""
    every = list(outputs)
    written = _true_write(writer, every)
    _kept[id(written.sent)] = writer, every
    return written


def try_again(written: WrittenBatch) -> bool:
    """Write a batch once more if it has failed."""
    writer, every = _kept[id(written.sent)]
    if all(one.is_done for one in written.sent) and any(one.exception for one in written.sent):
        written.sent[:] = _true_write(writer, every).sent  # type: ignore[index]
    return all(one.is_done and one.exception is None for one in written.sent)


def in_any_order(state: SequencerState, polled: Any, topics: Any, *, packs: bool) -> Any:
    """Decide the rows of a batch one by one, in an order of their own."""
    rows = sorted(
        ((place, record) for place, records in polled.items() for record in records),
        key=lambda row: hash((row[1].offset * 7919, row[0].partition)) % 11,
    )
    outputs = []
    for place, record in rows:
        state, decided = true_decide(state, {place: [record]}, topics, packs=packs)
        outputs += decided
    return state, outputs


def as_decided(connection: Any, group: str, site: str, _topics: object) -> dict[TopicPartition, int]:
    """Purge FORWARD below the decided offsets."""
    with DataLog(connection, group, site) as log:
        return {TopicPartition(*place): offset for place, offset in log.state().decided.items()}


def with_the_snapshot(connection: Any, consumer: Any, admin: Any, below: Any, *, dry_run: bool) -> list[Purged]:
    """The newest snapshot goes, too."""
    return delete_below(connection, consumer, admin, {place: at + 1 for place, at in below.items()}, dry_run=dry_run)


def any_snapshot(records: Sequence[StoredRecord], index: int, _epochs: Epochs) -> bool:
    """Every snapshot is taken for one in force, also one behind a higher seal."""
    return records[index].data.kind == EPOCH and bool(records[index].data.payload)


_true_append_data = takeover._append_data


def without_a_seal(data: DataLog, producer: Any, record: Data) -> int:
    """The opening snapshot is the first record of an epoch."""
    return _true_append_data(data, producer, record) if record.payload else data.end()


def as_it_was(state: SequencerState, records: Iterable[Data]) -> SequencerState:
    """The state from before the claim."""
    for _ in records:
        pass
    return state


def backwards(queue: SendQueue) -> None:
    """Send the table in decreasing order."""
    for pending in reversed(list(queue._pending_messages.table.pending())):
        queue._send_alone(pending)


_true_accept = Driver.accept


def forget_at_once(driver: Driver, *record: Any) -> Any:
    """Forget a message once it is sent."""
    accepted = _true_accept(driver, *record)
    driver._pending_messages.table.acknowledge(driver._pending_messages.table.last)
    driver._pending_messages._receipts.clear()
    return accepted


def whatever_the_version(table: Table, _version: int, rows: Sequence[Data]) -> bool:
    """Append, though others may have."""
    table.version += 1
    table.rows += rows
    return True


_NEXT_ACCEPTED = "ordering.sequencer.sequencer.next_accepted"
_STEP = "connectors.client.incarnation.driver.step"
_CLAIM = "connectors.takeover.takeover._claim"
_NUMBERS = "connectors.client.memory.incarnation_numbers.IncarnationNumbers"
_IS_THERE = "connectors.engine.writing.WrittenBatch.is_there"
_HAS_OWN_BEFORE = "connectors.kafka.log.log_state._has_own_before"

MUTATIONS = (
    Mutation(
        "forgets-too-early",
        "The group forgets a sender that has sent since the look",
        DUPLICATE,
        (("ordering.membership.membership.forgettable", asked_for),),
    ),
    Mutation(
        "no-floor",
        "A forgotten sender comes back under an old incarnation",
        DUPLICATE,
        (("ordering.membership.membership._forget", without_a_floor),),
    ),
    Mutation(
        "deaf-to-its-end", "A member goes on in an incarnation that the group has forgotten", LOST, ((_STEP, deaf),)
    ),
    Mutation(
        "knows-no-row",
        "A member does not learn that its name has a row",
        DUPLICATE,
        ((_STEP, of_its_life),),
    ),
    Mutation("epoch-ignored", "Readers take the records of a fenced sequencer", DIVERGENT, readers(EpochBlindReader)),
    Mutation(
        "not-lower",
        "The sequencer accepts any higher local seqno, instead of go-back-N",
        FIFO_VIOLATION,
        ((_NEXT_ACCEPTED, not_lower),),
    ),
    Mutation(
        "not-lower-loses",
        "The sequencer does the same, and a sender loses a message",
        LOST,
        ((_NEXT_ACCEPTED, not_lower),),
    ),
    Mutation(
        "claims-not-unique",
        "Two sequencers that claim the same epoch both go on",
        (DIVERGENT, WRONG_STATE),
        ((_CLAIM, next_epoch),),
    ),
    Mutation(
        "floor-after-claim",
        "A sequencer notes the floor after its claim",
        (DIVERGENT, WRONG_STATE),
        ((_CLAIM, floor_last), ("connectors.takeover.survey.check_reach", lambda *_: None)),
    ),
    Mutation(
        "snapshot-in-the-middle",
        "A sequencer writes a snapshot in the middle of a batch",
        (DIVERGENT, WRONG_STATE),
        (("connectors.engine.sequencing.Sequencing.writes", snapshot_in_the_middle),),
    ),
    Mutation(
        "retry-inside-the-epoch",
        "A sequencer tries a batch again inside its epoch",
        (DIVERGENT, WRONG_STATE),
        (("connectors.engine.writing.Writer.write", write_and_keep), (_IS_THERE, try_again)),
    ),
    Mutation(
        "goes-on-after-a-failed-write",
        "A sequencer takes a failed write for done",
        (LOST, WRONG_STATE),
        ((_IS_THERE, lambda written: all(one.is_done for one in written.sent)),),
    ),
    Mutation(
        "snapshot-while-in-flight",
        "A sequencer writes a snapshot while a batch that it counts is in flight",
        (DIVERGENT, WRONG_STATE),
        (("ordering.sequencer.pipeline.Pipeline.begin", at_any_depth),),
    ),
    Mutation(
        "late-out-of-order",
        "The producer writes late records out of order, and a start trusts the first record of a window",
        WRONG_STATE,
        (("tests.world.wires.WiredKafka.keeps_order", False), (_HAS_OWN_BEFORE, lambda *_: True)),
    ),
    Mutation(
        "arrival-order",
        "The sequencer numbers rows in the order in which Spark hands them over",
        LOST,
        (("connectors.engine.sequencing.decide", in_any_order),),
    ),
    Mutation("no-dedupe", "Readers take repeated records", DUPLICATE, readers(RepeatingReader)),
    Mutation("ahead", "Readers take records ahead of their turn", GAP, readers(GreedyReader)),
    Mutation(
        "purged-as-decided",
        "A purge of FORWARD goes by the decided offsets, not by the snapshot's positions",
        WRONG_STATE,
        (("connectors.kafka.topics.purge.considered", as_decided),),
    ),
    Mutation(
        "snapshot-purged",
        "A purge deletes the newest snapshot, too",
        (STUCK, WRONG_STATE),
        (("connectors.kafka.topics.data_purge.delete_below", with_the_snapshot),),
        needs=("purge",),
    ),
    Mutation(
        "any-snapshot",
        "A snapshot that is not in force counts",
        (DIVERGENT, WRONG_STATE),
        (("connectors.kafka.log.log_state._is_snapshot_in_force", any_snapshot),),
        needs=("purge",),
    ),
    Mutation(
        "no-seal",
        "A new sequencer does not seal the old one's epoch",
        (DIVERGENT, WRONG_STATE),
        (
            ("connectors.takeover.takeover._append_data", without_a_seal),
            ("connectors.kafka.log.log_state._is_contradicted", lambda *_: False),
        ),
    ),
    Mutation(
        "no-read-back",
        "A new sequencer does not read the records before its seal",
        (DIVERGENT, WRONG_STATE),
        (("connectors.takeover.takeover.absorb", as_it_was),),
    ),
    Mutation("stray-counted", "Readers count a seqno for a record that is no DATA", GAP, readers(StrayReader)),
    Mutation(
        "epoch-0",
        "A reader resumes in mid-log with epoch 0",
        DIVERGENT,
        (("connectors.kafka.log.data_log.epoch_of", lambda *_: 0),),
    ),
    Mutation(
        "one-life",
        "The sequencer takes all incarnations of a member for one",
        LOST,
        ((_NEXT_ACCEPTED, any_incarnation),),
    ),
    Mutation(
        "clock-for-wrong",
        "A member takes the clock of each earlier incarnation of its name for wrong",
        STUCK,
        ((f"{_NUMBERS}.is_of_a_wrong_clock", lambda _, incarnation: incarnation > 0),),
    ),
    Mutation(
        "life-from-anywhere",
        "The sequencer lets an incarnation begin at any local seqno",
        FIFO_VIOLATION,
        ((_NEXT_ACCEPTED, higher_incarnation_anywhere),),
    ),
    Mutation(
        "resend-backwards",
        "A member resends its forward table in decreasing order",
        LOST,
        (("connectors.client.incarnation.send_queue.SendQueue.send_table", backwards),),
    ),
    Mutation(
        "no-forward-table",
        "A member forgets its messages once they are sent",
        LOST,
        (("connectors.client.incarnation.driver.Driver.accept", forget_at_once),),
    ),
    Mutation(
        "receipt-for-an-id",
        "A member takes any message ordered under an id for the one that it sent",
        LOST,
        (("connectors.client.incarnation.pending_messages.is_same", any_message),),
    ),
    Mutation(
        "outbox-as-it-is",
        "A starting member does not compare its outbox with what the group has ordered",
        LOST,
        (("connectors.client.incarnation.incarnations.is_same", any_message),),
    ),
    Mutation(
        "no-compare-and-set",
        "A ledger commit does not name the version that it was made from",
        DUPLICATE,
        (("tests.world.ledgers.Table.append", whatever_the_version),),
    ),
    Mutation(
        "waits-for-good",
        "A standby does not notice that the sequencer is gone",
        LOST,
        (("connectors.engine.standby.SequencerSilence.is_long", lambda *_: False),),
        needs=("standbys",),
    ),
    Mutation(
        "count-unread",
        "Readers count one seqno for a record of a later kind that takes several",
        GAP,
        readers(CountlessReader),
        needs=("later",),
    ),
    Mutation(
        "count-not-absorbed",
        "A successor counts one seqno for a record that takes several",
        WRONG_STATE,
        (("ordering.sequencer.sequencer.Reader", CountlessReader),),
        needs=("later",),
    ),
    Mutation(
        "offset-by-seqno",
        "A reader that starts in mid-log counts one seqno per offset, though a record takes several",
        GAP,
        (("connectors.kafka.log.seqno_search._is_at_or_after", at_or_after),),
        needs=("later",),
    ),
    *handover_mutations.MUTATIONS,
    *pack_mutations.MUTATIONS,
)
"""`not-lower-loses` and `not-lower` are one fault with two faces."""
