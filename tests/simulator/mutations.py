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
    """Takes what a fenced sequencer left behind the seal."""

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
    """Takes what it has taken before."""

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
    """Go-back-N that takes all lives of a member for one."""
    return ReceivedRow(incarnation, local_seqno) if local_seqno == accepted.local_seqno + 1 else None


def higher_incarnation_anywhere(accepted: ReceivedRow, incarnation: int, local_seqno: int) -> ReceivedRow | None:
    """A new life may begin with any local seqno, so its first message can be overtaken by its second."""
    if incarnation > accepted.incarnation:
        return ReceivedRow(incarnation, local_seqno)
    if incarnation == accepted.incarnation and local_seqno == accepted.local_seqno + 1:
        return ReceivedRow(incarnation, local_seqno)
    return None


def any_message(_ours: Pending, _kind: str, _payload: bytes, _headers: Headers) -> bool:
    """Accept any DATA of the id."""
    return True


def at_any_depth(pipeline: Pipeline) -> Begun | None:
    """A batch waits for none before it, whatever it begins with."""
    return Begun(*begin_batch(pipeline.state)) if len(pipeline.in_flight) < pipeline.depth else None


def asked_for(rows: Sequence[SenderRow], *_: object) -> tuple[SenderRow, ...]:
    """Forget a named sender that has sent since."""
    return tuple(rows)


def without_a_floor(membership: Membership, record: Data, received: Mapping[str, ReceivedRow]) -> Fold:
    """The rows go, and an old incarnation is as good as a new one."""
    rows = from_payload(record.payload) or ()
    return Fold(membership, tuple(row.sender for row in rows if received.get(row.sender) == row[1:]))


def deaf(participant: Participant, event: Event) -> ParticipantStep:
    """Let a member not read that it is forgotten."""
    is_control = isinstance(event, Data) and event.kind == FORGET
    return ParticipantStep(participant) if is_control else step(participant, event)


def at_or_after(_log: StoredRecords, _offset: int, _seqno: int, _epoch: int) -> bool:
    """Whatever lies at the offset is taken for the record, or for one before it."""
    return True


def of_its_life(participant: Participant, event: Event) -> ParticipantStep:
    """A member does not know that an earlier life of it has a row."""
    return ParticipantStep(participant) if isinstance(event, RowKnown) else step(participant, event)


