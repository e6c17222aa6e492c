"""The start of a session of a link: an offset of the site's DATA that the neighbour has reached, by its own rows.

Invariant. The neighbour has ordered every record before the start that the link would carry. The state of the site's
DATA at that offset has the last seqno of each origin, and the neighbour's rows are as high. Rows only grow, so this is
still true when the neighbour judges the session's `link-start` (`ordering.sequencer.links`), whatever other relays have
brought by then. A start that is too early costs repeats, which are dropped.

No session begins in DATA that ends before the neighbour's row of this site. It has lost its end, or was made anew: new
messages there get seqnos that the neighbour has ordered, and would be dropped as repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from connectors.kafka.log.data_log import DataLog
from connectors.relay.joining import join_under_another_name
from ordering.base.errors import HistoryChanged, HistoryUnavailable
from ordering.base.names import relay_of
from ordering.base.records import EPOCH
from ordering.membership.membership import NOTHING_ACCEPTED
from ordering.sequencer.links import LinkStart, covers
from ordering.sequencer.sequencer import SNAPSHOT_EVERY_RECORDS
from ordering.sequencer.state import SequencerState

Carries = Callable[[str], bool]
"""Whether messages of an origin are carried."""


class SessionStart(NamedTuple):
    """The offset in DATA of the first record to carry, and the state of the log there."""

    offset: int
    state: SequencerState


def known_origins(state: SequencerState, site: str) -> dict[str, int]:
    """Return the last seqno of each origin that was ordered at `site`, its own included."""
    return {**state.origins, site: state.own_seqno}


def find_session_start(here: DataLog, origins: Mapping[str, int], carries: Carries) -> SessionStart:
    """Return a late offset of DATA, and the state there: a neighbour with these origin rows lacks nothing before it.

    Looks back from the end, in steps that grow, down to the oldest offset with a known state. Raises
    HistoryUnavailable if the neighbour lacks records before that offset; HistoryChanged if DATA ends before a message
    of its site that the neighbour has ordered: `origins` must be older than this call.
    """
    end, start = _end_of(here, origins.get(here.topic.site, 0))
    back, is_last = 0, False
    while start is None or not covers(origins, link_start(start.state, here.topic.site, carries).origins):
        if is_last:
            raise HistoryUnavailable(f"retention has dropped records of {here.topic} that its neighbour lacks.")
        back = max(SNAPSHOT_EVERY_RECORDS, 4 * back)
        is_last = end - back <= here.beginning()
        start = _oldest(here, end) if is_last else _at(here, end - back)
    return start


def _end_of(here: DataLog, ordered: int) -> tuple[int, SessionStart | None]:
    """Return the end of DATA, and the start there, None if the state is not known.

    Raises HistoryChanged if DATA ends before its site's own message `ordered`.
    """
    end = here.end()
    start = _at(here, end)
    if start is not None and start.state.own_seqno < ordered:
        end = here.end(end + 1)  # a former leader that is cut off tells an end that is too low
        start = _at(here, end)
    if start is None or start.state.own_seqno >= ordered:
        return end, start
    site, group = here.topic.site, here.topic.group
    raise HistoryChanged(
        f"{here.topic} ends at seqno {start.state.own_seqno} of its own messages, and its neighbour has ordered them "
        f"up to {ordered}: it has lost its end, or was made anew. Neighbours take new messages under the lost seqnos "
        f"for repeats. Stop the jobs and the members of {group} at {site}, and let {site} "
        f"{join_under_another_name(group)}"
    )


def _at(here: DataLog, offset: int) -> SessionStart | None:
    """Return the start at an offset of DATA, or None if the state there is not known."""
    try:
        return SessionStart(offset, here.state(offset))
    except HistoryUnavailable:
        return None


def _oldest(here: DataLog, end: int) -> SessionStart | None:
    """Return the start at the beginning of DATA; if retention has dropped that, right behind the oldest snapshot."""
    beginning = here.beginning()
    if beginning == 0:
        return _at(here, 0)
    for start in range(beginning, end, SNAPSHOT_EVERY_RECORDS):
        window = list(here.records(start, min(start + SNAPSHOT_EVERY_RECORDS, end)))  # `_at` reads with its consumer
        for stored in window:
            if stored.data.kind == EPOCH and stored.data.payload and (found := _at(here, stored.offset + 1)):
                return found
    return None


def link_start(state: SequencerState, site: str, carries: Carries) -> LinkStart:
    """Return the `link-start` of a session that begins where the log of `site` has this state."""
    origins = {name: seqno for name, seqno in known_origins(state, site).items() if seqno and carries(name)}
    return LinkStart(state.epoch, state.seqno, origins)


def is_ordered(here: SequencerState, there: SequencerState, site: str, carries: Carries) -> bool:
    """Whether a neighbour in the state `there` has all records of `site` up to the state `here`, and its view."""
    relay_row = there.received.get(relay_of(site), NOTHING_ACCEPTED)
    return relay_row.local_seqno >= here.view and covers(there.origins, link_start(here, site, carries).origins)


def ledger_start(numbers: Iterable[tuple[str, int, int]], origins: Mapping[str, int], carries: Carries) -> LinkStart:
    """Return the start of a session of a ledger's rows: right before the first that this neighbour lacks.

    `origins` are the neighbour's origin rows. `numbers` has the origin, the seqno, and the seqno at the origin of each
    message in the ledger, in any order.
    """
    carried = [row for row in numbers if carries(row[0])]
    after_all = 1 + max((seqno for _, seqno, _ in carried), default=0)
    first = min((seqno for name, seqno, number in carried if number > origins.get(name, 0)), default=after_all)
    known: dict[str, int] = {}
    for name, seqno, number in carried:
        if seqno < first:
            known[name] = max(known.get(name, 0), number)
    return LinkStart(0, first - 1, known)
