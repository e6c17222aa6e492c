"""The takeover of a group: every start of a sequencer begins with it, however the one before ended.

There is one way to start. It trusts no lock and no checkpoint, only DATA:

1. Read DATA up to its present end, from the newest snapshot in force (`connectors.kafka.log.log_state`), and rebuild
   the state. Faults of the group are found here, before anything is written: a start that can't go on must not fence
   another sequencer. So a sequencer that does not know the group's format (`ordering.base.formats`) stops here.
2. Append the end of DATA (the *floor*) to the EPOCH topic: the claim. Its offset plus one is the new epoch, so no other
   sequencer has it. If others wrote to EPOCH between survey and claim, survey again: where others tell an offset, a
   seal would hide the loss of a record.
3. Append the seal to DATA: an empty epoch record. From here on every reader ignores further records of lower epochs.
4. Read DATA from the end of the last survey up to the seal, and bring the state up to date. Then ask EPOCH, the signs
   of life and the ledger again: a sequencer that ran until the seal may have told them of records that DATA lost
   before it. What they tell now is from before the seal, or from a newer sequencer, whose claim EPOCH then has.
5. Append the state as the epoch's opening snapshot, append a note of the seal's offset to EPOCH, ask for the ends of
   FORWARD, behind all that the sequencer before has read, and go on.

Invariant: the state from which a sequencer goes on holds everything effective before its seal, and each seqno that
EPOCH or the ledger had when the seal was written; nothing effective of a lower epoch can follow. So numbers are never
reassigned, even if another sequencer still runs. A crash after any step leaves an epoch number without a seal, a seal
without decisions, or an opening snapshot that is true at its offset. The next start does the same again. If DATA loses
its end between two steps, the next record is not behind the one before, the last record of a survey is no longer there,
or others know of more. Then the takeover ends, and notes what the survey found. Nothing was decided, and the others
tell the next start before its claim: no later start goes on from less (`connectors.takeover.survey`).

A sequencer sees a newer one by its claim, and another home by its move, and then leaves the group. The order does not
depend on that: if the sequencer sleeps through the claim, its records are stale for every reader. It takes the group
back only when the newer one gives no sign of life any more, so two sequencers with common groups do not fight over
them. No sequencer seals a claim behind a move to another site, so the seal of the promotion that fenced it
(`connectors.relay.promotion`) is the last one.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from kafka.errors import KafkaError

from connectors.kafka.codec.codec import encode_data
from connectors.kafka.codec.epochs import Note, encode_claim, encode_note
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sending import Record, append
from connectors.kafka.groups.side_by_side import SideBySide
from connectors.kafka.groups.unservable_groups import raise_unservable
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.liveness import ALIVE, SILENT, SecondLook, judge
from connectors.kafka.log.same_log import Ledger, check_reach, lost
from connectors.kafka.log.sign_of_life import Signs, read_signs
from connectors.kafka.log.stored_record import StoredRecord
from connectors.kafka.transport import Consumer, Producer
from connectors.takeover import fencing
from connectors.takeover.same_forward import changed_inputs, from_the_beginning, newest_records
from connectors.takeover.survey import Signed, Survey, check_sealed, horizon, of_these, survey
from ordering.base.errors import AbcastError, BrokerUnreachable, HistoryChanged, HistoryUnavailable, ProtocolViolation
from ordering.base.names import Role, Topic
from ordering.base.reader import Seal, with_seal
from ordering.base.records import Data
from ordering.sequencer.sequencer import absorb, seal, snapshot
from ordering.sequencer.state import SequencerState

_logger = logging.getLogger(__name__)

_UNTOLD = Signs({}, {}, {})
"""The signs of life if Kafka tells none."""

GroupCheck = Callable[[SequencerState], object]
"""A check that raises an error if a group with this state can't be served."""

STALL_S = 0.5
"""The time without a surveyed group after which the surveyed ones are claimed, before the others are."""
_WRITTEN_S = 10.0
"""The longest wait for Kafka to take a record."""
_BOTH_S = 0.02
"""The wait for claims while surveys still run."""
UNSIGNED_S = 60.0
"""The age of a claim whose sequencer has given no sign of life, from which on it is taken to be gone."""


@dataclass(frozen=True, slots=True)
class Claimer:
    """The process that claims groups at a site, and its conditions.

    `claimed`: the epochs that this process has claimed so far, by group; takeovers keep it up to date. With it, no
    group is taken back from a newer sequencer that lives. `opened`: the ends of DATA behind the opening snapshots, by
    group; takeovers keep it up to date. `agreement`: "isis" for a job that agrees with other sites.
    `check_group`: checks each group before its claim. `ledger`: a group is not claimed if its DATA has lost seqnos that
    the ledger has.
    """

    connection: Connection
    site: str
    claimed: dict[str, int] = field(default_factory=dict)
    agreement: str = ""
    check_group: GroupCheck | None = None
    ledger: Ledger | None = None
    opened: dict[str, int] = field(default_factory=dict)


