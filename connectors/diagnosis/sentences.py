"""Sentences on a group, as `abcast status` says them: first the things that are wrong, then the others."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

from connectors.diagnosis.status import GroupStatus
from ordering.base.formats import NEW_GROUPS, NEWEST

RELAY_SILENT_S = 60.0
"""The age of a relay's last heartbeat, in seconds, from which on it is wrong. One comes every few seconds."""
_SHOWN_GAPS = 5
_SHOWN_ACTS = 3


def wrong_with(row: GroupStatus, site: str) -> Iterator[str]:
    """Yield a sentence on each thing that somebody has to look at, the worst first; nothing if all is well."""
    if not row.sequencer.works:
        yield str(row.sequencer)
    if row.trouble:
        yield f"its job reports: {row.trouble}"
    if row.agreement is not None and row.agreement.waits:
        yield f"{site} {row.agreement}"
    yield from map(str, row.open_transactions)
    if row.under_replicated:
        more = len(row.under_replicated) - 1
        yield f"{row.under_replicated[0]}{f' ({more:,} more like it: see --json)' if more else ''}"
    if row.other_history:
        yield row.other_history
    if row.wrong_settings:
        yield row.wrong_settings
    for neighbour, silent_s in row.relays.items():
        if _is_silent(silent_s):
            yield _heard(neighbour, silent_s)
    for gap in row.gaps[:_SHOWN_GAPS]:
        of_incarnation = f" of incarnation {gap.incarnation}" if gap.missing == 1 else ""
        yield (
            f"{gap.sender} sent {gap.dropped:,} record{'' if gap.dropped == 1 else 's'} behind a gap, dropped until it "
            f"sends local seqno {gap.missing}{of_incarnation}"
        )
    if len(row.gaps) > _SHOWN_GAPS:
        yield f"{len(row.gaps) - _SHOWN_GAPS:,} more senders have a gap: see --json"
    if row.strays:
        yield (
            f"{row.strays} of the newest records in DATA are not from abcast, and readers skip them: find the other "
            "writer. `abcast check` counts all"
        )


def notes_on(row: GroupStatus, site: str) -> Iterator[str]:
    """Yield further sentences on a group, which have no room in a table."""
    if row.sequencer.works:
        yield str(row.sequencer)
    if row.standby is not None:
        yield f"standby: {row.standby.who}"
    if row.format < NEW_GROUPS.number:
        yield (
            f"it has format {row.format}: `abcast topics upgrade --group {row.group} --site {site}` gives it "
            f"{NEWEST.number}, once all its processes run abcast {NEWEST.version} or later"
        )
    if row.agreement is not None and not row.agreement.waits:
        yield f"{site} {row.agreement}"
    for neighbour, silent_s in row.relays.items():
        if not _is_silent(silent_s):
            yield _heard(neighbour, silent_s)
    for act in row.acts[-_SHOWN_ACTS:]:
        at = datetime.fromtimestamp(act.at_ms / 1000, timezone.utc)
        yield f"{act.act} by {act.who}, {at:%Y-%m-%d %H:%M} UTC: {act.what}{f' ({act.why})' if act.why else ''}"


def _is_silent(silent_s: float | None) -> bool:
    return silent_s is None or silent_s > RELAY_SILENT_S


def _heard(neighbour: str, silent_s: float | None) -> str:
    heard = "has sent no heartbeat" if silent_s is None else f"sent a heartbeat {silent_s:,.0f} s ago"
    return f"the relay from {neighbour} {heard}"
