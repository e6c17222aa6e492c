"""Mutations of the design: each breaks a rule on purpose, and the simulator must name the violation.

A mutation switches a rule of the actors off, or replaces a piece of the core, for the time of a run. The product can't
reach any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from connectors.kafka.log.stored_record import StoredRecords
from ordering.base.reader import Reader, Verdict
from ordering.base.records import FORGET, STRAY, Data, Headers
from ordering.checker.anomalies import DIVERGENT, DUPLICATE, FIFO_VIOLATION, GAP, LOST
from ordering.membership.forgetting import SenderRow, from_payload
from ordering.membership.membership import Fold, Membership, ReceivedRow
from ordering.participant.forward_table import Pending
from ordering.participant.participant import Participant, ParticipantStep, step
from ordering.participant.participant_events import Event, RowKnown
from ordering.sequencer.pipeline import Begun, Pipeline
from ordering.sequencer.sequencer import begin_batch
from tests.simulator.mutation import Mutation
from tests.simulator.rules import Rules
from tests.simulator.world import WRONG_STATE


class EpochBlindReader(Reader):
    """Takes the records that a fenced sequencer left behind the seal."""

    def accept(self, kind: str, epoch: int, seqno: int, count: int = 1) -> Verdict:
        return super().accept(kind, max(epoch, self.epoch), seqno, count)


class GreedyReader(Reader):
    """Takes a record ahead of its turn."""

    def accept(self, kind: str, epoch: int, seqno: int, count: int = 1) -> Verdict:
        verdict = super().accept(kind, epoch, seqno, count)
        if verdict is Verdict.AHEAD:
            self.last_seqno = seqno
            return Verdict.TAKE
        return verdict


class RepeatingReader(Reader):
    """Takes repeated records."""

    def accept(self, kind: str, epoch: int, seqno: int, count: int = 1) -> Verdict:
        verdict = super().accept(kind, epoch, seqno, count)
        return Verdict.TAKE if verdict is Verdict.DUPLICATE else verdict


class StrayReader(Reader):
    """Counts records that are no DATA as if they had a seqno."""

    def accept(self, kind: str, epoch: int, seqno: int, count: int = 1) -> Verdict:
        self.last_seqno += kind == STRAY
        return super().accept(kind, epoch, seqno, count)


class CountlessReader(Reader):
    """Takes each record for one with a single seqno."""

    def accept(self, kind: str, epoch: int, seqno: int, count: int = 1) -> Verdict:
        return super().accept(kind, epoch, seqno)


def epoch_0(_right: int) -> int:
    """Resume in mid-log as if no epoch had been sealed yet."""
    return 0


def not_lower(accepted: ReceivedRow, incarnation: int, local_seqno: int) -> ReceivedRow | None:
    """The SEQUENCER seed's rule: 'discard if not higher' (JGRP-1461: message 1 is lost if 2 overtakes it)."""
    return ReceivedRow(incarnation, local_seqno) if (incarnation, local_seqno) > accepted else None


def any_incarnation(accepted: ReceivedRow, incarnation: int, local_seqno: int) -> ReceivedRow | None:
    """Accept the next local seqno of any incarnation: all count as one."""
    return ReceivedRow(incarnation, local_seqno) if local_seqno == accepted.local_seqno + 1 else None


def higher_incarnation_anywhere(accepted: ReceivedRow, incarnation: int, local_seqno: int) -> ReceivedRow | None:
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


def at_or_after(_log: StoredRecords, _offset: int, _seqno: int, _epoch: int) -> bool:
    """Say of every offset that the record is there or later."""
    return True


def of_its_life(participant: Participant, event: Event) -> ParticipantStep:
    """Let a member not learn that its name has a row."""
    return ParticipantStep(participant) if isinstance(event, RowKnown) else step(participant, event)


