"""What the entries of a site's log tell that stand in its DATA: the last one that counts, and the site's state."""

from __future__ import annotations

from collections.abc import Sequence

from connectors.kafka.codec.entry_codec import read_entry
from connectors.kafka.codec.epochs import Claim
from connectors.kafka.connection.ranges import windows_back
from connectors.kafka.log.data_log import DataLog, StoredRecord
from ordering.agreement.log import Entry, counting
from ordering.agreement.site import OUT_FOR_GOOD
from ordering.agreement.site_state import SiteState, state_of
from ordering.base.errors import HistoryUnavailable
from ordering.base.records import ENTRY, EPOCH, MAX_NUMBER, Data

_FIRST_WINDOW = 512


def last_entry(data: DataLog, end: int) -> Entry | None:
    """The last entry below offset `end` that counts; None if there is none.

    Raises HistoryUnavailable if retention has dropped all entries.
    """
    entries = _counting(data, end, MAX_NUMBER)
    return entries[-1] if entries else None


def last_state(data: DataLog, end: int) -> SiteState | None:
    """The state of the site that its log tells below offset `end`; None if there is no entry.

    Raises HistoryUnavailable if retention has dropped what it takes.
    """
    entries = _counting(data, end, MAX_NUMBER)
    if not entries:
        return None
    return state_of(entries if entries[-1].snapshot else _counting(data, end, entries[-1].base))


def needed_from(data: DataLog, end: int) -> int:
    """The offset from which on entries below `end` are needed: by the site itself at a start, and by the others.

    A site goes on at the last entry that it has read, and has said in its own log that it has: that is its `known`
    row, or further on. So what is below the lowest of these is read by nobody, nor is what is below the last base.
    """
    state = last_state(data, end)
    if state is None:
        return 0
    view = state.process.view
    others = {life.name for life in (*view.members, *(life for life, _ in view.rows))} - {state.process.me.name}
    known = {row.site: row.known for row in state.logs}
    return _since(data, end, min([state.base, *(known.get(name, 0) for name in others)]))[0]


def _counting(data: DataLog, end: int, number: int) -> list[Entry]:
    """Entries below offset `end` that count: from one whose number is at most `number`, or from the first, to the last.

    Raises HistoryUnavailable if retention has dropped the entries.
    """
    return counting(_since(data, end, number)[1], read_entry)


def _since(data: DataLog, end: int, number: int) -> tuple[int, list[Data]]:
    """Where the first of these stands, and they and the seals between them; 0 where it is the first of all.

    Reads back to an entry that is known to count, and from there on by the rule. Such a one stands below the floor of
    every claim of a higher epoch: none of their seals is before it, and a job writes its entries in their order.
    """
    claims, beginning = data.claims(), data.beginning()
    tail: list[Data] = []
    for start, below in windows_back(beginning, end, _FIRST_WINDOW):
        stored = [each for each in data.records(start, below) if each.data.kind in (ENTRY, EPOCH)]
        for index in range(len(stored) - 1, -1, -1):
            if stored[index].data.local_seqno <= number and _counts_for_certain(stored[index], claims):
                return stored[index].offset, [*(each.data for each in stored[index:]), *tail]
        tail = [*(each.data for each in stored), *tail]
    if beginning > 0:
        raise HistoryUnavailable(
            f"retention has dropped all entries of {data.topic}: what this site has promised to the others is not "
            f"known any more. {OUT_FOR_GOOD}"
        )
    return 0, tail


def _counts_for_certain(stored: StoredRecord, claims: Sequence[Claim]) -> bool:
    if stored.data.kind != ENTRY:
        return False
    return all(claim.floor > stored.offset for claim in claims if claim.epoch > stored.data.epoch)
