"""Seal, then take over: how every start of a sequencer begins, however the one before ended.

There is one way to start, and it trusts no lock and no checkpoint, only DATA:

1. read DATA up to where it ends now, from the newest snapshot in force (`connectors.kafka.data_log`), and rebuild the
   state. What is wrong with the group is found here, before anything is written: a start that can't go on must not
   fence another sequencer. So one that does not know the group's format (`ordering.formats`) stops here;
2. note where DATA ends (the *floor*) and append it to the EPOCH topic: the claim. Its offset plus one is our epoch,
   so no other sequencer has it;
3. append the seal to DATA: an empty epoch record. From here on every reader ignores what lower epochs still write;
4. read DATA on from where 1 ended up to the seal, and with it the state;
5. append the state as the epoch's opening snapshot, and a note of where the seal stands to EPOCH, and go on.

Invariant: the state that a sequencer goes on from holds everything effective before its seal, and nothing effective
of a lower epoch can follow. So numbers are never reassigned, even if another sequencer still runs. A crash after any
step leaves an epoch number without a seal, a seal without decisions, or an opening snapshot that is true where it
stands. The next start does the same again.

A sequencer sees a newer one by its claim, and another home by its move, and leaves the group. That is a courtesy, not
what keeps the order: if it sleeps through the claim, what it writes is stale for every reader. It takes the group back
only when the newer one gives no sign of life any more, so two that have groups in common do not fight over them. No
sequencer seals a claim that stands behind a move to another site, so the seal of who has fenced it
(`connectors.relay.promotion`) is the last one.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from kafka.errors import KafkaError

from connectors.kafka.backlog import find_backlog
from connectors.kafka.codec import encode_data
from connectors.kafka.connection import Connection
from connectors.kafka.data_log import DataLog
from connectors.kafka.epochs import Claim, Note, encode_claim, encode_note, seconds_to_yield, this_host
from connectors.kafka.group_choice import ALL_GROUPS, GroupChoice
from connectors.kafka.liveness import ALIVE, SILENT, judge, look_again
from connectors.kafka.same_log import Fit, Ledger, check_reach, fit, lost
from connectors.kafka.sending import Record, append
from connectors.kafka.side_by_side import SideBySide
from connectors.kafka.sign_of_life import Signs, read_signs
from connectors.kafka.topics import find_groups
from connectors.kafka.transport import Consumer, Producer
from connectors.kafka.unfit import raise_unfit
from connectors.sequencer.same_forward import changed_inputs, from_the_beginning
from ordering.errors import (
    AbcastError,
    BrokerUnreachable,
    Fenced,
    HistoryUnavailable,
    NoSnapshot,
    ProtocolViolation,
    UsageError,
)
from ordering.formats import FIRST, NEWEST
from ordering.names import Role, Topic
from ordering.reader import Seal
from ordering.records import MAX_RECORD_BYTES, Data, Partition
from ordering.sequencer import SequencerState, absorb, seal, snapshot

_logger = logging.getLogger(__name__)

Fitness = Callable[[SequencerState], object]
"""Raises what keeps a group whose DATA tells this state from being served."""


STALL_S = 0.5
"""When no group has been looked at for so long, the others are claimed."""
_WRITTEN_S = 10.0
"""How long a takeover waits until Kafka has a record."""
_BOTH_S = 0.02
"""Claims are waited for so long, while groups are still looked at."""
MAX_SNAPSHOT_BYTES = MAX_RECORD_BYTES - 4096
"""Beside it a record has a header, and the state gets a seal more."""


class _Survey(NamedTuple):
    """What a group's DATA tells below offset `end`. `server`: who seems to serve the group; "" for nobody.

    `format`: the group's from here on. `changed`: partitions of FORWARD that are not what DATA was made from.
    """

    data: DataLog
    state: SequencerState
    end: int
    ends: Mapping[Partition, int] = {}
    horizon: Mapping[Partition, int] = {}
    server: str = ""
    format: int = FIRST.number
    changed: Collection[Partition] = ()


def take_over(connection: Connection, group: str, site: str, claimed: dict[str, int] | None = None) -> SequencerState:
    """`take_over_groups` of one group, which reads the site's own forward topic."""
    forward = str(Topic(group, "forward", site))
    return take_over_groups(connection, {group: [forward]}, site, claimed)[group]


