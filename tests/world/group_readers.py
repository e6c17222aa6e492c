"""Reading rules that are broken on purpose: mutations give them to all readers of DATA."""

from __future__ import annotations

from typing import Any

from ordering.base.reader import Reader, Verdict
from ordering.base.records import STRAY


class _RowReader(Reader):
    """Judges columns record by record."""

    def accept_columns(self, is_control: Any, epoch: Any, seqno: Any, count: Any = None) -> Any:
        counts = [1] * len(seqno) if count is None else count.tolist()
        rows = zip(is_control.tolist(), epoch.tolist(), seqno.tolist(), counts, strict=True)
        taken = [
            self.accept("epoch" if control else "" if number else STRAY, at, number, of) is Verdict.TAKE
            for control, at, number, of in rows
        ]
        is_taken = is_control.copy()
        is_taken[:] = taken
        return is_taken


class EpochBlindReader(_RowReader):
    """Takes the records that a fenced sequencer left behind the seal."""

    def accept(self, kind: str, epoch: int, seqno: int, count: int = 1) -> Verdict:
        return super().accept(kind, max(epoch, self.epoch), seqno, count)


class GreedyReader(_RowReader):
    """Takes a record ahead of its turn."""

    def accept(self, kind: str, epoch: int, seqno: int, count: int = 1) -> Verdict:
        verdict = super().accept(kind, epoch, seqno, count)
        if verdict is Verdict.AHEAD:
            self.last_seqno = seqno + count - 1
            return Verdict.TAKE
        return verdict


class RepeatingReader(_RowReader):
    """Takes repeated records."""

    def accept(self, kind: str, epoch: int, seqno: int, count: int = 1) -> Verdict:
        verdict = super().accept(kind, epoch, seqno, count)
        return Verdict.TAKE if verdict is Verdict.DUPLICATE else verdict


class StrayReader(_RowReader):
    """Counts records that are no DATA as if they had a seqno."""

    def accept(self, kind: str, epoch: int, seqno: int, count: int = 1) -> Verdict:
        self.last_seqno += kind == STRAY
        return super().accept(kind, epoch, seqno, count)


class CountlessReader(_RowReader):
    """Takes each record for one with a single seqno."""

    def accept(self, kind: str, epoch: int, seqno: int, count: int = 1) -> Verdict:
        return super().accept(kind, epoch, seqno)


def readers(reader: type[Reader]) -> tuple[tuple[str, Any], ...]:
    """Return the patches that give all readers of DATA another reading rule."""
    cursor = "connectors.kafka.log.data_cursor.DataCursor._pass_over"
    places = ("connectors.kafka.log.data_log", "connectors.client.tail.log_end")
    strays = ((cursor, lambda self, _: self._reader.accept(STRAY, -1, 0)),) if reader is StrayReader else ()
    return (*((f"{place}.Reader", reader) for place in places), *strays)
