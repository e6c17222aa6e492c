"""Switch a group to a later format (`ordering.base.formats`)."""

from __future__ import annotations

from typing import NamedTuple

from connectors.kafka.codec.epochs import encode_format
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sending import append
from connectors.kafka.log.acts import act_header, act_of_this_user
from connectors.kafka.log.data_log import DataLog
from ordering.base.errors import UsageError
from ordering.base.formats import NEWEST


class Upgraded(NamedTuple):
    """The group's format before and after, and the first version that knows the format `after`."""

    before: int
    after: int
    version: str


def upgrade(connection: Connection, group: str, site: str, why: str = "") -> Upgraded:
    """Give the group the newest format at that site. Idempotent.

    The format is one record, which each later claim repeats. The record names this process's user, and `why`.

    Raises UsageError for a copy, or a `why` that is too long; LaterVersion, TopicMissing, BrokerUnreachable.
    """
    with DataLog(connection, group, site) as data:
        if data.is_copy():
            raise UsageError(f"{data.topic} is the copy of another site's: upgrade the group there.")
        before = data.epochs.read().format
        if before < NEWEST.number:
            value, headers = encode_format(NEWEST)
            act = act_of_this_user("upgrade", f"format {NEWEST.number} at {site}", why)
            append(connection, data.epochs.topic, (None, value, [*headers, act_header(act)]))
    return Upgraded(before, NEWEST.number, NEWEST.version)
