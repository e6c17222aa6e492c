"""Record operators' acts on a group in EPOCH, in the header `abcast-act`: the act, the operator, the reason, the time.

A move, an exclusion and a format carry the header on their own record. An act without a record there (a purge,
forgotten senders) gets an empty note (`0 0 0`). Earlier versions ignore the header, and such a note tells nothing. The
time is the broker's timestamp.

An act is recorded before it is done, so one that is cut off leaves its trace, too. No promise depends on it.
"""

from __future__ import annotations

import getpass
import json
import logging
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

from connectors.kafka.codec.epochs import Note, encode_note, this_host
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sending import append
from ordering.base.canonical import UNREADABLE
from ordering.base.errors import AbcastError, UsageError, in_short
from ordering.base.names import Topic

ACT_HEADER = "abcast-act"
KEPT = 20
"""The number of newest acts kept in memory."""
MAX_WHY = 500
_FIELDS = ("act", "what", "who", "why")

_logger = logging.getLogger(__name__)


class Act(NamedTuple):
    """An operator's act: the command, its effect, the operator, the reason, and the broker's time in ms."""

    act: str
    what: str
    who: str = ""
    why: str = ""
    at_ms: int = 0


def act_of_this_user(act: str, what: str, why: str = "") -> Act:
    """Return an act of this process's user. Raises UsageError for a reason that is too long."""
    if len(why) > MAX_WHY:
        raise UsageError(f"--why has {len(why)} characters: use {MAX_WHY} at most.")
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        user = "somebody"
    return Act(act, what, f"{user}@{this_host()}", why)


def act_header(act: Act) -> tuple[str, bytes]:
    """Return the header that holds the act, for a record of EPOCH that has its own header, too."""
    return ACT_HEADER, json.dumps({name: getattr(act, name) for name in _FIELDS}).encode("ascii")


def read_act(headers: Sequence[tuple[str, bytes]], at_ms: int) -> Act | None:
    """Return the act in a record of EPOCH; None if it has none, or an unreadable one."""
    text = next((value for name, value in headers if name == ACT_HEADER), None)
    if not text:
        return None
    try:
        fields = json.loads(text)
        act, what, who, why = (str(fields.get(name, ""))[:MAX_WHY] for name in _FIELDS)
        return Act(act, what, who, why, at_ms)
    except UNREADABLE:
        return None


def record_act(connection: Connection, group: str, site: str, act: Act) -> None:
    """Record an act that has no record of its own. If that fails, only a warning is logged.

    Without an EPOCH topic, nothing is recorded.
    """
    topic = str(Topic(group, "epoch", site))
    value, headers = encode_note(Note(0, 0, 0))
    try:
        with closing(connection.metadata_client()) as metadata:
            if metadata.partitions_of(topic, "WRITE"):
                append(connection, topic, (None, value, [*headers, act_header(act)]))
    except AbcastError as error:
        _logger.warning("group %s: the log lacks the user and the reason: %s", group, in_short(error))
