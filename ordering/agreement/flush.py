"""The flush at a view change: the end of a view and the members of the next one, from a quorum's reports.

Pure functions of the reports of frozen processes. `ordering.agreement.views` proves that every answer has all
deliveries, in their places.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ordering.agreement.formation import ProcessIncarnation, View
from ordering.agreement.hold_back import Places, RunId
from ordering.agreement.messages import NextView, ViewReport
from ordering.agreement.state import AgreementState, Placed, Proposed


def is_quorum(who: Iterable[int], size: int, excluded: Iterable[int] = ()) -> bool:
    """Whether these members of a view of this size may decide: a majority, or all that the operator did not exclude."""
    answered, gone = set(who), set(excluded)
    if len(answered) >= size // 2 + 1:
        return True
    return bool(gone) and may_exclude(size, gone) and answered >= set(range(size)) - gone


def may_exclude(size: int, gone: Iterable[int]) -> bool:
    """Whether the members that are left share one with every majority."""
    return len(set(gone)) < size // 2 + 1


def is_report(report: ViewReport, size: int) -> bool:
    """Whether a report can be about a view of this size: a faulty process may send any."""
    runs: list[Placed | Proposed] = [*report.recent, *report.finals, *report.proposed]
    places = [place for run in runs for place in (run.id.sender, run.key.proposer)]
    are_known = all(run.known < 1 << size for run in report.proposed)
    return len(report.ordered) == size and all(place < size for place in places) and are_known


def report_of(state: AgreementState) -> ViewReport:
    """Return the report of a frozen process."""
    finals = (Placed(0, held.id, held.run.length, held.key) for held in state.held if held.is_final)
    proposed = (Proposed(held.id, held.run.length, held.key, held.known) for held in state.held if not held.is_final)
    return ViewReport(state.delivered, tuple(state.recent), tuple(finals), tuple(state.ordered), tuple(proposed))


def is_next(value: NextView, view: View) -> bool:
    """Whether a value can be the end of this view."""
    places = [place for run in value.settled for place in (run.id.sender, run.key.proposer)]
    is_in_order = value.view.members == tuple(sorted(set(value.view.members)))
    return value.view.id == view.id + 1 and is_in_order and all(place < len(view.members) for place in places)


def settle(reports: Sequence[ViewReport]) -> tuple[Placed, ...]:
    """Return the end of a view from the reports of a quorum (`ordering.agreement.views`, "The new value")."""
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
    """Return the runs for which the reports together have the proposals of all processes, in each sender's order."""
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
    """Return a new value: the reporting members stay, at most as many joiners join, and the reports end the view."""
    settled = settle([reports[place] for place in sorted(reports)])
    last = max(report.delivered for report in reports.values())
    rows = dict(view.rows)
    for place, process in enumerate(view.members):
        rows[process] = max(_ordered(tuple(reports.values()), place), rows.get(process, 0))
    for placed in settled:
        process = view.members[placed.id.sender]
        rows[process] = max(rows[process], placed.id.number)
        last = max(last, placed.seqno + placed.length - 1)
    members = tuple(sorted(_members([view.members[place] for place in reports], joiners)))
    newest: dict[str, ProcessIncarnation] = {}
    for process in sorted((*rows, *members)):
        newest[process.name] = process
    kept = tuple((process, rows.get(process, 0)) for process in sorted(newest.values()))
    return NextView(View(view.origin, view.id + 1, members, last, kept), settled)


def _members(stay: list[ProcessIncarnation], joiners: Iterable[ProcessIncarnation]) -> list[ProcessIncarnation]:
    """Return the staying members and at most as many joiners. A new incarnation replaces an old one."""
    joined: list[ProcessIncarnation] = []
    for joiner in joiners:
        others = [process for process in stay if process.name != joiner.name]
        if len(joined) < len(others):
            stay, joined = others, [*joined, joiner]
    return [*stay, *joined]