_NEXT_ACCEPTED = "ordering.sequencer.sequencer.next_accepted"
MUTATIONS = (
    Mutation(
        "forgets-too-early",
        "who has sent since somebody looked is forgotten all the same",
        DUPLICATE,
        (("ordering.membership.membership.forgettable", asked_for),),
    ),
    Mutation(
        "no-floor",
        "who is forgotten may come again with an old incarnation",
        DUPLICATE,
        (("ordering.membership.membership._forget", without_a_floor),),
    ),
    Mutation("deaf-to-its-end", "a member goes on in a life that is forgotten", LOST, rules=Rules(step=deaf)),
    Mutation(
        "knows-no-row",
        "a member takes itself for one without a row",
        DUPLICATE,
        rules=Rules(step=of_its_life),
    ),
    Mutation(
        "epoch-ignored", "readers take what a fenced sequencer writes", DIVERGENT, rules=Rules(reader=EpochBlindReader)
    ),
    Mutation(
        "not-lower",
        "'not lower' in the place of go-back-N",
        FIFO_VIOLATION,
        ((_NEXT_ACCEPTED, not_lower),),
        rules=Rules(columns=False),
    ),
    Mutation(
        "not-lower-loses",
        "the same, as the sender sees it",
        LOST,
        ((_NEXT_ACCEPTED, not_lower),),
        rules=Rules(columns=False),
    ),
    Mutation(
        "claims-not-unique",
        "two that claim one epoch both go on",
        DIVERGENT,
        from_seed=60,
        rules=Rules(unique_claims=False, yield_to_others=False),
    ),
    Mutation(
        "floor-after-claim",
        "the floor is noted after the claim",
        DIVERGENT,
        from_seed=150,
        rules=Rules(floor_first=False),
    ),
    Mutation(
        "claims-before-end",
        "the claims are read before the end of DATA",
        WRONG_STATE,
        from_seed=790,
        rules=Rules(claims_after_end=False),
    ),
    Mutation(
        "snapshot-in-the-middle",
        "a snapshot is written in the middle of a batch",
        DIVERGENT,
        rules=Rules(snapshot_first=False),
    ),
    Mutation(
        "retry-inside-the-epoch",
        "a task is run again inside its epoch",
        DIVERGENT,
        from_seed=245,
        rules=Rules(one_attempt=False),
    ),
    Mutation(
        "goes-on-after-a-failed-write",
        "what was decided and not written is taken for written",
        LOST,
        rules=Rules(takes_over_anew=False),
    ),
    Mutation(
        "snapshot-while-in-flight",
        "a snapshot is written before what it counts is known to be",
        DIVERGENT,
        rules=Rules(begin=at_any_depth),
    ),
    Mutation(
        "late-out-of-order",
        "the producer writes out of order",
        WRONG_STATE,
        from_seed=30,
        rules=Rules(writes_in_order=False),
    ),
    Mutation(
        "arrival-order",
        "numbers depend on the order in which Spark hands rows over",
        LOST,
        rules=Rules(sort_rows=False, columns=False),
    ),
    Mutation("no-dedupe", "readers take repeats", DUPLICATE, rules=Rules(reader=RepeatingReader, columns=False)),
    Mutation("ahead", "readers take records ahead of their turn", GAP, rules=Rules(reader=GreedyReader, columns=False)),
    Mutation(
        "purged-as-decided",
        "FORWARD is purged below what was decided, though a successor reads from the snapshot's positions",
        WRONG_STATE,
        rules=Rules(purged_below=lambda state: state.decided),
    ),
    Mutation("stray-counted", "what is no DATA takes a seqno", GAP, rules=Rules(reader=StrayReader, columns=False)),
    Mutation("epoch-0", "a reader resumes in mid-log with epoch 0", DIVERGENT, rules=Rules(resume_epoch=epoch_0)),
    Mutation(
        "one-life",
        "incarnations are not compared",
        LOST,
        ((_NEXT_ACCEPTED, any_incarnation),),
        rules=Rules(columns=False),
    ),
    Mutation(
        "life-from-anywhere",
        "an incarnation need not begin at 1",
        FIFO_VIOLATION,
        ((_NEXT_ACCEPTED, higher_incarnation_anywhere),),
        rules=Rules(columns=False),
    ),
    Mutation(
        "resend-backwards",
        "the forward table is sent again in decreasing order",
        LOST,
        rules=Rules(resend_in_order=False),
    ),
    Mutation("no-forward-table", "a member forgets what it has sent", LOST, rules=Rules(keep_forward_table=False)),
    Mutation(
        "receipt-for-an-id",
        "a member takes whatever was ordered under an id of its own for what it has sent under it",
        LOST,
        rules=Rules(is_same=any_message),
    ),
    Mutation(
        "outbox-as-it-is",
        "a start does not look whether the group has ordered what the outbox has",
        LOST,
        (("connectors.client.incarnation.incarnations.is_same", any_message),),
        from_seed=290,
    ),
    Mutation(
        "no-compare-and-set",
        "a ledger commit does not name the version it was made from",
        DUPLICATE,
        rules=Rules(compare_and_set=False),
    ),
    Mutation(
        "count-unread",
        "readers take one seqno for a record of a later kind that takes several",
        GAP,
        rules=Rules(reader=CountlessReader),
        needs=("later",),
    ),
    Mutation(
        "count-not-absorbed",
        "a successor takes one seqno for such a record",
        WRONG_STATE,
        (("ordering.sequencer.sequencer.Reader", CountlessReader),),
        needs=("later",),
    ),
    Mutation(
        "offset-by-seqno",
        "a reader that starts in mid-log counts a seqno an offset, though a record takes several",
        GAP,
        (("connectors.kafka.log.seqno_search._is_at_or_after", at_or_after),),
        needs=("later",),
    ),
)
"""`not-lower-loses` and `not-lower` are one fault with two faces."""
