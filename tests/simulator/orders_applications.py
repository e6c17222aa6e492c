"""The members' applications: deliveries by readers of their own, beside the hub's, and from the cut of a state.

The rules are the real core's (`ordering.casts.delivery_status`). The rest is a model of
`connectors.client.deliveries.merged_deliveries` and of `connectors.client.state.state_transfer`: a reader at its own
pace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ordering.base.records import MESSAGE, VIEW
from ordering.casts.casts import Cast, OrderedRecord
from ordering.casts.causal import CausalReceiver, CausalState
from ordering.casts.delivery_status import DeliveryStatus
from ordering.casts.merging import Merger
from ordering.checker.anomalies import LOST, VIEW_VIOLATION
from ordering.membership.membership import MemberIncarnation
from tests.simulator.orders_logs import GoingOn

if TYPE_CHECKING:
    from tests.simulator.orders import Orders, Process


@dataclass
class Application:
    """A member's application, with its own reader."""

    process: Process
    merger: Merger
    data_offset: int
    offsets: dict[int, int]
    delivered: int
    """Its deliveries and its state's, as a set of bits."""
    progress: int = 0
    full_at: dict[int, int] = field(default_factory=dict)
    places: dict[tuple[MemberIncarnation, int, int], int] = field(default_factory=dict)
    ready: deque[Cast | OrderedRecord] = field(default_factory=deque)

    @property
    def receiver(self) -> CausalReceiver:
        """Return its reader's deliveries in its views."""
        return self.merger.causal

    @property
    def is_alive(self) -> bool:
        """Whether its process lives."""
        return self.process.is_alive


@dataclass(frozen=True)
class Answer:
    """A state on its way to a joiner."""

    of: MemberIncarnation
    state: bytes
    offsets: dict[int, int]
    delivered: int


class Applications:
    """The applications of a history's members."""

    def __init__(self, world: Orders) -> None:
        self.world = world
        self.random = world.random
        self.running: list[Application] = []
        self.asking: list[Process] = []
        """Joiners that have no state yet."""
        self.answers: dict[MemberIncarnation, Answer] = {}

    def begin(self, process: Process, *, may_ask: bool = False) -> None:
        """Begin where the hub does, or with another one's state."""
        if may_ask and self.random.random() < 0.7:
            self.asking.append(process)
            return
        assert process.receiver is not None
        self._begin_at(process, process.receiver.state, dict(process.offsets), process.delivered)

    def _begin_at(self, process: Process, state: CausalState, offsets: dict[int, int], delivered: int) -> None:
        self.running.append(Application(process, self.world.merger_at(state), state.seqno, offsets, delivered))

    def ask(self) -> None:
        """A joiner asks an application that has been given its first view, between two deliveries."""
        waiting = [each for each in self.asking if each.is_alive and each.life not in self.answers]
        if not waiting:
            return
        joiner = self.random.choice(waiting)
        suppliers = [
            each
            for each in self.running
            if each.is_alive and (not each.ready or self.world.rules.supply_in_midst)
            if joiner.life in each.receiver.members and each.process.life in each.receiver.members
            if not each.process.is_liar
        ]
        if not suppliers:
            return
        supplier = self.random.choice(suppliers)
        offsets = {}  # at another site, all casts are read
        if supplier.process.home.site == joiner.home.site:
            offsets = self.world.offsets_behind(supplier)
        self.answers[joiner.life] = Answer(
            supplier.process.life, supplier.receiver.state.to_bytes(), offsets, supplier.delivered
        )
        self.world.seen["asked for a state"] += 1
        if self.random.random() < 0.4:
            self.world.die_serving(supplier.process, joiner)

    def answer(self) -> None:
        """A state has come."""
        coming = [each for each in self.asking if each.life in self.answers and each.is_alive]
        if not coming:
            return
        joiner = self.random.choice(coming)
        answer = self.answers[joiner.life]
        state = CausalState.from_bytes(answer.state)
        assert joiner.receiver is not None
        fate = self.world.rules.fate_of_state(joiner.receiver, state)
        if fate is DeliveryStatus.NOT_YET:
            return
        del self.answers[joiner.life]
        if fate is DeliveryStatus.NEVER:
            self.world.seen["a state is void"] += 1
            return
        if answer.delivered & ~joiner.delivered & ~self.world.liars.messages:
            self.world.find(LOST, f"the state for {joiner.life} has what the group does not deliver")
        self.asking.remove(joiner)
        self._begin_at(joiner, state, dict(answer.offsets), answer.delivered)
        self.world.seen["began with a state"] += 1

    def going_on_from(self) -> Iterator[GoingOn]:
        """Yield where each application reads on, or will once its state has come."""
        for one in self.running:
            if one.is_alive:
                yield GoingOn(one.receiver.state, self.world.offsets_behind(one))
        for joiner in self.asking:
            if joiner.is_alive and (answer := self.answers.get(joiner.life)):
                yield GoingOn(CausalState.from_bytes(answer.state), answer.offsets)

    def read(self) -> None:
        """Let one of them read on, or deliver to it."""
        running = [each for each in self.running if each.is_alive]
        if not running:
            return
        one = self.random.choice(running)
        if one.ready:
            self._give(one, self.random.randint(1, 8))
        elif self.random.random() < 0.5:
            self.world.read_some(one, one.process.life.address[0])
        else:
            self.world.read_data(one, self.random.randint(1, 3))
            self.world.liars.look(one)

    def _give(self, one: Application, count: int) -> None:
        hub = one.process.receiver
        assert hub is not None
        for _ in range(min(count, len(one.ready))):
            record = one.ready[0]
            fate = self.world.rules.fate_of_record(hub, record)
            if fate is DeliveryStatus.NOT_YET:
                return
            one.ready.popleft()
            if fate is DeliveryStatus.NEVER:
                self.world.seen["passed over by an application"] += 1
            elif isinstance(record, Cast) or record.kind == MESSAGE:
                one.delivered |= self.world.judge(one.process.life, one.delivered, record)
            elif record.kind == VIEW and self._differ(
                one.process.in_view.get(record.view, one.delivered), one.delivered
            ):
                self.world.find(
                    VIEW_VIOLATION, f"before view {record.view}, {one.process.life}'s application was given another set"
                )

    def _differ(self, one: int, other: int) -> bool:
        return bool((one ^ other) & ~self.world.liars.messages)

    def finish(self, process: Process) -> None:
        """Read and deliver all records. A joiner gets its state."""
        for one in self.running:
            if one.process is process:
                self.world.read_all(one, process.life.address[0])
                self._give(one, len(one.ready))
        self.ask()
        self.answer()

    def check(self, alive: list[Process]) -> None:
        """Check that each live application got its hub's deliveries."""
        for one in self.running:
            if one.process in alive and self._differ(one.delivered, one.process.delivered):
                self.world.find(
                    LOST, f"{one.process.life}'s application was given less, or more, than its hub delivers"
                )
        if any(each in alive for each in self.asking) and any(one.process in alive for one in self.running):
            self.world.find(LOST, "a joiner gets no state")
