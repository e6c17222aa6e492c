"""Find out whether a group's sequencer is alive, from its claim and its newest sign of life."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import NamedTuple

from kafka.errors import KafkaError

from connectors.kafka.codec.epochs import IS_RESTORED
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.sign_of_life import SIGN_EVERY_S, SILENT_AFTER_S, Sign, read_signs
from ordering.base.errors import AbcastError

ALIVE, SILENT, NONE, ELSEWHERE, RESTORED = "alive", "silent", "none", "elsewhere", "restored"

_LOOK_AGAIN_S = SIGN_EVERY_S + 1


class Liveness(NamedTuple):
    """The state of a group's sequencer: ALIVE, SILENT, NONE (there never was one), ELSEWHERE (the topic is a copy), or
    RESTORED (none starts before a restore has ended).

    `silent_s`: seconds since its last sign, or since its claim if that is later; 0 if it is alive. `since_ms`: the
    broker's time of the claim.
    """

    state: str
    silent_s: float = 0.0
    engine: str = ""
    host: str = ""
    pid: int = 0
    epoch: int = 0
    since_ms: int = 0

    @property
    def works(self) -> bool:
        """Whether waiting messages will be ordered, as far as this site can know."""
        return self.state in (ALIVE, ELSEWHERE)

    def __str__(self) -> str:
        """Describe the state, without a full stop."""
        if self.state == NONE:
            return "the group never had a sequencer: start `abcast run`; a running one finds the group within 10 s"
        if self.state == RESTORED:
            return f"the group {IS_RESTORED}"
        if self.state == ELSEWHERE:
            return "this site has a copy; the order is decided at the group's home"
        since = datetime.fromtimestamp(self.since_ms / 1000, timezone.utc)
        who = f"pid {self.pid} on host {self.host}" if self.host else "its host unknown"
        engine = f"engine {self.engine}" if self.engine else "the sequencer"
        named = f"{engine}, {who}, epoch {self.epoch}, since {since:%Y-%m-%d %H:%M:%S} UTC"
        if self.state == ALIVE:
            return named
        return f"the group's sequencer has been silent for {self.silent_s:,.0f} s ({named}): start `abcast run`"


def judge(data: DataLog, sign: Sign | None, gives_another: Callable[[Sign], bool] | None = None) -> Liveness:
    """Judge a sequencer by the group's claims and its sign.

    A sign has the time of its host, and clocks differ. So a sequencer whose sign looks old by another host's clock is
    alive if it `gives_another`. Raises BrokerUnreachable.
    """
    known = data.epochs.read()
    if known.is_restored_now():
        return Liveness(RESTORED)
    claim = known.newest_claim
    if claim is None or data.is_copy():
        return Liveness(ELSEWHERE if data.is_copy() else NONE)
    if sign is not None and sign.epoch != claim.epoch:
        sign = None  # an earlier sequencer's
    heard_ms = claim.at_ms if sign is None else max(claim.at_ms, sign.at_ms)
    silent_s = time.time() - heard_ms / 1000
    is_alive = -SILENT_AFTER_S < silent_s < SILENT_AFTER_S
    if not is_alive and gives_another is not None and sign is not None and not sign.is_of_this_host:
        is_alive = gives_another(sign)
    return Liveness(
        ALIVE if is_alive else SILENT,
        0.0 if is_alive else max(silent_s, 0.0),
        sign.engine if sign is not None else "",
        claim.host,
        claim.pid,
        claim.epoch,
        claim.at_ms,
    )


class SecondLook:
    """A wait in which each live sequencer gives another sign: one for all groups, when it is first needed."""

    def __init__(self, connection: Connection, groups: Sequence[str], site: str) -> None:
        self._ask = partial(read_signs, connection, groups, site)
        self._seen: tuple[Mapping[str, Sign], ...] = ()

    def gives_another(self, group: str, sign: Sign) -> bool:
        """Whether the group has another sign before or after the wait. Raises BrokerUnreachable."""
        if not self._seen:
            before = self._ask().of_groups
            time.sleep(_LOOK_AGAIN_S)
            self._seen = before, self._ask().of_groups
        return any(signs.get(group, sign) != sign for signs in self._seen)


def say_why(connection: Connection, group: str, site: str, patience_s: float = 3.0) -> str:
    """Return a sentence on the group's sequencer, for the error of a message that was not ordered.

    "" if the sequencer is alive, or if that can't be known within `patience_s`.
    """
    key = replace(connection, client_id=""), group, site
    with _lock:
        look = _looks.get(key)
        if look is None:
            look = Future()
            threading.Thread(target=_look, args=(look, *key), name="abcast-liveness", daemon=True).start()
            _looks[key] = look  # behind the start, which may fail
    with contextlib.suppress(TimeoutError, FutureTimeoutError):
        return look.result(patience_s)
    return ""


_lock = threading.Lock()
_looks: dict[tuple[Connection, str, str], Future[str]] = {}
"""The looks in progress; later callers wait for the same one. In an outage each takes long, and many callers wait."""


def begin_anew() -> None:
    """Reset the state in a fork: the parent's looks have no thread here, and a lost thread may have held the lock."""
    global _lock
    _lock = threading.Lock()
    _looks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=begin_anew)


def _look(look: Future[str], connection: Connection, group: str, site: str) -> None:
    sentence = ""
    try:
        with contextlib.suppress(AbcastError, KafkaError), DataLog(connection, group, site) as data:
            found = judge(data, read_signs(connection, [group], site).of_groups.get(group))
            sentence = "" if found.works else f"{str(found)[0].upper()}{str(found)[1:]}."
    finally:
        with _lock:
            _looks.pop((connection, group, site), None)  # Ctrl-C may have kept it out
        look.set_result(sentence)
