"""A standby: a process engine that waits beside a site's sequencer, of either engine, and takes over when that is gone.

Invariant: it adds no rule about the order. It claims, seals and reads like any start (`connectors.takeover.takeover`).
So a takeover in error costs a silence and loses nothing, and a crash at any point is one of a start. The fenced
sequencer stops, or stands by in turn.

A sequencer is gone if the process of its claim was seen on this host and is there no longer, which shows at once; or if
no sign of life has come for `takeover_after_s`. A process that was never seen proves nothing: containers may share a
host's name, and not its processes.

Signs are compared with the ones before, never with a clock, as the clocks of hosts differ. Time counts as silence only
between two answers of Kafka, and a long time between two looks counts as a short one: if Kafka is away, or this process
was suspended, the sequencer may have been, too.

The sequencer of a site serves all groups that the standby has: a sign for any of them is its sign, also one that tells
why it goes on without that group.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Collection, Mapping

from kafka.errors import KafkaError

from connectors.engine.options import EngineOptions
from connectors.kafka.codec.epochs import Claim
from connectors.kafka.groups.retrying import LogThrottle
from connectors.kafka.groups.topic_finder import TopicFinder
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.sign_of_life import SIGN_EVERY_S, Sign, read_signs
from connectors.takeover.groups import groups_at
from ordering.base.errors import AbcastError, UsageError

LEAST_AFTER_S = 2 * SIGN_EVERY_S
"""The least `takeover_after_s`. A sign is followed by the next one after SIGN_EVERY_S, and the time of a look."""
LOOK_S = 0.5
"""The time between two looks."""
_LONGEST_LOOK_S = 2 * LOOK_S
"""The most that the time between two looks counts."""
_SPREAD_MS = 1_500
"""The most by which a standby waits longer than another one: the time from a claim to the first sign."""

_logger = logging.getLogger(__name__)


class SequencerSilence:
    """The time since the last new sign of life. `after_s`: the seconds after which the sequencer counts as gone."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._signs: Mapping[str, Sign] = {}
        self._silent_s = 0.0
        self._looked_at: float | None = None

    def is_long(self, signs: Mapping[str, Sign] | None, now: float) -> bool:
        """Compare the newest signs with the last ones; return whether there was none for `after_s`.

        `signs`: None if Kafka did not tell, or there is no group. `now`: seconds of a steady clock.
        """
        if signs is None:
            self._looked_at = None
            return False
        if signs != self._signs:
            self._signs, self._silent_s = dict(signs), 0.0
        elif self._looked_at is not None:
            self._silent_s += min(now - self._looked_at, _LONGEST_LOOK_S)
        self._looked_at = now
        return self._silent_s >= self._after_s


class Standby:
    """Waits until the sequencer of the site is gone."""

    def __init__(self, options: EngineOptions, finder: TopicFinder) -> None:
        """Raise UsageError if `takeover_after_s` is below LEAST_AFTER_S. `finder`: of the job's groups."""
        assert options.takeover_after_s is not None
        if not options.takeover_after_s >= LEAST_AFTER_S:  # nan, too
            raise UsageError(
                f"a sequencer gives a sign of life every {SIGN_EVERY_S:g} s: a standby waits for {LEAST_AFTER_S:g} s "
                f"or longer, not {options.takeover_after_s:g} s."
            )
        self._connection, self._site, self._after_s = options.connection, options.site, options.takeover_after_s
        self._finder = finder
        self._claims: dict[str, tuple[int, Claim | None]] = {}
        """The newest claim of groups, each with the epoch of the sign that led to it."""

    def wait(self, stop: threading.Event) -> None:
        """Return when the sequencer is gone, or `stop` is set. Raises no error: what hinders it is logged."""
        # Standbys that began together do not claim together.
        silence = SequencerSilence(self._after_s + secrets.randbelow(_SPREAD_MS) / 1_000)
        throttle, told, living = LogThrottle(), "", ""
        self._claims = {}
        while not stop.is_set():
            signs = claim = None
            try:
                if groups := groups_at(self._finder.find(), self._site):
                    signs = read_signs(self._connection, groups, self._site).of_groups
                    claim = self._newest_claim(groups, signs)
                    if claim is not None and claim.who == living and claim.is_over:
                        self._claims = {}  # another one may have claimed, and given no sign yet
                        claim = self._newest_claim(groups, signs)
            except (AbcastError, KafkaError) as error:
                claim = None
                if throttle.is_due(str(error)):
                    _logger.warning("standby: %s Trying again.", error)
            is_long = silence.is_long(signs, time.monotonic())
            if claim is not None and claim.who != told:
                told = claim.who
                _logger.info("standby at %s: %s is the sequencer. This process waits.", self._site, told)
            if claim is not None and not claim.is_over:
                living = claim.who
            elif claim is not None and claim.who == living:
                _logger.warning("standby: the sequencer, %s, has ended. This process takes over.", living)
                return
            if is_long:
                _logger.warning("standby: no sign of a sequencer for %g s. This process takes over.", self._after_s)
                return
            stop.wait(LOOK_S)

    def _newest_claim(self, groups: Collection[str], signs: Mapping[str, Sign]) -> Claim | None:
        """Return the newest claim of the group whose sign is the newest; a group's is read again for a new epoch."""
        signed = {group: (sign.epoch > 0, sign.at_ms) for group, sign in signs.items()}
        group = max(groups, key=lambda group: signed.get(group, (False, 0)))
        epoch = signs[group].epoch if group in signs else 0
        known_epoch, known = self._claims.get(group, (0, None))
        if known is None or known_epoch != epoch:
            with DataLog(self._connection, group, self._site) as data:
                known = data.epochs.read().newest_claim
            self._claims[group] = epoch, known
        return known