def take_over_groups(
    connection: Connection,
    groups: Mapping[str, Iterable[str]],
    site: str,
    claimed: dict[str, int] | None = None,
    *,
    agreement: str = "",
    fitness: Fitness | None = None,
    ledger: Ledger | None = None,
) -> dict[str, SequencerState]:
    """Become the sequencer of the groups (each with the forward topics it reads); return the states to go on from.

    All groups are looked at before the first is claimed, and none is claimed where one is unfit. The arguments are
    those of `Takeover`.

    Raises BrokerUnreachable; Fenced, TopicMissing, HistoryUnavailable, UsageError where all groups are unfit, and
    UnfitGroups where some are.
    """
    states: dict[str, SequencerState] = {}
    unfit: dict[str, AbcastError] = {}
    with contextlib.closing(
        Takeover(
            connection,
            groups,
            site,
            claimed,
            agreement=agreement,
            fitness=fitness,
            claims_some=False,
            ledger=ledger,
        )
    ) as takeover:
        while takeover.is_running:
            for group, found in takeover.results(_WRITTEN_S).items():
                if isinstance(found, AbcastError):
                    unfit[group] = found
                else:
                    states[group] = found
    raise_unfit(dict(sorted(unfit.items())), groups)
    return {group: states[group] for group in groups}


