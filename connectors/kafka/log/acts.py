"""What operators do to a group: what it was, who did it, why, and when. EPOCH has it, in the header `abcast-act`.

A move, an exclusion and a format have the header themselves. What is no record there, a purge or senders that are
forgotten, is told by a note that says nothing else (`0 0 0`). Earlier versions look at neither. When it was, the
broker's time says.

An act is told before it is done, so that one that is cut off leaves its trace, too. Nothing rests on it.
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
from ordering.base.errors import AbcastError, UsageError, in_short
from ordering.base.names import Topic

ACT_HEADER = "abcast-act"
KEPT = 20
"""So many acts of a group are kept in mind, the newest ones."""
MAX_WHY = 500
_FIELDS = ("act", "what", "who", "why")

_logger = logging.getLogger(__name__)


class Act(NamedTuple):
    """An operator's act: its command, what it does, who did it and why, and the broker's time in ms."""

    act: str
    what: str
    who: str = ""
    why: str = ""
    at_ms: int = 0


def act_of_this_user(act: str, what: str, why: str = "") -> Act:
    """Return an act of whoever runs this process. Raises UsageError for a reason that is too long."""
    if len(why) > MAX_WHY:
        raise UsageError(f"--why has {len(why)} characters: say it in {MAX_WHY}.")
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        user = "somebody"
    return Act(act, what, f"{user}@{this_host()}", why)


def act_header(act: Act) -> tuple[str, bytes]:
    """Return the header that a record of EPOCH has beside its own."""
    return ACT_HEADER, json.dumps({name: getattr(act, name) for name in _FIELDS}).encode("ascii")


def read_act(headers: Sequence[tuple[str, bytes]], at_ms: int) -> Act | None:
    """Return the act that a record of EPOCH tells; None if it tells of none, or none that can be read."""
    said = next((value for name, value in headers if name == ACT_HEADER), None)
    if not said:
        return None
    try:
        told = json.loads(said)
        act, what, who, why = (str(told.get(name, ""))[:MAX_WHY] for name in _FIELDS)
        return Act(act, what, who, why, at_ms)
    except (ValueError, AttributeError, RecursionError):
        return None


def tell(connection: Connection, group: str, site: str, act: Act) -> None:
    """Tell an act that is no record of EPOCH. Without the right to write there, a warning says that nobody knows."""
    topic = str(Topic(group, "epoch", site))
    value, headers = encode_note(Note(0, 0, 0))
    try:
        with closing(connection.metadata_client()) as metadata:
            if metadata.partitions_of(topic, "WRITE"):
                append(connection, topic, (None, value, [*headers, act_header(act)]))
    except AbcastError as error:
        _logger.warning("group %s: the log does not tell who did this: %s", group, in_short(error))
