"""Seal, then take over: how every start of a sequencer begins, however the one before ended.

There is one way to start, and it trusts no lock and no checkpoint, only DATA:

1. read DATA up to where it ends now, from the newest snapshot in force (`connectors.kafka.data_log`), and rebuild the
   state. What is wrong with the group is found here, before anything is written: a start that can't go on must not
   fence another sequencer;
2. note where DATA ends (the *floor*) and append it to the EPOCH topic: the claim. Its offset plus one is our epoch,
   so no other sequencer has it;
3. append the seal to DATA: an empty epoch record. From here on every reader ignores what lower epochs still write;
4. read DATA on from where 1 ended up to the seal, and with it the state;
5. append the state as the epoch's opening snapshot, and a note of where the seal stands to EPOCH, and go on.

Invariant: the state that a sequencer goes on from holds everything effective before its seal, and nothing effective
of a lower epoch can follow. So numbers are never reassigned, even if another sequencer still runs. A crash after any
step leaves an epoch number without a seal, a seal without decisions, or an opening snapshot that is true where it
stands. The next start does the same again.

A sequencer sees a newer one by its claim, and another home by its move, and stops. That is a courtesy, not what keeps
the order: if it sleeps through the claim, what it writes is stale for every reader. No sequencer seals a claim that
stands behind a move to another site, so the seal of who has fenced it (`connectors.relay.promotion`) is the last one.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple, TypeVar

from kafka.errors import KafkaError

from connectors.kafka.backlog import find_backlog
from connectors.kafka.codec import encode_data
from connectors.kafka.connection import Connection
from connectors.kafka.data_log import DataLog, consumer_of_logs
from connectors.kafka.epochs import Claim, Note, encode_claim, encode_note, seconds_to_yield, this_host
from connectors.kafka.group_choice import ALL_GROUPS, GroupChoice
from connectors.kafka.liveness import ALIVE, judge
from connectors.kafka.sending import Record, append
from connectors.kafka.sign_of_life import read_signs
from connectors.kafka.topics import find_groups
from connectors.kafka.transport import Consumer, Producer
from connectors.kafka.unfit import BEFORE_ITS_START, raise_unfit
from ordering.errors import AbcastError, Fenced, HistoryUnavailable, NoSnapshot, ProtocolViolation, UsageError
from ordering.names import Topic
from ordering.reader import Seal
from ordering.records import Data, Partition
from ordering.sequencer import SequencerState, absorb, seal, snapshot

_logger = logging.getLogger(__name__)

Fitness = Callable[[SequencerState], object]
"""Raises what keeps a group whose DATA tells this state from being served."""


GROUPS_AT_ONCE = 32
"""So many are looked at, and taken over, at the same time."""

_Answer = TypeVar("_Answer")


class _Survey(NamedTuple):
    """What a group's DATA tells below offset `end`."""

    state: SequencerState
    end: int


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
) -> dict[str, SequencerState]:
    """Become the sequencer of the groups (each with the forward topics it reads); return the states to go on from.

    All groups are looked at before the first is claimed. `claimed` has the epochs that this process has claimed so
    far, by group, and is kept up to date: it takes no group back from a newer sequencer. `agreement`: "isis" for a job
    that agrees with other sites. `fitness` is asked of every group before it is claimed.

    Raises BrokerUnreachable, Fenced; TopicMissing, HistoryUnavailable, UsageError where all groups are unfit, and
    UnfitGroups where some are.
    """
    claimed = {} if claimed is None else claimed
    with contextlib.ExitStack() as open_until_then:
        producer = connection.producer()
        open_until_then.callback(producer.close, timeout=10)
        logs = _open_logs(connection, groups, site, open_until_then)
        found = _ask_each(groups, lambda group: _survey(logs[group], claimed, agreement))
        if fitness is not None:
            _ask_each(groups, lambda group: fitness(found[group].state))
        _tell_who_serves(connection, site, {group: data for group, data in logs.items() if group not in claimed})
        horizons = _horizons(connection, groups, [found[group].state for group in groups])
        states = _ask_each(groups, lambda group: _claim(logs[group], producer, found[group], claimed, agreement))
        return {
            group: replace(state, membership=replace(state.membership, horizon=horizon))
            for (group, state), horizon in zip(states.items(), horizons, strict=True)
        }


