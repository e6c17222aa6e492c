"""Hand a site's groups over to a standby, on an operator's request: for a rolling restart, without a kill.

The request is a record in each group's EPOCH (`connectors.kafka.codec.epochs.Handover`). It names the sequencer's
epoch, the standby, and the standby's newest sign. The standby claims as in any takeover, and the other sequencer is
fenced. So a request adds no rule about the order. One that is lost, late or repeated costs nothing, or a takeover.

A standby takes over all the groups that it signs for, so all are asked for. A group that was handed over within AGAIN_S
is not asked for again: an operator who repeats a command does not hand back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack, closing
from typing import NamedTuple

from connectors.kafka.codec.epochs import Claim, Handover, encode_handover
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.metadata_client import MetadataClient
from connectors.kafka.connection.sending import append_all
from connectors.kafka.log.acts import act_header, act_of_this_user
from connectors.kafka.log.data_log import DataLog, consumer_of_logs
from connectors.kafka.log.epoch_log import EpochLog
from connectors.kafka.log.standby_sign import REQUEST_S, STANDBY_SIGN_S, StandbySign, read_standbys
from ordering.base.errors import AbcastError, UsageError

FIND_S = 4 * STANDBY_SIGN_S
"""The time within which a standby gives another sign."""
FOLLOW_S = REQUEST_S + 10.0
"""The longest wait for a standby to take over: it may begin after REQUEST_S."""
AGAIN_S = 10.0
"""The age of a planned takeover, as far as clocks agree, up to which another request counts as the same."""
_LOOK_S = 0.1
_NAMED = 3

Sleep = Callable[[float], object]


class PlannedTakeover(NamedTuple):
    """A group that a standby has taken over: its new epoch, and the process."""

    group: str
    epoch: int
    who: str


class HandoverFailed(AbcastError):
    """The standby has not taken over in time. Look at `abcast status` first: a later request hands over once more."""

    retriable = True


def hand_over(
    connection: Connection,
    groups: Collection[str],
    site: str,
    why: str = "",
    sleep: Sleep = time.sleep,
    beside: Collection[str] = (),
) -> list[PlannedTakeover]:
    """Ask the standby of each group to take over, and wait until it has.

    `beside`: further groups, which are handed over if the same standby serves them. Leaves out groups that never had a
    sequencer here. Raises UsageError, before anything is written, if a group has no standby, or none ever had a
    sequencer; HandoverFailed, BrokerUnreachable.
    """
    with ExitStack() as opened:
        metadata = opened.enter_context(closing(connection.metadata_client()))
        consumer = opened.enter_context(closing(consumer_of_logs(connection)))
        logs = {group: DataLog(connection, group, site, consumer).epochs for group in {*groups, *beside}}
        claims = _claims(logs, groups)
        if not claims:
            raise UsageError(f"none of the groups {', '.join(sorted(groups))} ever had a sequencer at site {site}.")
        followed = {name: Handover(0, claim.host, claim.pid, 0) for name, claim in claims.items() if _is_recent(claim)}
        standbys = _find_standbys(metadata, claims.keys() - followed.keys(), site, sleep)
        waiting, signs = {sign.who for sign in standbys.values()}, read_standbys(metadata, beside, site)
        standbys |= {group: sign for group, sign in signs.items() if sign.who in waiting}
        claims |= _claims(logs, standbys.keys() - claims.keys())
        asked = {
            group: _request(claims[group], sign)
            for group, sign in standbys.items()
            if group in claims and not _is_recent(claims[group])
        }
        append_all(connection, [_record(logs[group], request, why) for group, request in asked.items()])
        return _await_claims(logs, {**followed, **asked}, sleep)


def _claims(logs: Mapping[str, EpochLog], groups: Iterable[str]) -> dict[str, Claim]:
    return {group: claim for group in sorted(groups) if (claim := logs[group].read().newest_claim) is not None}


def _is_recent(claim: Claim) -> bool:
    """Whether the group was handed over a moment ago."""
    return claim.is_planned and abs(time.time_ns() / 1e6 - claim.at_ms) < AGAIN_S * 1_000


def _find_standbys(
    metadata: MetadataClient, groups: Collection[str], site: str, sleep: Sleep
) -> dict[str, StandbySign]:
    """Return the standby of each group: a process that signs now. Raises UsageError if a group has none."""
    before, deadline = read_standbys(metadata, groups, site), time.monotonic() + FIND_S
    while True:
        found = read_standbys(metadata, groups, site)
        lacking = sorted(group for group in groups if found.get(group) == before.get(group))
        if not lacking:
            return dict(found)
        if time.monotonic() >= deadline:
            named = ", ".join(lacking[:_NAMED]) + (" and others" if len(lacking) > _NAMED else "")
            raise UsageError(
                f"no standby waits at site {site} for {named}: start one, `abcast run --engine process --standby "
                f"--site {site}`, wait until it says so, and try again."
            )
        sleep(_LOOK_S)


def _request(claim: Claim, standby: StandbySign) -> Handover:
    return Handover(claim.epoch, standby.host, standby.pid, standby.signed_ms)


def _record(log: EpochLog, request: Handover, why: str) -> tuple[str, tuple[None, bytes, list[tuple[str, bytes]]]]:
    claim = log.known.newest_claim
    assert claim is not None
    what = f"{claim.who} (epoch {claim.epoch}) hands over to process {request.pid} on host {request.host}"
    value, headers = encode_handover(request)
    return log.topic, (None, value, [*headers, act_header(act_of_this_user("takeover", what, why))])


def _await_claims(logs: Mapping[str, EpochLog], asked: Mapping[str, Handover], sleep: Sleep) -> list[PlannedTakeover]:
    """Wait until each group's newest claim follows the request, and its epoch has begun. Raises HandoverFailed."""
    done: dict[str, PlannedTakeover] = {}
    deadline = time.monotonic() + FOLLOW_S
    while True:
        for group, request in asked.items():
            known = logs[group].read()
            claim = known.newest_claim
            if group in done or claim is None or claim.epoch == request.epoch:
                continue
            if (claim.host, claim.pid) != (request.host, request.pid):
                raise HandoverFailed(f"{claim.who} has taken group {group} over, and not the standby that was asked.")
            if any(note.epoch == claim.epoch for note in known.notes):
                done[group] = PlannedTakeover(group, claim.epoch, claim.who)
        if len(done) == len(asked):
            return list(done.values())
        if time.monotonic() >= deadline:
            left = sorted(asked.keys() - done.keys())
            raise HandoverFailed(
                f"process {asked[left[0]].pid} on host {asked[left[0]].host} has not taken over "
                f"{', '.join(left[:_NAMED])} within {FOLLOW_S:g} s: look at its log, and at `abcast status` before you "
                "ask again."
            )
        sleep(_LOOK_S)
