"""How many senders and members a group has room for: a snapshot, and a view, must fit into a record of DATA.

Invariant. The received table grows by a row only while it has room, and so do the members with those that are joining.
Both are functions of the state and of the records that came before in the same step. So all sequencers that decide the
same records from the same state refuse the same ones, whenever one takes over. What a relay, an operator and a tick
write always has room: their names are few, and to forget senders takes one.

A row of JSON is as long as its name and some bytes. Names are ASCII and numbers are digits, of which gzip needs three
quarters at most: a full table takes 5.5 MiB of a snapshot, and full members with what is heard of them 2 MiB. A view is
not compressed: it has each member once, and those that join once more.
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
    """What is left of a received table, to which the rows taken are added. It is counted when it may be full."""

    def __init__(self, received: Mapping[str, object]) -> None:
        self._received = received
        self._left, self._counted = 0, -1  # the number of rows of which that is left

    def take(self, sender: str) -> bool:
        """Whether there is room for the row of a sender that the table does not have; it is to be added then."""
        rows = len(self._received)
        if rows < _SURELY_SENDERS:
            return True
        if rows != self._counted:  # rows were dropped, or it is the first time
            self._left, self._counted = MAX_SENDERS_BYTES - _size(self._received, _ROW_BYTES), rows
        size = _ROW_BYTES + len(sender)
        if self._left < size and not is_reserved(sender):
            return False
        self._left, self._counted = self._left - size, rows + 1
        return True


def has_room_for_all(received: Mapping[str, object], senders: Iterable[str]) -> bool:
    """Whether rows of all those fit that the table does not have."""
    new = [sender for sender in senders if sender not in received]
    if len(received) + len(new) <= _SURELY_SENDERS or not new:
        return True
    return _size(received, _ROW_BYTES) + _size(new, _ROW_BYTES) <= MAX_SENDERS_BYTES


def has_room_for_member(members: Iterable[str], address: str) -> bool:
    """Whether a view can name all of these, and what is heard of them fits into a snapshot."""
    there = {*members, address}
    if len(there) <= _SURELY_MEMBERS:
        return True
    return 2 * _size(there, 0) + _MEMBER_BYTES * len(there) <= MAX_MEMBERS_BYTES


def _size(names: Collection[str], each: int) -> int:
    return sum(map(len, names)) + each * len(names)