def take_over(connection: Connection, group: str, site: str, claimed: dict[str, int] | None = None) -> SequencerState:
    """Take over one group, with the site's own forward topic only, as `take_over_groups` does; return its state."""
    forward = str(Topic(group, "forward", site))
    by = Claimer(connection, site, {} if claimed is None else claimed)
    return take_over_groups(by, {group: [forward]})[group]


def take_over_groups(by: Claimer, groups: Mapping[str, Iterable[str]]) -> dict[str, SequencerState]:
    """Become the sequencer of the groups (each with the forward topics it reads); return the states to go on from.

    All groups are surveyed before the first is claimed. If one is unservable, none is claimed.

    Raises BrokerUnreachable; Fenced, TopicMissing, HistoryUnavailable, UsageError if all groups are unservable, and
    UnservableGroups if some are.
    """
    states: dict[str, SequencerState] = {}
    unservable: dict[str, AbcastError] = {}
    with contextlib.closing(Takeover(by, groups, claims_some=False)) as takeover:
        while takeover.is_running:
            for group, found in takeover.results(_WRITTEN_S).items():
                if isinstance(found, AbcastError):
                    unservable[group] = found
                else:
                    states[group] = found
    raise_unservable(dict(sorted(unservable.items())), groups)
    return {group: states[group] for group in groups}