class Takeover:
    """Takes groups over side by side. What is wrong with one, or is not answered of it, holds up no other.

    `groups`: each with the forward topics it reads. `claimed` has the epochs that this process
    has claimed so far, by group, and is kept up to date: it takes no group back from a newer sequencer. `agreement`:
    "isis" for a job that agrees with other sites. `fitness` is asked of every group before it is claimed.
    `claims_some`: those that are fit are claimed, whatever the others are. `ledger`: what it has is not decided again.

    Claims begin when all groups have been looked at, since what is wrong with the job itself must fence nobody. A group
    of which nothing is answered for STALL_S is no longer waited for; it is claimed when it has been looked at. One
    thread at a time; close it.
    """

    def __init__(
        self,
        connection: Connection,
        groups: Mapping[str, Iterable[str]],
        site: str,
        claimed: dict[str, int] | None = None,
        *,
        agreement: str = "",
        fitness: Fitness | None = None,
        claims_some: bool = True,
        ledger: Ledger | None = None,
    ) -> None:
        """Raises BrokerUnreachable."""
        self._connection, self._site, self._agreement = connection, site, agreement
        self._groups = {group: list(names) for group, names in groups.items()}
        self._fitness, self._ledger = fitness, ledger
        self._claimed = {} if claimed is None else claimed
        self._claims_some = claims_some
        self._may_claim = False
        self._unfit = 0
        self._answered_at = time.monotonic()
        self._surveyed: dict[str, _Survey] = {}
        self._told: dict[str, SequencerState | AbcastError] = {}
        self._is_closed = threading.Event()
        self._producer = connection.producer()
        self._signs = self._read_signs()
        self._surveys = SideBySide[_Survey](connection)
        self._claims = SideBySide[SequencerState](connection)
        leaderless = self._leaderless()
        for group in self._groups:
            if group in leaderless:
                self._take_unfit(group, BrokerUnreachable(f"group {group}: {leaderless[group]} has no leader."))
            else:
                self._surveys.ask(group, functools.partial(self._look_at, group))

    @property
    def is_running(self) -> bool:
        """Whether there are groups of which `results` has not told."""
        return bool(self._told or self._surveys.is_waiting or self._surveyed or self._claims.is_waiting)

    def results(self, timeout_s: float) -> dict[str, SequencerState | AbcastError]:
        """The next states to go on from, by group, or what is wrong with it; none if none come in time.

        Raises EnvironmentProblem.
        """
        deadline = time.monotonic() + timeout_s
        while not self._told and self.is_running:
            left = min(deadline - time.monotonic(), STALL_S)
            if not self._may_claim:
                self._take_surveys(max(left, 0.0))
            elif self._claims.is_waiting:
                self._take_claims(max(left, 0.0) if not self._surveys.is_waiting else _BOTH_S)
                self._take_surveys(0.0)
            else:
                self._take_surveys(max(left, 0.0))
            if left <= 0:
                break
        told, self._told = self._told, {}
        return told

    def close(self) -> None:
        """Claim nothing more. What is being asked is waited for."""
        self._is_closed.set()
        self._producer.abandon()
        self._surveys.close()
        self._claims.close()

    def _take_surveys(self, timeout_s: float) -> None:
        answers = self._surveys.answers(timeout_s)
        for group, found in answers.items():
            if isinstance(found, AbcastError):
                self._take_unfit(group, found)
            else:
                self._surveyed[group] = found
        now = time.monotonic()
        self._answered_at = now if answers else self._answered_at
        is_stalled = self._claims_some and bool(self._surveyed) and now - self._answered_at >= STALL_S
        if not self._may_claim and (is_stalled or not self._surveys.is_waiting):
            if self._unfit and not self._claims_some:
                self._surveyed.clear()
                return
            self._may_claim = True
            self._tell_who_serves()
        if self._may_claim:
            for group, survey in self._surveyed.items():
                self._claims.ask(group, functools.partial(self._claim, group, survey))
            self._surveyed.clear()

    def _take_claims(self, timeout_s: float) -> None:
        for group, found in self._claims.answers(timeout_s).items():
            if isinstance(found, AbcastError):
                self._take_unfit(group, found)
            else:
                self._told[group] = found

    def _take_unfit(self, group: str, error: AbcastError) -> None:
        self._told[group] = error
        self._unfit += 1

    def _leaderless(self) -> dict[str, str]:
        """Groups that have a topic without a leader, each with one. Nothing is asked of these: it would take long."""
        roles: tuple[Role, ...] = ("data", "epoch")
        group_of = {
            name: group
            for group, forward in self._groups.items()
            for name in (*forward, *(str(Topic(group, role, self._site)) for role in roles))
        }
        return {group_of[name]: name for name in sorted(self._connection.leaderless(group_of))}

    def _read_signs(self) -> Signs:
        with contextlib.suppress(AbcastError, KafkaError):
            return read_signs(self._connection, self._groups, self._site)
        return Signs({}, {}, {})

    def _look_at(self, group: str, consumer: Consumer) -> _Survey:
        data = DataLog(self._connection, group, self._site, consumer)
        self._inherit(data)
        signed = self._signs.reached.get(group, 0)
        found = _survey(data, self._claimed, self._agreement, signed, self._ledger)
        if self._fitness is not None:
            self._fitness(found.state)
        ends, horizon = _horizon(self._connection, consumer, self._groups[group], found.state)
        changed = changed_inputs(data, consumer, self._groups[group], found.end)
        return found._replace(ends=ends, horizon=horizon, changed=changed, server=self._who_serves(data))

    def _inherit(self, data: DataLog) -> None:
        """Take the group of which this process was fenced for its own again, if the newer sequencer has fallen silent.

        One that never gave a sign may lack the right to: it is not taken for dead.
        """
        group, claim = data.topic.group, data.newest_claim()
        sign = self._signs.of_groups.get(group)
        if claim is None or sign is None or not self._claimed.get(group, claim.epoch) < claim.epoch == sign.epoch:
            return
        again = functools.partial(look_again, self._connection, group, self._site)
        if judge(data, sign, again).state == SILENT:
            self._claimed[group] = claim.epoch

    def _who_serves(self, data: DataLog) -> str:
        """Which other process seems to serve the group now; "" if none does."""
        group = data.topic.group
        claim = data.newest_claim()
        if group in self._claimed or claim is None or claim.is_over:
            return ""
        return claim.who if judge(data, self._signs.of_groups.get(group)).state == ALIVE else ""

    def _tell_who_serves(self) -> None:
        """Say which groups another process serves, as its signs of life tell. Nothing rests on it."""
        served: dict[str, list[str]] = {}
        for group, survey in self._surveyed.items():
            if survey.server:
                served.setdefault(survey.server, []).append(group)
        for who, groups in served.items():
            _logger.warning(
                "%s serves %s, as its signs of life tell. It stops now, as this process takes over.",
                who,
                ", ".join(groups),
            )

    def _claim(self, group: str, survey: _Survey, consumer: Consumer) -> SequencerState:
        survey.data.read_with(consumer)
        if self._is_closed.is_set():
            raise BrokerUnreachable(f"group {group}: the takeover was ended.")
        state = from_the_beginning(_claim(survey, self._producer, self._claimed, self._agreement), survey.changed)
        decided = _of_these(state.decided, survey.ends)
        return replace(state, decided=decided, membership=replace(state.membership, horizon=survey.horizon))


