"""Read the entries in a site's DATA: the site's state, and how far back they are needed."""

from __future__ import annotations

from collections.abc import Sequence

from connectors.kafka.codec.entry_codec import read_entry
from connectors.kafka.codec.epochs import Claim
from connectors.kafka.connection.ranges import windows_back
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.stored_record import StoredRecord
from ordering.agreement.log import Entry, counting
from ordering.agreement.site_state import SiteState, state_of
from ordering.agreement.sites.other_logs import OUT_FOR_GOOD
from ordering.base.errors import HistoryUnavailable
from ordering.base.kinds import WITHOUT_SEQNO
from ordering.base.records import ENTRY, MAX_NUMBER, Data

_FIRST_WINDOW = 512


def last_state(data: DataLog, end: int) -> SiteState | None:
    """Return the site's state in its log below offset `end`; None if there is no entry.

    Raises HistoryUnavailable if retention has dropped entries that the state takes.
    """
    entries = _counting(data, end, MAX_NUMBER)
    if not entries:
        return None
    return state_of(entries if entries[-1].snapshot else _counting(data, end, entries[-1].base))


def needed_from(data: DataLog, end: int) -> int:
    """Return the offset from which on entries below `end` are needed: by the site's own start, or by other sites.

    A site continues after the last entry that it has read and has noted in its own log, its `known` row. So no site
    reads entries below the lowest `known`, nor below the last base. Returns 0 without entries. Raises
    HistoryUnavailable if retention has dropped entries that the site's state takes.
    """
    state = last_state(data, end)
    if state is None:
        return 0
    view = state.process.view
    others = {process.name for process in (*view.members, *(process for process, _ in view.rows))} - {
        state.process.me.name
    }
    known = {site: row.known for site, row in state.logs.items()}
    return _since(data, end, min([state.base, *(known.get(name, 0) for name in others)]))[0]


def _counting(data: DataLog, end: int, number: int) -> list[Entry]:
    """Return the entries below offset `end` that count, from one numbered at most `number`, or from the first.

    Raises HistoryUnavailable if retention has dropped the entries.
    """
    return counting(_since(data, end, number)[1], read_entry)


def _since(data: DataLog, end: int, number: int) -> tuple[int, list[Data]]:
    """Return the entries and epoch records below `end`, from an entry on that certainly counts and is numbered at most
    `number`; and that entry's offset. Without such an entry, return all of the log's, and 0.

    An entry certainly counts below the floor of every claim of a higher epoch: none of their seals precedes it, and a
    job writes its entries in order. If DATA has lost its end in between, numbers of its epoch are missing before it.
    Raises HistoryUnavailable if retention has dropped the entry.
    """
    claims, beginning = data.epochs.read().claims, data.beginning()
    tail: list[Data] = []
    for start, below in windows_back(beginning, end, _FIRST_WINDOW):
        stored = [each for each in data.records(start, below) if each.data.kind in WITHOUT_SEQNO]
        for index in range(len(stored) - 1, -1, -1):
            if stored[index].data.local_seqno <= number and _counts_for_certain(stored[: index + 1], claims):
                return stored[index].offset, [*(each.data for each in stored[index:]), *tail]
        tail = [*(each.data for each in stored), *tail]
    if beginning > 0:
        raise HistoryUnavailable(
            f"retention has dropped all entries of {data.topic}: this site no longer knows what it has promised to "
            f"the others. {OUT_FOR_GOOD}"
        )
    return 0, tail


def _counts_for_certain(stored: Sequence[StoredRecord], claims: Sequence[Claim]) -> bool:
    """Whether the last of these records is an entry that certainly counts."""
    offset, entry = stored[-1].offset, stored[-1].data
    if entry.kind != ENTRY or not all(claim.floor > offset for claim in claims if claim.epoch > entry.epoch):
        return False
    of_epoch = (each.data for each in stored if each.data.kind == ENTRY and each.data.epoch == entry.epoch)
    numbers = {each.local_seqno for each in of_epoch}
    return len(numbers) == entry.local_seqno - min(numbers) + 1
