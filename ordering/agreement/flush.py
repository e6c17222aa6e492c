"""The flush at a view change: how a view ends, and who is in the next one, from what a quorum knows.

Pure functions of the reports of frozen processes. Why all that was delivered is in every answer, in its place, is
argued in `ordering.agreement.views`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ordering.agreement.formation import ProcessIncarnation, View
from ordering.agreement.hold_back import Places, RunId
from ordering.agreement.messages import NextView, ViewReport
from ordering.agreement.state import Placed, Proposed


def is_quorum(who: Iterable[int], size: int, excluded: Iterable[int] = ()) -> bool:
    """Whether these members of a view of that size may decide: a majority, or all that an operator has left."""
    answered, gone = set(who), set(excluded)
    if len(answered) >= size // 2 + 1:
        return True
    return bool(gone) and may_exclude(size, gone) and answered >= set(range(size)) - gone


def may_exclude(size: int, gone: Iterable[int]) -> bool:
    """Whether those who are left share a member with every majority."""
    return len(set(gone)) < size // 2 + 1


def is_report(report: ViewReport, size: int) -> bool:
    """Whether a report can be about a view of that size: a process that has gone astray may send any."""
    runs: list[Placed | Proposed] = [*report.recent, *report.finals, *report.proposed]
    places = [place for run in runs for place in (run.id.sender, run.key.proposer)]
    are_known = all(run.known < 1 << size for run in report.proposed)
    return len(report.ordered) == size and all(place < size for place in places) and are_known


def is_next(value: NextView, view: View) -> bool:
    """Whether a value can be about how that view ends."""
    places = [place for run in value.settled for place in (run.id.sender, run.key.proposer)]
    is_in_order = value.view.members == tuple(sorted(set(value.view.members)))
    return value.view.id == view.id + 1 and is_in_order and all(place < len(view.members) for place in places)


def settle(reports: Sequence[ViewReport]) -> tuple[Placed, ...]:
    """The end of a view from what a quorum of frozen members knows; see the module's text, "The new value"."""
    delivered = {placed.seqno: placed for report in reports for placed in report.recent}
    done = {placed.id for placed in delivered.values()}
    waiting = {placed.id: placed for report in reports for placed in report.finals if placed.id not in done}
    for placed in _computed(reports):
        before = placed.id._replace(number=placed.id.number - 1)
        follows = before in done or before in waiting or before.number <= _ordered(reports, placed.id.sender)
        if follows and placed.id not in done:
            waiting.setdefault(placed.id, placed)
    seqno = max(report.delivered for report in reports) + 1
    order = [delivered[first] for first in sorted(delivered)]
    for placed in sorted(waiting.values(), key=lambda placed: placed.key):
        order.append(placed._replace(seqno=seqno))
        seqno += placed.length
    return tuple(order)


def _computed(reports: Sequence[ViewReport]) -> list[Placed]:
    """The runs whose proposals, of all processes of the view, are known to some of them each: in a sender's order."""
    everybody = (1 << len(reports[0].ordered)) - 1
    found: dict[RunId, Proposed] = {}
    for report in reports:
        for run in report.proposed:
            known = found.get(run.id, run)
            found[run.id] = run._replace(key=max(known.key, run.key), known=Places(known.known | run.known))
    return [Placed(0, *found[run_id][:3]) for run_id in sorted(found) if found[run_id].known == everybody]


def _ordered(reports: Sequence[ViewReport], sender: int) -> int:
    return max(report.ordered[sender] for report in reports)


def next_view(view: View, reports: Mapping[int, ViewReport], joiners: Iterable[ProcessIncarnation]) -> NextView:
    """A new value: those who have reported stay, those who have asked join, and the view ends as the reports say."""
    settled = settle([reports[place] for place in sorted(reports)])
    last = max(report.delivered for report in reports.values())
    rows = dict(view.rows)
    for place, life in enumerate(view.members):
        rows[life] = max(_ordered(tuple(reports.values()), place), rows.get(life, 0))
    for placed in settled:
        life = view.members[placed.id.sender]
        rows[life] = max(rows[life], placed.id.number)
        last = max(last, placed.seqno + placed.length - 1)
    members = tuple(sorted(_members([view.members[place] for place in reports], joiners)))
    newest: dict[str, ProcessIncarnation] = {}
    for life in sorted((*rows, *members)):
        newest[life.name] = life
    kept = tuple((life, rows.get(life, 0)) for life in sorted(newest.values()))
    return NextView(View(view.origin, view.id + 1, members, last, kept), settled)


def _members(stay: list[ProcessIncarnation], joiners: Iterable[ProcessIncarnation]) -> list[ProcessIncarnation]:
    """Those who stay, and as many of those who ask as they at most. A new life takes the place of an old one."""
    joined: list[ProcessIncarnation] = []
    for joiner in joiners:
        others = [life for life in stay if life.name != joiner.name]
        if len(joined) < len(others):
            stay, joined = others, [*joined, joiner]
    return [*stay, *joined]