def _survey(
    data: DataLog, claimed: Mapping[str, int], agreement: str, signed: int = 0, ledger: Ledger | None = None
) -> _Survey:
    """Read what there is, and find what is wrong with it. Writes nothing.

    `signed`: how far DATA went, as signs of life tell. `ledger`: as of `Takeover`.
    """
    group = data.topic.group
    if group in claimed:
        check_not_fenced(data, claimed[group])
    check_is_home(data)
    if data.is_copy():
        raise UsageError(f"{data.topic} is the copy of another site's: run the sequencer of group {group} at its home.")
    end = data.end()
    state = find_state(data, end)
    reach = [(claim.floor, "a claim says") for claim in data.claims()]
    reach += [(note.offset, "a note says") for note in data.notes()]
    check_reach(data, data.end(), [*reach, (signed, "its sequencer's last sign of life says")])
    _check_ledger(data, ledger, state.seqno)
    newest = data.highest_epoch()
    if state.epoch > newest:
        raise ProtocolViolation(
            f"{data.topic} knows epoch {state.epoch}, but {data.claims_topic} is only at {newest}: "
            "was it deleted? The two must be kept together."
        )
    _check_agreement(data, agreement)
    _check_size(state)
    return _Survey(data, state, end, format=_format(data, state))


def _format(data: DataLog, state: SequencerState) -> int:
    """The group's format from here on: what EPOCH and DATA say; a group that begins has the newest.

    Raises LaterVersion where that is not known, before anything is claimed.
    """
    begins = not data.claims() and data.move() is None  # strays may stand in DATA
    return NEWEST.number if begins else max(data.format(), state.format)


def _check_ledger(data: DataLog, ledger: Ledger | None, seqno: int) -> None:
    """See that the ledger has nothing of this log above `seqno`, the last that DATA tells. Raises HistoryChanged."""
    group = data.topic.group
    if ledger is None or ledger.last_seqno(group) <= seqno:
        return
    found = fit(data, ledger)
    if found is Fit.LOST:
        raise lost(data, f"no longer has seqno {ledger.last_seqno(group)}, which stands in the ledger")
    if found is Fit.OTHER:
        _logger.warning("group %s: what the ledger below --data has is of another group of that name.", group)


def _check_agreement(data: DataLog, agreement: str) -> None:
    """An order is decided by one site, or agreed on by several, from its beginning on. Raises UsageError."""
    newest = data.newest_claim()
    if newest is not None and newest.agreement != agreement:
        was, now = (f"mode {name!r}" if name else "a sequencer" for name in (newest.agreement, agreement))
        raise UsageError(f"the order of {data.topic} is that of {was}, and can't go on with {now}: take a new group.")


def _check_size(state: SequencerState) -> None:
    """See that the state can be written as a snapshot: a claim without one would be in vain. Raises UsageError."""
    size = len(state.to_bytes())
    if size > MAX_SNAPSHOT_BYTES:
        raise UsageError(
            f"the state of group {state.group} takes {size:,} bytes, and a record of Kafka at most "
            f"{MAX_RECORD_BYTES:,}: it knows {len(state.received):,} senders, which are too many. Go on in a new group."
        )


def _horizon(
    connection: Connection, consumer: Consumer, forward: Iterable[str], state: SequencerState
) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """The ends of the forward partitions; and of those of which something is to be read (see `ordering.log_time`)."""
    with connection.reachable("READ", " and ".join(forward)):
        backlog = find_backlog(consumer, forward, {})
    found = {Partition(*partition): offsets for partition, offsets in sorted(backlog.items())}
    ends = {partition: offsets.end for partition, offsets in found.items()}
    return ends, {
        partition: offsets.end
        for partition, offsets in found.items()
        if max(state.positions.get(partition, 0), offsets.beginning) < offsets.end
    }


def _of_these(decided: Mapping[Partition, int], ends: Mapping[Partition, int]) -> dict[Partition, int]:
    """What was decided of partitions, without those that end before it: they were made anew, and nothing is known."""
    return {partition: offset for partition, offset in decided.items() if offset <= ends.get(partition, offset)}


