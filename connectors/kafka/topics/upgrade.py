"""Switch a group to a later format (`ordering.base.formats`)."""

from __future__ import annotations

from typing import NamedTuple

from connectors.kafka.codec.epochs import encode_format
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sending import append
from connectors.kafka.log.acts import act_header, act_of_this_user
from connectors.kafka.log.data_log import DataLog
from ordering.base.errors import UsageError
from ordering.base.formats import NEWEST, Format, known


class Upgraded(NamedTuple):
    """The group's format before and after, and the first version that knows the format `after`."""

    before: int
    after: int
    version: str


def upgrade(connection: Connection, group: str, site: str, why: str = "", to: Format = NEWEST) -> Upgraded:
    """Give the group the format `to` at that site, unless it has that one or a later one. Idempotent.

    The format is one record, which each later claim repeats. The record names this process's user, and `why`.

    Raises UsageError for a copy, or a `why` that is too long; LaterVersion, TopicMissing, BrokerUnreachable.
    """
    with DataLog(connection, group, site) as data:
        if data.is_copy():
            raise UsageError(f"{data.topic} is the copy of another site's: upgrade the group there.")
        before = data.epochs.read().format
        if before >= to.number:
            return Upgraded(before, before, known(before).version)
        value, headers = encode_format(to)
        act = act_of_this_user("upgrade", f"format {to.number} at {site}", why)
        append(connection, data.epochs.topic, (None, value, [*headers, act_header(act)]))
    return Upgraded(before, to.number, to.version)
