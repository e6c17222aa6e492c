"""A standby: a process engine that waits beside a site's sequencer, of either engine, and takes over when that is gone.

Invariant: it adds no rule about the order. It claims, seals and reads like any start (`connectors.takeover.takeover`).
So a takeover in error costs a silence and loses nothing, and a crash at any point is one of a start. The fenced
sequencer stops, or stands by in turn.

A sequencer is gone if the process of its claim was seen on this host and is there no longer, which shows at once; or if
no sign of life and no claim has come for `takeover_after_s`, and for the time of SIGNS signs, which a sign tells. A
process that was never seen proves nothing: containers may share a host's name, and not its processes. A standby that
starts finds none if each group never had one, or its last sign is of this host and old, and its process is not here.

Signs are compared with the ones before, never with another host's clock. Time counts as silence only between two
answers of Kafka, and a long time between two looks counts as a short one: if Kafka is away, or this process was
suspended, the sequencer may have been, too.

The sequencer of a site serves all groups that the standby has: a sign for any of them is its sign, also one that tells
why it goes on without that group.

A standby signs, too (`connectors.kafka.log.standby_sign`), and an operator may ask it to take over at once
(`connectors.takeover.handover`). It follows a request only if that names this process, its sign of the last
`REQUEST_S`, and the newest claim. So a request that comes late, twice, or to another process has no effect.

A takeover that has begun regards the claims that it replaces as its own. Behind a newer one it is fenced, and waits
again. So of two standbys one takes over. After a silence, these are the claims at its half: a process that claimed
before gives signs in the other half.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from types import MappingProxyType
from typing import NamedTuple

from kafka.errors import KafkaError

from connectors.engine.options import EngineOptions
from connectors.kafka.codec.epochs import Claim, this_process
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.metadata_client import MetadataClient
from connectors.kafka.groups.retrying import LogThrottle
from connectors.kafka.groups.topic_finder import TopicFinder
from connectors.kafka.log.data_log import DataLog, consumer_of_logs
from connectors.kafka.log.epoch_log import Epochs
from connectors.kafka.log.sign_of_life import SIGN_EVERY_S, Sign, read_signs
from connectors.kafka.log.standby_sign import REQUEST_S, STANDBY_SIGN_S, sign_as_standby
from connectors.kafka.transport import Consumer
from connectors.takeover.groups import epochs_of_groups, groups_at
from ordering.base.errors import AbcastError, UsageError

SIGNS = 3
"""The number of successive signs that a sequencer must miss to count as gone."""
LOOK_S = 0.25
"""The longest time between two looks."""
_SOON_S = 0.01
"""The shortest one."""
_LONGEST_LOOK_S = 1.0
"""The most that the time between two looks counts."""
_UNSIGNED_S = 60.0
"""The longest time to the next sign after one that Kafka did not take; it doubles up to that."""
_SPREAD_MS = 500
"""The most by which a standby waits longer than another one, which may have claimed by then."""

_logger = logging.getLogger(__name__)


class SequencerSilence:
    """The time since the last new sign of life, or claim.

    `after_s`: the seconds after which the sequencer counts as gone, if that is longer than SIGNS signs take. `more_s`:
    seconds to add.
    """

    def __init__(self, after_s: float, more_s: float = 0.0) -> None:
        self._after_s, self._more_s = after_s, more_s
        self._heard: tuple[Mapping[str, Sign], Claim | None] = {}, None
        self._silent_s = 0.0
        self._too_long_s = float("inf")
        self._looked_at: float | None = None
        self.is_half = False
        """Whether half of the time that is too long has passed."""

    def go_on(self, now: float | None) -> None:
        """Count no time from the last look to `now`; None: to the next look."""
        self._looked_at = now

    def left_s(self) -> float:
        """Return the time to the next half of the silence, if nothing new comes; infinite while no time counts."""
        if self._looked_at is None:
            return float("inf")
        return (self._too_long_s if self.is_half else self._too_long_s / 2) - self._silent_s

    def is_long(self, seen: Seen, now: float) -> bool:
        """Compare with the last look; return whether there was nothing new for too long. `now`: of a steady clock."""
        if seen.signs is None:
            self._looked_at = None
            return False
        # A look that can't read EPOCH tells no claim.
        if (heard := (seen.signs, seen.claim or self._heard[1])) != self._heard:
            self._heard, self._silent_s = heard, 0.0
        elif self._looked_at is not None:
            self._silent_s += min(now - self._looked_at, _LONGEST_LOOK_S)
        self._looked_at = now
        self._too_long_s = max(self._after_s, SIGNS * seen.every_s) + self._more_s
        half_s = self._too_long_s / 2
        if not self.is_half:  # a slow look takes nothing off the other half
            self._silent_s = min(self._silent_s, half_s)
        self.is_half = self._silent_s >= half_s
        return self._silent_s >= self._too_long_s


class Turn(NamedTuple):
    """A standby is to take over. `known`: EPOCH of the groups, as far as Kafka tells. `is_asked`: an operator asks."""

    known: Mapping[str, Epochs] = MappingProxyType({})
    is_asked: bool = False

    @property
    def replaced(self) -> dict[str, int]:
        """Return the epochs that it replaces, by group; 0 of a group that was never claimed."""
        return {group: epochs.newest_epoch for group, epochs in self.known.items()}


class Standby:
    """Waits until the sequencer of the site is gone."""

    def __init__(self, options: EngineOptions, finder: TopicFinder) -> None:
        """Raise UsageError if `takeover_after_s` is no time. `finder`: of the job's groups."""
        assert options.takeover_after_s is not None
        if not options.takeover_after_s >= 0:  # nan, too
            raise UsageError(f"--takeover-after-s is a number of seconds, not {options.takeover_after_s:g}.")
        self._connection, self._site, self._after_s = options.connection, options.site, options.takeover_after_s
        self._finder, self._starts = finder, True

    def wait(self, stop: threading.Event) -> Turn:
        """Return when the sequencer is gone, an operator asks for a takeover, or `stop` is set.

        Raises no error: what hinders it is logged.
        """
        # Standbys that began together do not claim together.
        silence = SequencerSilence(self._after_s, secrets.randbelow(_SPREAD_MS) / 1_000)
        told = living = ""
        known: Mapping[str, Epochs] = {}  # at half of the silence
        with closing(_Lookout(self._connection, self._site)) as lookout:
            while not stop.is_set():
                seen = lookout.look(self._finder)
                claim, asked, is_long = seen.claim, seen.is_asked, silence.is_long(seen, time.monotonic())
                if self._starts and seen.groups:
                    self._starts = False  # one that is fenced later knows of a sequencer
                    if alone := lookout.alone(self._finder, seen):
                        _logger.warning("standby at %s: there is no sequencer. This process takes over.", self._site)
                        return Turn(alone)
                if claim is not None and claim.who != told:
                    told = claim.who
                    _logger.info("standby at %s: %s is the sequencer. This process waits.", self._site, told)
                if claim is not None and not claim.is_over:
                    living = claim.who
                elif claim is not None and claim.who == living:
                    ended = Turn(lookout.epochs(self._finder))
                    if ended.replaced.get(seen.group) == claim.epoch:
                        _logger.warning("standby: the sequencer, %s, has ended. This process takes over.", living)
                        return ended
                if not silence.is_half:
                    known = {}
                elif not known:
                    known = lookout.epochs(self._finder)
                    # A process that had claimed by the time of this answer gives signs in the other half.
                    silence.go_on(time.monotonic() if known else None)
                elif is_long and not asked:
                    _logger.warning("standby: no sign of a sequencer for a while. This process takes over.")
                    return Turn(known)
                # If asked, the requests for other groups are on their way.
                stop.wait(LOOK_S if asked else min(LOOK_S, max(_SOON_S, silence.left_s())))
                if asked and (epochs := lookout.asked(self._finder)):
                    _logger.warning("standby: an operator asks for a takeover. This process takes over.")
                    return Turn(epochs, is_asked=True)
        return Turn()


