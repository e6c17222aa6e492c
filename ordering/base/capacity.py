"""Limits on the senders and members of a group: a snapshot, and a view, must fit into one record of DATA.

Invariant. The received table gets a new row only while it has room. The same holds for members and joiners together.
Both checks depend only on the state and on earlier records of the same step. So all sequencers that decide the same
records from the same state refuse the same ones, whenever one takes over. Rows of relays, operators and ticks always
fit: their names are few, and forgetting senders needs one of them.

A row of JSON is as long as its name and some bytes. Names are ASCII and numbers are digits, which gzip packs into three
quarters at most: a full table takes 5.5 MiB of a snapshot, and full members with their times 2 MiB. A view is not
compressed: it names each member once, and each joiner twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ordering.base.names import MAX_ADDRESS_LENGTH, is_reserved

MAX_SENDERS_BYTES = 7 * 1024 * 1024
MAX_MEMBERS_BYTES = 2 * 1024 * 1024
_ROW_BYTES, _MEMBER_BYTES = 32, 64
_SURELY_SENDERS = MAX_SENDERS_BYTES // (_ROW_BYTES + MAX_ADDRESS_LENGTH)
_SURELY_MEMBERS = MAX_MEMBERS_BYTES // (_MEMBER_BYTES + 2 * MAX_ADDRESS_LENGTH)

NO_ROOM = "the group has no room for another sender: abcast members forget drops the rows of idle ones"
NO_ROOM_FOR_MEMBERS = "the group has no room for another member"


class SenderCapacity:
    """The free bytes of a received table. They are counted only once the table may be full."""

    def __init__(self, received: Mapping[str, object]) -> None:
        self._received = received
        self._free_bytes, self._counted_rows = 0, -1  # the free bytes hold for a table of that many rows

    def take(self, sender: str) -> bool:
        """Take the room for this new sender's row, which the caller then adds. Return False if it does not fit.

        The row of a reserved name always fits.
        """
        rows = len(self._received)
        if rows < _SURELY_SENDERS:
            return True
        if rows != self._counted_rows:  # the first count, or rows were dropped since the last
            self._free_bytes, self._counted_rows = MAX_SENDERS_BYTES - _size(self._received, _ROW_BYTES), rows
        size = _ROW_BYTES + len(sender)
        if self._free_bytes < size and not is_reserved(sender):
            return False
        self._free_bytes, self._counted_rows = self._free_bytes - size, rows + 1
        return True


def has_room_for_all(received: Mapping[str, object], senders: Iterable[str]) -> bool:
    """Whether the table has room for a row of each sender that it lacks. Reserved names need room here, too."""
    new = [sender for sender in senders if sender not in received]
    if len(received) + len(new) <= _SURELY_SENDERS or not new:
        return True
    return _size(received, _ROW_BYTES) + _size(new, _ROW_BYTES) <= MAX_SENDERS_BYTES


def has_room_for_member(members: Iterable[str], address: str) -> bool:
    """Whether a view can name the members and `address`, and a snapshot can hold their times."""
    there = {*members, address}
    if len(there) <= _SURELY_MEMBERS:
        return True
    return 2 * _size(there, 0) + _MEMBER_BYTES * len(there) <= MAX_MEMBERS_BYTES


def _size(names: Collection[str], each: int) -> int:
    return sum(map(len, names)) + each * len(names)
