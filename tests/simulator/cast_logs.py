"""Delivery logs of a simulated history's processes, for `CastChecker`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ordering.base.records import MESSAGE, VIEW
from ordering.casts.casts import NO_VIEW, Cast, OrderedRecord
from ordering.checker.anomalies import Anomaly
from ordering.checker.cast_checker import CastChecker
from ordering.membership.membership import MemberIncarnation
from tests.simulator.orders import Orders, Process

Line = Cast | OrderedRecord


class LoggedOrders(Orders):
    """A history that notes what each life delivered, casts, total messages and views. Nobody lies."""

    may_lie = False

    def __init__(self, seed: int) -> None:
        self.logs: dict[MemberIncarnation, list[Line]] = {}
        super().__init__(seed)

    def _deliver(self, process: Process, record: Cast | OrderedRecord) -> None:
        if isinstance(record, Cast) or record.kind in (MESSAGE, VIEW):
            self.logs.setdefault(process.life, []).append(record)
        super()._deliver(process, record)

    def checked(self, logs: Mapping[MemberIncarnation, Sequence[Line]], *, marked: bool = True) -> list[Anomaly]:
        """Return the checker's findings for these logs. `marked`: they say where they begin."""
        checker = CastChecker()
        for record in self.data:
            if record.kind == VIEW:
                checker.view(record.view, record.members)
            elif record.kind == MESSAGE:
                checker.total(record.seqno, record.depends)
        for partition in self.partitions:
            for cast in partition.casts():
                checker.cast(cast)
        for life, lines in logs.items():
            view = NO_VIEW
            if marked:
                checker.begins(str(life), life)
            for line in lines:
                if isinstance(line, Cast):
                    checker.delivered_cast(str(life), line.member, line.local_seqno, line.view)
                elif line.kind == VIEW:
                    view = line.view
                    checker.delivered_view(str(life), view)
                else:
                    checker.delivered_total(str(life), line.seqno, view)
        return checker.finish()