def is_asked(epochs: Epochs, since_ms: int) -> bool:
    """Whether the newest request is for this process, now, and to replace the sequencer of the newest claim.

    `since_ms`: the time since when it waits. An earlier process may have had its pid.
    """
    asked = epochs.handover
    if asked is None or (asked.host, asked.pid) != this_process() or asked.epoch != epochs.newest_epoch:
        return False
    return asked.signed_ms >= since_ms and 0 <= time.time_ns() / 1e6 - asked.signed_ms <= REQUEST_S * 1_000


class Seen(NamedTuple):
    """The newest signs of the sequencer (None if Kafka did not tell, or there is no group), and its claim of `group`.

    `is_asked`: an operator asks this process to take over. `every_s`: the time between two signs. `groups`: all groups;
    none if Kafka does not tell the claim.
    """

    signs: Mapping[str, Sign] | None = None
    claim: Claim | None = None
    is_asked: bool = False
    every_s: float = SIGN_EVERY_S
    group: str = ""
    groups: Sequence[str] = ()


def _is_gone(claim: Claim | None, sign: Sign | None) -> bool:
    if claim is None or sign is None:
        return (claim, sign) == (None, None)
    return claim.is_over and sign.is_of_this_host and not sign.is_new


class _Lookout:
    """Looks at the sequencer, by connections that stay open, and gives the standby's signs. Close it."""

    def __init__(self, connection: Connection, site: str) -> None:
        self._connection, self._site, self._since_ms = connection, site, time.time_ns() // 1_000_000
        self._metadata: MetadataClient | None = None
        self._consumer: Consumer | None = None
        self._logs: dict[str, DataLog] = {}
        self._sign_at, self._pause_s, self._throttle = 0.0, STANDBY_SIGN_S, LogThrottle()

    def look(self, finder: TopicFinder) -> Seen:
        """Look once. Raises no error: what hinders it is logged."""
        signs = None
        try:
            if not (groups := groups_at(finder.find(), self._site)):
                return Seen()
            self._metadata = self._metadata or self._connection.metadata_client()
            signs = read_signs(self._connection, groups, self._site, metadata=self._metadata).of_groups
            self._sign(self._metadata, groups)
            log = self._log(groups, signs)
            epochs, sign = log.epochs.read(), signs.get(log.topic.group)
            if (claim := epochs.newest_claim) is not None and claim.is_over:
                epochs = log.epochs.read()  # another one may have claimed, and given no sign yet
                claim = epochs.newest_claim
            has_signed = sign is not None and claim is not None and sign.epoch == claim.epoch
            every_s = sign.every_s if sign is not None and has_signed else SIGN_EVERY_S
            return Seen(signs, claim, is_asked(epochs, self._since_ms), every_s, log.topic.group, groups)
        except (AbcastError, KafkaError) as error:
            if self._throttle.is_due(str(error)):
                _logger.warning("standby: %s Trying again.", error)
            if error.retriable:
                self.close()
            return Seen(signs)

    def alone(self, finder: TopicFinder, seen: Seen) -> Mapping[str, Epochs]:
        """Return EPOCH of all groups, if none has a sequencer; {} otherwise, or if Kafka does not tell all."""
        signs, known = seen.signs or {}, self.epochs(finder)
        is_alone = all(
            group in known and _is_gone(known[group].newest_claim, signs.get(group)) for group in seen.groups
        )
        return known if is_alone else {}

    def asked(self, finder: TopicFinder) -> Mapping[str, Epochs]:
        """Return EPOCH of the groups that this process is asked to take over, as far as Kafka tells."""
        return {group: found for group, found in self.epochs(finder).items() if is_asked(found, self._since_ms)}

    def epochs(self, finder: TopicFinder) -> Mapping[str, Epochs]:
        """Return EPOCH of each group that answers, as it is now: later looks add nothing to it.

        A single group holds up no other, and is asked by the open connection: on a busy machine a new one takes long.
        """
        try:
            groups = groups_at(finder.find(), self._site)
            if len(groups) == 1 and self._consumer is not None:
                return {groups[0]: DataLog(self._connection, groups[0], self._site, self._consumer).epochs.read()}
            return epochs_of_groups(self._connection, groups, self._site)
        except (AbcastError, KafkaError):
            return {}

    def _sign(self, metadata: MetadataClient, groups: Sequence[str]) -> None:
        """Give a sign, if one is due. Without signs, it still takes over from a sequencer that is gone."""
        if time.monotonic() < self._sign_at:
            return
        # If the clock was set back, signs have an earlier time, and so has each request that answers one.
        self._since_ms = min(self._since_ms, time.time_ns() // 1_000_000)
        try:
            sign_as_standby(metadata, groups, self._site, self._since_ms)
            self._pause_s = STANDBY_SIGN_S
        except (AbcastError, KafkaError) as error:
            self._pause_s = min(2 * self._pause_s, _UNSIGNED_S)  # each try may take seconds, in which it does not look
            if self._throttle.is_due(str(error)):
                _logger.warning("standby: neither `abcast status` nor `abcast takeover` sees this process: %s", error)
        self._sign_at = time.monotonic() + self._pause_s

    def _log(self, groups: Sequence[str], signs: Mapping[str, Sign]) -> DataLog:
        """Return DATA and EPOCH of the group whose sign is the newest."""
        signed = {group: (sign.epoch > 0, sign.at_ms) for group, sign in signs.items()}
        group = max(groups, key=lambda group: signed.get(group, (False, 0)))
        self._consumer = self._consumer or consumer_of_logs(self._connection)
        if group not in self._logs:
            self._logs[group] = DataLog(self._connection, group, self._site, self._consumer)
        return self._logs[group]

    def close(self) -> None:
        """Close the connections. Another look opens new ones."""
        self._logs.clear()
        for client in (self._metadata, self._consumer):
            if client is not None:
                client.close()
        self._metadata = self._consumer = None
