"""The design's rules that the simulated processes keep: all, unless a mutation breaks one on purpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from connectors.client.incarnation.incarnations import is_same
from ordering.base.reader import Reader
from ordering.base.records import Headers, Partition
from ordering.participant.forward_table import Pending
from ordering.participant.participant import Participant, ParticipantStep, step
from ordering.participant.participant_events import Event
from ordering.sequencer.pipeline import Begun, Pipeline
from ordering.sequencer.state import SequencerState


@dataclass(frozen=True)
class Rules:
    """Switches for what the actors do themselves; `mutations` also patches the core."""

    unique_claims: bool = True
    """An epoch is the offset of its claim, not one more than the last known epoch."""
    yield_to_others: bool = True
    """A sequencer gives up if a seal as high as its own, or higher, comes before its own."""
    floor_first: bool = True
    """DATA's end is noted before the claim, and not behind the seal."""
    claims_after_end: bool = True
    """A sequencer reads the claims once it knows the end of DATA to read to, not when it begins."""
    one_attempt: bool = True
    """A batch is never tried again inside its epoch."""
    takes_over_anew: bool = True
    """A failed write ends the epoch; nothing goes on from memory."""
    begin: Callable[[Pipeline], Begun | None] = Pipeline.begin
    """Whether a batch may begin, and its input."""
    snapshot_first: bool = True
    """A snapshot is the first record of its batch, not one in the middle."""
    writes_in_order: bool = True
    """Late records of a write come in their order (the idempotent producer's promise)."""
    sort_rows: bool = True
    """A batch is sorted by source; Spark hands it over in any order, another one each time."""
    resend_in_order: bool = True
    """A member sends its forward table again in increasing order of local seqnos."""
    compare_and_set: bool = True
    """A ledger commit fails if somebody else has committed since the table was read."""
    reader: type[Reader] = Reader
    """The reading rule of members, deliverers and ledger writers (not the checker's)."""
    resume_epoch: Callable[[int], int] = int
    """The epoch that it resumes with, given the right one."""
    columns: bool = True
    """Batches are decided by `step` or by `step_columns`, at random; else by `step` only (mutations patch it)."""
    is_same: Callable[[Pending, str, bytes, Headers], bool] = is_same
    """Whether the message ordered under an id is the one that the member has sent under it."""
    purged_below: Callable[[SequencerState], Mapping[Partition, int]] = attrgetter("positions")
    """Below which offset FORWARD is purged, by the state that DATA tells (`connectors.kafka.topics.purge`)."""
    step: Callable[[Participant, Event], ParticipantStep] = step
    """A member's step on a record about itself."""
    keep_forward_table: bool = True
    """A member keeps a message until its own DATA comes back."""
