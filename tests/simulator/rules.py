"""Which of the design's rules the simulated processes keep: all of them, unless a mutation breaks one on purpose."""

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
    """An epoch is where the broker put the claim, not one more than what was seen before."""
    yield_to_others: bool = True
    """It gives up if a seal as high as its own, or higher, stands before its own."""
    floor_first: bool = True
    """DATA's end is noted before the claim, and not behind the seal."""
    seal_first: bool = True
    """A takeover writes its seal before it reads what there is."""
    read_back: bool = True
    """It then reads DATA up to the seal, instead of trusting what stood there when it began."""
    claims_after_end: bool = True
    """It reads the claims after it knows where DATA is to be read to, not when it began."""
    one_attempt: bool = True
    """A batch is never tried again inside its epoch."""
    takes_over_anew: bool = True
    """A write that fails ends the epoch; nothing goes on from what is in memory."""
    begin: Callable[[Pipeline], Begun | None] = Pipeline.begin
    """When a batch may begin, and with what."""
    snapshot_first: bool = True
    """A snapshot is the first record of its batch, not one in the middle."""
    writes_in_order: bool = True
    """What comes late of a write comes in its order (the idempotent producer's promise)."""
    sort_rows: bool = True
    """A batch is sorted by source; Spark hands it over in any order, another one each time."""
    resend_in_order: bool = True
    """A member sends its forward table again in increasing order of local seqnos."""
    compare_and_set: bool = True
    """A ledger commit fails if somebody else has committed since the table was read."""
    reader: type[Reader] = Reader
    """The reading rule of members, deliverers and ledger writers (not the checker's)."""
    resume_epoch: Callable[[int], int] = int
    """Which epoch it resumes with, given the right one."""
    columns: bool = True
    """Batches are decided by `step` or by `step_columns`, at random; else by `step` only (mutations patch it)."""
    is_same: Callable[[Pending, str, bytes, Headers], bool] = is_same
    """Whether what was ordered under an id is what a member has sent under it."""
    purged_below: Callable[[SequencerState], Mapping[Partition, int]] = attrgetter("positions")
    """Below which offset FORWARD is purged, by the state that DATA tells (`connectors.kafka.topics.purge`)."""
    step: Callable[[Participant, Event], ParticipantStep] = step
    """What a member makes of what it hears of itself."""
    keep_forward_table: bool = True
    """A member keeps a message until its own DATA comes back."""