class Takeover:
    """Takes groups over side by side. A faulty or unanswered group holds up no other.

    `groups`: each with the forward topics it reads. `claims_some`: servable groups are claimed even if others are not.

    Claims begin when all groups have been surveyed: a fault of the job itself must fence no other sequencer. With
    `claims_some`, they begin after STALL_S without an answer with the surveyed groups; each other group is claimed
    after its survey. Used by one thread at a time; close it.
    """

    def __init__(self, by: Claimer, groups: Mapping[str, Iterable[str]], *, claims_some: bool = True) -> None:
        """Begin to survey the groups. Raises BrokerUnreachable."""
        self._by = by
        self._groups = {group: list(names) for group, names in groups.items()}
        self._claims_some = claims_some
        self._may_claim = False
        self._failures = 0
        self._answered_at = time.monotonic()
        self._surveyed: dict[str, Survey] = {}
        self._results: dict[str, SequencerState | AbcastError] = {}
        self._is_closed = threading.Event()
        self._producer = by.connection.producer()
        self._metadata = by.connection.metadata_client()
        self._signs = self._read_signs(self._groups)
        self._surveys = SideBySide[Survey](by.connection)
        self._claims = SideBySide[SequencerState](by.connection)
        leaderless = self._leaderless()
        for group in self._groups:
            if group in leaderless:
                self._take_failure(group, BrokerUnreachable(f"group {group}: {leaderless[group]} has no leader."))
            else:
                self._surveys.ask(group, functools.partial(self._look_at, group))

    @property
    def is_running(self) -> bool:
        """Whether `results` has not returned every group yet."""
        return bool(self._results or self._surveys.is_waiting or self._surveyed or self._claims.is_waiting)

    def results(self, timeout_s: float) -> dict[str, SequencerState | AbcastError]:
        """Return the next results by group: a state to go on from, or the group's error; {} if none comes in time.

        Raises EnvironmentProblem.
        """
        deadline = time.monotonic() + timeout_s
        while not self._results and self.is_running:
            left = min(deadline - time.monotonic(), STALL_S)
            if self._may_claim and self._claims.is_waiting:
                self._take_claims(max(left, 0.0) if not self._surveys.is_waiting else _BOTH_S)
                self._take_surveys(0.0)
            else:
                self._take_surveys(max(left, 0.0))
            if left <= 0:
                break
        results, self._results = self._results, {}
        return results

    def close(self) -> None:
        """Claim nothing more. Waits for questions that are under way."""
        self._is_closed.set()
        self._producer.abandon()
        self._surveys.close()
        self._claims.close()
        self._metadata.close()

    def _take_surveys(self, timeout_s: float) -> None:
        answers = self._surveys.answers(timeout_s)
        for group, answer in answers.items():
            if isinstance(answer, AbcastError):
                self._take_failure(group, answer)
            else:
                self._surveyed[group] = answer
        now = time.monotonic()
        self._answered_at = now if answers else self._answered_at
        is_stalled = self._claims_some and bool(self._surveyed) and now - self._answered_at >= STALL_S
        if not self._may_claim and (is_stalled or not self._surveys.is_waiting):
            if self._failures and not self._claims_some:
                self._surveyed.clear()
                return
            self._may_claim = True
            self._log_who_serves()
        if self._may_claim:
            for group, found in self._surveyed.items():
                self._claims.ask(group, functools.partial(self._claim, group, found))
            self._surveyed.clear()

    def _take_claims(self, timeout_s: float) -> None:
        for group, found in self._claims.answers(timeout_s).items():
            if isinstance(found, AbcastError):
                self._take_failure(group, found)
            else:
                self._results[group] = found

    def _take_failure(self, group: str, error: AbcastError) -> None:
        self._results[group] = error
        self._failures += 1

    def _leaderless(self) -> dict[str, str]:
        """Return the groups that have a topic without a leader, each with that topic. Asking about them takes long."""
        roles: tuple[Role, ...] = ("data", "epoch")
        group_of = {
            name: group
            for group, forward in self._groups.items()
            for name in (*forward, *(str(Topic(group, role, self._by.site)) for role in roles))
        }
        return {group_of[name]: name for name in sorted(self._by.connection.leaderless(group_of))}

    def _read_signs(self, groups: Iterable[str]) -> Signs:
        with contextlib.suppress(AbcastError, KafkaError):
            return read_signs(self._by.connection, groups, self._by.site, metadata=self._metadata)
        return _UNTOLD

    def _read_signs_again(self, group: str) -> Signs:
        """Return a group's signs of now, or none if Kafka told none at the beginning: each group would wait in vain."""
        return _UNTOLD if self._signs is _UNTOLD else self._read_signs([group])

    def _look_at(self, group: str, consumer: Consumer) -> Survey:
        by, data = self._by, DataLog(self._by.connection, group, self._by.site, consumer)
        self._inherit(data)
        found = self._survey(data, consumer, self._signs)
        horizon(by.connection, consumer, self._groups[group], found.state)  # FORWARD can be read, before any claim
        if by.check_group is not None:
            by.check_group(found.state)
        return found._replace(server=self._who_serves(data))

    def _survey(self, data: DataLog, consumer: Consumer, signs: Signs) -> Survey:
        by, group = self._by, data.topic.group
        found = survey(data, by.claimed, by.agreement, _signed(signs, group), by.ledger)
        newest = newest_records(data, found.end)
        changed, last = changed_inputs(data, consumer, self._groups[group], newest), next(reversed(newest), None)
        return found._replace(changed=changed, last=last)

    def _survey_again(self, found: Survey, consumer: Consumer) -> Survey:
        """Survey a group behind its claim. Raises HistoryChanged also if DATA no longer has what it had."""
        newer = self._survey(found.data, consumer, self._read_signs_again(found.data.topic.group))
        _since(found, newer.end)  # only for its check
        return newer

    def _inherit(self, data: DataLog) -> None:
        """Regard a group's newest claim as this process's own, if its sequencer fenced this process and is silent now.

        One that has claimed and given no sign yet has UNSIGNED_S for it: a takeover may take long. In a group without
        any sign of life, sequencers may lack the right to sign: there none counts as silent.
        """
        group, claim = data.topic.group, data.epochs.read().newest_claim
        sign = self._signs.of_groups.get(group)
        if claim is None or sign is None or self._by.claimed.get(group, claim.epoch) >= claim.epoch:
            return
        look = SecondLook(self._by.connection, [group], self._by.site)
        found = judge(data, sign, functools.partial(look.gives_another, group))
        # A new sign of epoch 0 tells that a sequencer goes on without the group.
        has_time = found.silent_s < UNSIGNED_S or sign.is_new
        if found.state == SILENT and (sign.epoch == claim.epoch or not has_time):
            self._by.claimed[group] = claim.epoch

    def _who_serves(self, data: DataLog) -> str:
        """Return the other process that seems to serve the group now; "" if there is none."""
        group = data.topic.group
        claim = data.epochs.read().newest_claim
        if group in self._by.claimed or claim is None or claim.is_over:
            return ""
        return claim.who if judge(data, self._signs.of_groups.get(group)).state == ALIVE else ""

    def _log_who_serves(self) -> None:
        """Log which groups another process serves, by its signs of life. Nothing depends on it."""
        served: dict[str, list[str]] = {}
        for group, found in self._surveyed.items():
            if found.server:
                served.setdefault(found.server, []).append(group)
        for who, groups in served.items():
            _logger.warning(
                "%s serves %s (by its signs of life). This process takes over, and that one stops.",
                who,
                ", ".join(groups),
            )

    def _claim(self, group: str, found: Survey, consumer: Consumer) -> SequencerState:
        found.data.read_with(consumer)
        if self._is_closed.is_set():
            raise BrokerUnreachable(f"group {group}: the takeover was stopped.")
        newest = found

        def survey_again() -> Survey:
            nonlocal newest
            newest = self._survey_again(found, consumer)
            return newest

        try:
            state = _claim(found, self._producer, self._by, survey_again, self._ask_again)
        except HistoryChanged:
            self._note(newest)
            raise
        # Asked behind the seal, before which the fenced sequencer may have gone on for long since the survey.
        ends, ahead = horizon(self._by.connection, consumer, self._groups[group], state)
        membership = replace(state.membership, horizon=ahead)
        return replace(state, decided=of_these(state.decided, ends), membership=membership)

    def _ask_again(self, found: Survey, state: SequencerState, end: int) -> None:
        """Check that nobody knows of more than DATA had before the seal, which ends at `end`. Raises HistoryChanged."""
        group = found.data.topic.group
        signed = _signed(self._read_signs_again(group), group)
        check_sealed(found, state, end, self._by.claimed[group], signed, self._by.ledger)

    def _note(self, found: Survey) -> None:
        """Note what DATA had: the seal of the start that failed may hide the loss from the next one."""
        note = (None, *encode_note(Note(found.end, found.state.epoch, found.state.seqno)))
        with contextlib.suppress(AbcastError):
            _append(found.data, self._producer, found.data.epochs.topic, note)


