"""Whether a group's sequencer is alive, as its claim and its newest sign of life tell."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from datetime import datetime, timezone
from typing import NamedTuple

from kafka.errors import KafkaError

from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.sign_of_life import SIGN_EVERY_S, SILENT_AFTER_S, Sign, read_signs
from ordering.base.errors import AbcastError

ALIVE, SILENT, NONE, ELSEWHERE = "alive", "silent", "none", "elsewhere"

_LOOK_AGAIN_S = SIGN_EVERY_S + 1


class Liveness(NamedTuple):
    """`state` is ALIVE, SILENT, NONE (the group never had a sequencer) or ELSEWHERE (the topic is a copy).

    `silent_s`: since its last sign, or since its claim if that came later. `since_ms`: the broker's time of the claim.
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
        """Whether what waits will be ordered, as far as this can be known here."""
        return self.state in (ALIVE, ELSEWHERE)

    def __str__(self) -> str:
        """What it is, without a full stop."""
        if self.state == NONE:
            return "the group never had a sequencer: start `abcast run`; one that works finds the group within 10 s"
        if self.state == ELSEWHERE:
            return "this site has a copy; the order is decided at the group's home"
        since = datetime.fromtimestamp(self.since_ms / 1000, timezone.utc)
        who = f"pid {self.pid} on host {self.host}" if self.host else "its host unknown"
        engine = f"engine {self.engine}" if self.engine else "the sequencer"
        named = f"{engine}, {who}, epoch {self.epoch}, since {since:%Y-%m-%d %H:%M:%S} UTC"
        if self.state == ALIVE:
            return named
        return f"the group's sequencer has been silent for {self.silent_s:,.0f} s ({named}): start `abcast run`"


def judge(data: DataLog, sign: Sign | None, again: Callable[[], Sign | None] | None = None) -> Liveness:
    """What the claims and the sign of a group tell now.

    A sign has the time of the host that gave it, and clocks differ. So what looks silent by another host's clock is
    looked at `again`: a sign that has changed since was given just now. Raises BrokerUnreachable.
    """
    claim = data.newest_claim()
    if claim is None or data.is_copy():
        return Liveness(ELSEWHERE if data.is_copy() else NONE)
    if sign is not None and sign.epoch != claim.epoch:
        sign = None  # of one before
    heard_ms = claim.at_ms if sign is None else max(claim.at_ms, sign.at_ms)
    silent_s = time.time() - heard_ms / 1000
    is_alive = -SILENT_AFTER_S < silent_s < SILENT_AFTER_S
    if not is_alive and again is not None and sign is not None and not sign.is_of_this_host:
        is_alive = again() not in (None, sign)
    return Liveness(
        ALIVE if is_alive else SILENT,
        0.0 if is_alive else max(silent_s, 0.0),
        sign.engine if sign is not None else "",
        claim.host,
        claim.pid,
        claim.epoch,
        claim.at_ms,
    )


def look_again(connection: Connection, group: str, site: str) -> Sign | None:
    """The group's sign after so long that a sequencer which lives has given another."""
    time.sleep(_LOOK_AGAIN_S)
    return read_signs(connection, [group], site).of_groups.get(group)


def say_why(connection: Connection, group: str, site: str, patience_s: float = 3.0) -> str:
    """A sentence on the group's sequencer, for an error that says that something was not ordered.

    "" if it is alive, or if that can't be known in so many seconds.
    """
    key = replace(connection, client_id=""), group, site
    with _lock:
        look = _looks.get(key)
        if look is None:
            look = _looks[key] = Future()
            threading.Thread(target=_look, args=(look, *key), name="abcast-liveness", daemon=True).start()
    with contextlib.suppress(TimeoutError, FutureTimeoutError):
        return look.result(patience_s)
    return ""


_lock = threading.Lock()
_looks: dict[tuple[Connection, str, str], Future[str]] = {}
"""Those in hand: who asks meanwhile waits for the same. In an outage each takes long, and many wait for receipts."""


def begin_anew() -> None:
    """In a fork: no thread of it makes the looks that its parent had in hand, and a thread that is not may have held
    the lock.
    """
    global _lock
    _lock = threading.Lock()
    _looks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=begin_anew)


def _look(look: Future[str], connection: Connection, group: str, site: str) -> None:
    said = ""
    try:
        with contextlib.suppress(AbcastError, KafkaError), DataLog(connection, group, site) as data:
            found = judge(data, read_signs(connection, [group], site).of_groups.get(group))
            said = "" if found.works else f"{str(found)[0].upper()}{str(found)[1:]}."
    finally:
        with _lock:
            del _looks[connection, group, site]
        look.set_result(said)