_NEXT_ACCEPTED = "ordering.sequencer.sequencer.next_accepted"
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
        "deaf-to-its-end",
        "A member goes on in an incarnation that the group has forgotten",
        LOST,
        rules=Rules(step=deaf),
    ),
    Mutation(
        "knows-no-row",
        "A member does not learn that its name has a row",
        DUPLICATE,
        rules=Rules(step=of_its_life),
    ),
    Mutation(
        "epoch-ignored",
        "Readers take the records of a fenced sequencer",
        DIVERGENT,
        rules=Rules(reader=EpochBlindReader),
    ),
    Mutation(
        "not-lower",
        "The sequencer accepts any higher local seqno, instead of go-back-N",
        FIFO_VIOLATION,
        ((_NEXT_ACCEPTED, not_lower),),
        rules=Rules(columns=False),
    ),
    Mutation(
        "not-lower-loses",
        "The sequencer does the same, and a sender loses a message",
        LOST,
        ((_NEXT_ACCEPTED, not_lower),),
        rules=Rules(columns=False),
    ),
    Mutation(
        "claims-not-unique",
        "Two sequencers that claim the same epoch both go on",
        DIVERGENT,
        from_seed=60,
        rules=Rules(unique_claims=False, yield_to_others=False),
    ),
    Mutation(
        "floor-after-claim",
        "A sequencer notes the floor after its claim",
        DIVERGENT,
        from_seed=150,
        rules=Rules(floor_first=False),
    ),
    Mutation(
        "claims-before-end",
        "A sequencer reads the claims before the end of DATA",
        WRONG_STATE,
        from_seed=790,
        rules=Rules(claims_after_end=False),
    ),
    Mutation(
        "snapshot-in-the-middle",
        "A sequencer writes a snapshot in the middle of a batch",
        DIVERGENT,
        rules=Rules(snapshot_first=False),
    ),
    Mutation(
        "retry-inside-the-epoch",
        "A sequencer tries a batch again inside its epoch",
        DIVERGENT,
        from_seed=245,
        rules=Rules(one_attempt=False),
    ),
    Mutation(
        "goes-on-after-a-failed-write",
        "A sequencer takes a failed write for done",
        LOST,
        rules=Rules(takes_over_anew=False),
    ),
    Mutation(
        "snapshot-while-in-flight",
        "A sequencer writes a snapshot while a batch that it counts is in flight",
        DIVERGENT,
        rules=Rules(begin=at_any_depth),
    ),
    Mutation(
        "late-out-of-order",
        "The producer writes late records out of order",
        WRONG_STATE,
        from_seed=30,
        rules=Rules(writes_in_order=False),
    ),
    Mutation(
        "arrival-order",
        "The sequencer numbers rows in the order in which Spark hands them over",
        LOST,
        rules=Rules(sort_rows=False, columns=False),
    ),
    Mutation(
        "no-dedupe", "Readers take repeated records", DUPLICATE, rules=Rules(reader=RepeatingReader, columns=False)
    ),
    Mutation("ahead", "Readers take records ahead of their turn", GAP, rules=Rules(reader=GreedyReader, columns=False)),
    Mutation(
        "purged-as-decided",
        "A purge of FORWARD goes by the decided offsets, not by the snapshot's positions",
        WRONG_STATE,
        rules=Rules(purged_below=lambda state: state.decided),
    ),
    Mutation(
        "stray-counted",
        "Readers count a seqno for a record that is no DATA",
        GAP,
        rules=Rules(reader=StrayReader, columns=False),
    ),
    Mutation("epoch-0", "A reader resumes in mid-log with epoch 0", DIVERGENT, rules=Rules(resume_epoch=epoch_0)),
    Mutation(
        "one-life",
        "The sequencer takes all incarnations of a member for one",
        LOST,
        ((_NEXT_ACCEPTED, any_incarnation),),
        rules=Rules(columns=False),
    ),
    Mutation(
        "life-from-anywhere",
        "The sequencer lets an incarnation begin at any local seqno",
        FIFO_VIOLATION,
        ((_NEXT_ACCEPTED, higher_incarnation_anywhere),),
        rules=Rules(columns=False),
    ),
    Mutation(
        "resend-backwards",
        "A member resends its forward table in decreasing order",
        LOST,
        rules=Rules(resend_in_order=False),
    ),
    Mutation(
        "no-forward-table",
        "A member forgets its messages once they are sent",
        LOST,
        rules=Rules(keep_forward_table=False),
    ),
    Mutation(
        "receipt-for-an-id",
        "A member takes any message ordered under an id for the one that it sent",
        LOST,
        rules=Rules(is_same=any_message),
    ),
    Mutation(
        "outbox-as-it-is",
        "A starting member does not compare its outbox with what the group has ordered",
        LOST,
        (("connectors.client.incarnation.incarnations.is_same", any_message),),
        from_seed=290,
    ),
    Mutation(
        "no-compare-and-set",
        "A ledger commit does not name the version that it was made from",
        DUPLICATE,
        rules=Rules(compare_and_set=False),
    ),
    Mutation(
        "count-unread",
        "Readers count one seqno for a record of a later kind that takes several",
        GAP,
        rules=Rules(reader=CountlessReader),
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
)
"""`not-lower-loses` and `not-lower` are one fault with two faces."""