def _claim(found: _Survey, producer: Producer, claimed: dict[str, int], agreement: str) -> SequencerState:
    """Claim, seal, read the rest, open the epoch."""
    data = found.data
    group = data.topic.group
    if group in claimed:
        check_not_fenced(data, claimed[group])
    claim = (None, *encode_claim(data.end(), agreement, found.format))
    try:
        claimed_at = _append(data, producer, data.claims_topic, claim)
    except AbcastError:
        claimed.pop(group, None)  # it may get there yet: then a newer claim is our own
        raise
    if claimed_at > data.known_below:  # something came in between
        check_is_home(data)
    epoch = data.epoch_of_claim(claimed_at)
    claimed[group] = epoch
    sealed_at = _append_data(data, producer, seal(epoch, found.format))
    before = absorb(found.state, (stored.data for stored in data.records(found.end, sealed_at)))
    if before.epoch >= epoch:
        check_not_fenced(data, epoch)
        raise ProtocolViolation(
            f"{data.topic} has epoch {before.epoch} before the seal of {epoch}: who else writes there?"
        )
    seals = (*before.seals, Seal(epoch, before.seqno + 1))
    state = replace(before, epoch=epoch, seals=seals, unsnapped=0, format=found.format)
    _append_data(data, producer, snapshot(state))
    _append(data, producer, data.claims_topic, (None, *encode_note(Note(sealed_at + 1, epoch, state.seqno))))
    _logger.info("group %s: epoch %d begins after seqno %d", group, epoch, state.seqno)
    return state


def _append_data(data: DataLog, producer: Producer, record: Data) -> int:
    return _append(data, producer, str(data.topic), encode_data(record))


def find_state(data: DataLog, end: int) -> SequencerState:
    """What DATA tells below `end`. Raises HistoryUnavailable: waiting does not help who is waited for."""
    try:
        return data.state(end)
    except NoSnapshot as gone:
        raise HistoryUnavailable(str(gone)) from gone


def _append(data: DataLog, producer: Producer, topic: str, record: Record) -> int:
    return append(data.connection, topic, record, producer=producer, timeout_s=_WRITTEN_S)


def check_is_home(data: DataLog) -> None:
    """Raise UsageError if another site was made the home of the group."""
    move, topic = data.move(), data.topic
    if move is not None and move.home != topic.site:
        raise UsageError(
            f"the home of group {topic.group} is {move.home} now, not {topic.site}: give this site the new sites' "
            f"file. It can be a copy once its topics of the group were deleted (`abcast site add {topic.site}` then)."
        )


def check_not_fenced(data: DataLog, epoch: int) -> None:
    """Raise Fenced if a sequencer with an epoch newer than `epoch` has begun to take over.

    Raises UsageError if another site was made the home.
    """
    check_is_home(data)
    newest = data.newest_claim()
    if newest is not None and newest.epoch > epoch:
        raise Fenced(
            f"group {data.topic.group}: a newer sequencer took over with epoch {newest.epoch} ({newest.who}); this one "
            f"(epoch {epoch}) stops. Run one sequencer for a site; to hand over on purpose, stop this one first."
        )


def yield_to_rival(
    connection: Connection, site: str, wait: Callable[[float], object], groups: GroupChoice = ALL_GROUPS
) -> bool:
    """Before the first takeover of a process: leave the groups for a while to a sequencer that is in a feud with us.

    A feud over fewer than half of the groups holds up no start: nobody ends by it who serves others.

    `wait` waits for so many seconds, and returns something true if it was woken to stop; so does this.
    """
    try:
        claims = _claims_of_groups(connection, site, groups)
    except AbcastError:
        return False  # the takeover meets the same error, and tells it
    now_ms = time.time_ns() // 1_000_000
    asked = ((group, seconds_to_yield(of_group, this_host(), now_ms)) for group, of_group in claims.items())
    feuds = {group: found for group, found in asked if found is not None}
    if not feuds or 2 * len(feuds) < len(claims):
        return False
    group, (seconds, rival) = max(feuds.items(), key=lambda item: item[1][0])
    _logger.warning(
        "group %s: this sequencer and %s take it over from each other again and again. Run one for a site. This one "
        "waits for %.0f s.",
        group,
        rival.who,
        seconds,
    )
    return bool(wait(seconds))


def _claims_of_groups(connection: Connection, site: str, groups: GroupChoice) -> dict[str, list[Claim]]:
    """The claims of each group, as far as they are told at once."""

    def claims(group: str, consumer: Consumer) -> list[Claim]:
        return DataLog(connection, group, site, consumer).claims()

    found: dict[str, list[Claim]] = {}
    asking = SideBySide[list[Claim]](connection)
    try:
        for group in filter(groups.has, find_groups(connection, site)):
            asking.ask(group, functools.partial(claims, group))
        while answers := asking.answers(STALL_S):
            found |= {group: answer for group, answer in answers.items() if not isinstance(answer, AbcastError)}
    finally:  # what is not answered is not waited for
        threading.Thread(target=asking.close, name="abcast-closing", daemon=True).start()
    return found
