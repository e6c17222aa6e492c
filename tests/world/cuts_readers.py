"""The readers of a group whose logs are cut: applications, a ledger, members. Each is told, or has what DATA has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from connectors.kafka.log.data_cursor import DataCursor
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.effective import Effective
from connectors.kafka.log.same_log import LedgerRow
from ordering.base.errors import HistoryChanged, ProtocolViolation
from ordering.base.names import Address
from tests.world.clients import Deliverer, GroupMember
from tests.world.group_job import GROUP, SITE
from tests.world.stepping import Process

if TYPE_CHECKING:
    from tests.world.cuts import CutsWorld

SILENT = "went on in silence"
FALSE_ALARM = "false alarm"


class Doubter(Deliverer):
    """A reader of DATA that begins anew once it is told that it can't go on."""

    def __init__(self, world: CutsWorld, name: str) -> None:
        super().__init__(world.connect, world.table, name, SITE)
        self.world = world
        self.damage = 0
        """Number of damages of DATA before it began, without one that EPOCH told it of."""
        self.is_cut = False
        """Whether DATA has lost the last record that it has read."""

    def resume(self, seqno: int | None = None) -> None:
        """Begin to read behind a seqno; None for the newest. Raises what the log's questions raise.

        It polls at once, so it knows the record before its first one.
        """
        self.cursor, self.is_cut = None, False
        self.delivered.clear()
        with DataLog(self.connect(Process(self.name)), GROUP, SITE) as log:
            start = log.after(log.state().seqno if seqno is None else seqno, or_end=seqno is None)
            self.damage = self.world.damage - (start.offset > log.end())  # known by EPOCH
            self.cursor = DataCursor(log.connection.consumer(), log.partition, start)
        self.read()

    def read(self) -> Sequence[Effective]:
        """Read what a poll returns, or begin."""
        if self.cursor is None:
            self.resume()
            return ()
        try:
            found = super().read()
        except HistoryChanged as error:
            self.world.note_error(self.name, error)
            if self.damage == self.world.damage:
                self.world.blame(FALSE_ALARM, f"DATA is whole, and yet: {error}")
            self.cursor = None
            return ()
        if found:
            self.world.tell(f"    {self.name} is given {[each.seqno for each in found]}")
            if self.is_cut:
                self.world.blame(SILENT, f"{self.name} goes on with {found[0]}, and DATA has lost what it read last.")
        return found


class LedgerOfCuts(Doubter):
    """A ledger's writer, and its rows. When it is told that it can't go on, an operator begins another ledger."""

    def __init__(self, world: CutsWorld) -> None:
        super().__init__(world, "the ledger")
        self.rows: list[LedgerRow] = []

    def resume(self, seqno: int | None = None) -> None:
        self.rows = []
        super().resume(seqno or 0)

    def read(self) -> Sequence[Effective]:
        """Commit what it reads."""
        found = super().read()
        for each in found if not self.world.anomalies else ():
            if each.seqno not in self.world.effective:
                self.world.blame(SILENT, f"{self.name} is given {each}, which DATA has not.")
                break
            data, offset, at_ms = self.world.effective[each.seqno]
            self.rows.append(LedgerRow(each.seqno, data.epoch, *data.id, offset, at_ms, data.forwarded_at_ms))
        return found

    # What ships asks.

    def look_again(self) -> None:
        """Do nothing: each answer is new."""

    def last_seqno(self, _: str) -> int:
        """Return the last seqno; 0 without rows."""
        return self.rows[-1].seqno if self.rows else 0

    def row(self, _: str, seqno: int) -> LedgerRow | None:
        """Return the row at the seqno, or the last one below."""
        return next((row for row in reversed(self.rows) if row.seqno <= seqno), None)


class CutsMember(GroupMember):
    """A member that may end only if something was lost, or a broker's clock has jumped."""

    def __init__(self, world: CutsWorld, address: Address, *, has_outbox: bool) -> None:
        super().__init__(world.connect, world.disk, world.table, address, has_outbox=has_outbox)
        self.world, self.application = world, Doubter(world, str(address))

    def start(self) -> None:
        """Start a process, unless one runs. Without its outbox, if that is of another log: as the error says.

        Its tailer polls at once.
        """
        if self.sender is not None:
            return
        try:
            super().start()
        except ProtocolViolation as error:
            if "delete the outbox" not in str(error):
                raise
            self.crash(gives_up=True)
            super().start()
        self.turn()

    def crash(self, *, gives_up: bool = False, backup: int | None = None) -> None:
        if gives_up and not (self.world.has_lost or self.world.shape.powers):
            self.world.blame(FALSE_ALARM, f"nothing was lost, and {self.address} gives up.")
        super().crash(gives_up=gives_up, backup=backup)