def _open_logs(
    connection: Connection, groups: Collection[str], site: str, open_until_then: contextlib.ExitStack
) -> dict[str, DataLog]:
    """Those of all groups, to be asked by `_ask_each`.

    Each share of the groups, which a thread looks after, has one connection: a thousand would take minutes.
    """
    consumers = _open(lambda: consumer_of_logs(connection), min(GROUPS_AT_ONCE, len(groups)), open_until_then)
    consumer_of = dict(zip(groups, itertools.cycle(consumers), strict=False))
    return _ask_each(groups, lambda group: DataLog(connection, group, site, consumer_of[group]))


def _open(make: Callable[[], Consumer], count: int, open_until_then: contextlib.ExitStack) -> list[Consumer]:
    """So many, side by side. Those that are open when one fails are closed with the others."""
    with ThreadPoolExecutor(max(1, count), "abcast-takeover") as pool:
        futures = [pool.submit(make) for _ in range(count)]
    for future in futures:
        if future.exception() is None:
            open_until_then.callback(future.result().close)
    return [future.result() for future in futures]


def _ask_each(groups: Iterable[str], ask: Callable[[str], _Answer]) -> dict[str, _Answer]:
    """Ask of every group, each share of them in a thread. The error of one group has its name.

    What is wrong with one group alone keeps nobody from asking of the others, and is raised at the end, with that of
    others; all else ends the asking. The same groups are always dealt to the same shares.
    """
    asked, has_failed = list(groups), threading.Event()
    answers: dict[str, _Answer] = {}
    unfit: dict[str, AbcastError] = {}

    def of_one(group: str) -> None:
        try:
            answers[group] = ask(group)
        except BEFORE_ITS_START as error:
            unfit[group] = _named(group, error)
        except AbcastError as error:
            raise _named(group, error) from error.__cause__

    def of_share(share: Sequence[str]) -> None:
        for group in share:
            if has_failed.is_set():
                break  # what has failed is raised below
            try:
                of_one(group)
            except BaseException:
                has_failed.set()
                raise

    shares = [asked[first::GROUPS_AT_ONCE] for first in range(min(GROUPS_AT_ONCE, len(asked)))]
    with ThreadPoolExecutor(max(1, len(shares)), "abcast-takeover") as pool:
        list(pool.map(of_share, shares))
    raise_unfit(dict(sorted(unfit.items())), asked)
    return {group: answers[group] for group in asked}


def _named(group: str, error: AbcastError) -> AbcastError:
    return error if group in str(error) else type(error)(f"group {group}: {error}")


def _survey(data: DataLog, claimed: Mapping[str, int], agreement: str) -> _Survey:
    """Read what there is, and find what is wrong with it. Writes nothing."""
    group = data.topic.group
    if group in claimed:
        check_not_fenced(data, claimed[group])
    check_is_home(data)
    if data.is_copy():
        raise UsageError(f"{data.topic} is the copy of another site's: run the sequencer of group {group} at its home.")
    end = data.end()
    state = find_state(data, end)
    highest_floor = max((claim.floor for claim in data.claims()), default=0)
    now = data.end()
    if highest_floor > now:
        raise ProtocolViolation(
            f"{data.topic} ended at offset {highest_floor} once, and ends at {now} now: was it deleted? Then delete "
            f"{data.claims_topic}, too, and the group begins anew at seqno 1."
        )
    newest = data.highest_epoch()
    if state.epoch > newest:
        raise ProtocolViolation(
            f"{data.topic} knows epoch {state.epoch}, but {data.claims_topic} is only at {newest}: "
            "was it deleted? The two must be kept together."
        )
    _check_agreement(data, agreement)
    return _Survey(state, end)