def _signed(signs: Signs, group: str) -> Signed:
    sign = signs.of_groups.get(group)
    return Signed(signs.reached.get(group, 0), sign.epoch if sign is not None else 0)


def _claim(
    found: Survey,
    producer: Producer,
    by: Claimer,
    survey_again: Callable[[], Survey],
    ask_again: Callable[[Survey, SequencerState, int], None],
) -> SequencerState:
    """Claim, seal, read the rest, open the epoch. Return the state that its snapshot tells."""
    data, claimed = found.data, by.claimed
    group = data.topic.group
    if group in claimed:
        fencing.check_not_fenced(data, claimed[group])
    floor = data.end(found.end)
    check_reach(data, floor, [(found.end, "the survey says")])
    claim = (None, *encode_claim(floor, by.agreement, found.format))
    try:
        claimed_at = _append(data, producer, data.epochs.topic, claim)
    except AbcastError:
        claimed.pop(group, None)  # the record may get there yet: then a newer claim is our own
        raise
    has_changed = claimed_at != found.told
    if has_changed:
        fencing.check_is_home(data)
    epoch = data.epochs.known.epoch_of_claim(claimed_at)
    claimed[group] = epoch
    if has_changed:
        found = survey_again()._replace(format=found.format)  # the claim has told it
    sealed_at = _append_data(data, producer, seal(epoch, found.format))
    before = absorb(found.state, (stored.data for stored in _since(found, sealed_at)))
    if before.epoch >= epoch:
        fencing.check_not_fenced(data, epoch)
        raise ProtocolViolation(
            f"{data.topic} has epoch {before.epoch} before the seal of {epoch}: find out which program writes there."
        )
    ask_again(found, before, sealed_at + 1)
    seals = with_seal(before.seals, Seal(epoch, before.seqno + 1))
    of_format = max(found.format, before.format)  # another sequencer may have upgraded the group since the survey
    state = replace(before, epoch=epoch, seals=seals, unsnapped=0, format=of_format)
    state = from_the_beginning(state, found.changed)  # in the snapshot, too: soon DATA names only the new log
    opened_at = _append_data(data, producer, snapshot(state))
    _append(data, producer, data.epochs.topic, (None, *encode_note(Note(sealed_at + 1, epoch, state.seqno))))
    check_reach(data, opened_at, [(sealed_at + 1, "its seal says")])
    by.opened[group] = opened_at + 1
    _logger.info("group %s: epoch %d begins after seqno %d", group, epoch, state.seqno)
    return state


def _since(found: Survey, end: int) -> Iterator[StoredRecord]:
    """Return the records of DATA from the survey's end to `end`. Raises HistoryChanged if DATA was cut since."""
    data, last = found.data, found.last
    if last is not None:
        with contextlib.suppress(HistoryUnavailable):  # a purge of what the survey has read
            records = data.records(last.offset, end)
            if next(records, None) != last:
                raise lost(data, f"has another record at offset {last.offset} than a moment ago, or none")
            return records
    return data.records(found.end, end)


def _append_data(data: DataLog, producer: Producer, record: Data) -> int:
    return _append(data, producer, str(data.topic), encode_data(record))


def _append(data: DataLog, producer: Producer, topic: str, record: Record) -> int:
    """Append a record; return its offset. Raises as `append`."""
    return append(data.connection, topic, record, producer=producer, timeout_s=_WRITTEN_S)