def _tell_who_serves(connection: Connection, site: str, logs: Mapping[str, DataLog]) -> None:
    """Say which groups another process seems to serve now, as its signs of life tell. Nothing rests on it."""
    served: dict[str, list[str]] = {}
    with contextlib.suppress(AbcastError, KafkaError):
        signs = read_signs(connection, logs, site).of_groups
        for group, data in logs.items():
            claim = data.newest_claim()
            if claim is None or judge(data, signs.get(group)).state != ALIVE or claim.is_over:
                continue
            served.setdefault(claim.who, []).append(group)
    for who, groups in served.items():
        _logger.warning(
            "%s serves %s, as its signs of life tell. It stops now, as this process takes over.", who, ", ".join(groups)
        )


def _check_agreement(data: DataLog, agreement: str) -> None:
    """An order is decided by one site, or agreed on by several, from its beginning on. Raises UsageError."""
    newest = data.newest_claim()
    if newest is not None and newest.agreement != agreement:
        was, now = (f"mode {name!r}" if name else "a sequencer" for name in (newest.agreement, agreement))
        raise UsageError(f"the order of {data.topic} is that of {was}, and can't go on with {now}: take a new group.")


def _horizons(
    connection: Connection, groups: Mapping[str, Iterable[str]], states: Iterable[SequencerState]
) -> list[dict[Partition, int]]:
    """For each group, the ends of the forward partitions of which something is to be read (see `ordering.log_time`)."""
    consumer = connection.consumer()
    try:
        with connection.reachable():
            backlogs = [find_backlog(consumer, forward, {}) for forward in groups.values()]
    finally:
        consumer.close()
    horizons = []
    for state, backlog in zip(states, backlogs, strict=True):
        horizons.append(
            {
                Partition(*partition): offsets.end
                for partition, offsets in sorted(backlog.items())
                if max(state.positions.get(Partition(*partition), 0), offsets.beginning) < offsets.end
            }
        )
    return horizons


def _claim(
    data: DataLog, producer: Producer, found: _Survey, claimed: dict[str, int], agreement: str
) -> SequencerState:
    """Claim, seal, read the rest, open the epoch."""
    group = data.topic.group
    if group in claimed:
        check_not_fenced(data, claimed[group])
    claimed_at = _append(data, producer, data.claims_topic, (None, *encode_claim(data.end(), agreement)))
    if claimed_at > data.known_below:  # something came in between
        check_is_home(data)
    epoch = data.epoch_of_claim(claimed_at)
    claimed[group] = epoch
    sealed_at = _append_data(data, producer, seal(epoch))
    before = absorb(found.state, (stored.data for stored in data.records(found.end, sealed_at)))
    if before.epoch >= epoch:
        check_not_fenced(data, epoch)
        raise ProtocolViolation(
            f"{data.topic} has epoch {before.epoch} before the seal of {epoch}: who else writes there?"
        )
    state = replace(before, epoch=epoch, seals=(*before.seals, Seal(epoch, before.seqno + 1)), unsnapped=0)
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
    return append(data.connection, topic, record, producer=producer)


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

    `wait` waits for so many seconds, and returns something true if it was woken to stop; so does this.
    """
    try:
        claims = _claims_of_groups(connection, site, groups)
    except AbcastError:
        return False  # the takeover meets the same error, and tells it
    now_ms = time.time_ns() // 1_000_000
    found = {group: seconds_to_yield(of_group, this_host(), now_ms) for group, of_group in claims.items()}
    group, longest = max(found.items(), key=lambda item: item[1][0] if item[1] else 0.0, default=("", None))
    if longest is None:
        return False
    seconds, rival = longest
    _logger.warning(
        "group %s: this sequencer and %s take it over from each other again and again. Run one for a site. This one "
        "waits for %.0f s.",
        group,
        rival.who,
        seconds,
    )
    return bool(wait(seconds))


def _claims_of_groups(connection: Connection, site: str, groups: GroupChoice) -> dict[str, list[Claim]]:
    with contextlib.ExitStack() as open_until_then:
        chosen = list(filter(groups.has, find_groups(connection, site)))
        logs = _open_logs(connection, chosen, site, open_until_then)
        return _ask_each(logs, lambda group: logs[group].claims())
