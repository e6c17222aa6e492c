"""A group that casts and broadcasts in all orders at once, at two sites: one seed, one history.

Receivers and senders are the real core (`ordering.casts.merging`, `ordering.casts.causal`, `ordering.casts.outgoing`).
The rest is a model: partitions (`tests.simulator.orders_logs`) in which one sender's casts keep their order, but for
gaps and repeats of a failed request; relays (`connectors.relay.casts`), each at its own pace, that are killed, that
begin again by the mark of the last copy, that run twice at once, and that are cut off for long; a sequencer and its
flushes, which never fail here (`tests.simulator.membership` has those); members that die, leave, start again and join
late. In a quarter of the histories, a member lies (`tests.simulator.orders_liars`).

The judge knows nothing of clocks. It writes down, for each message, all that happened before it was sent: what its
sender had sent or delivered, and what had happened before that; and compares that with what others had delivered.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ordering.base.records import FLUSH_OK, MESSAGE, START_FLUSH, STOP_FLUSH, VIEW
from ordering.casts.casts import CAUSAL, FIFO, TOTAL, Cast, CastVerdict, OrderedRecord, Settled
from ordering.casts.causal import CausalReceiver, CausalState
from ordering.casts.delivery_status import DeliveryStatus, fate_of_record, fate_of_state
from ordering.casts.merging import MergedState, Merger
from ordering.casts.outgoing import Broadcast, Outgoing
from ordering.casts.stalls import Stall
from ordering.casts.unwritten_casts import Course, InheritedCast, course_of
from ordering.checker.anomalies import CAUSAL_VIOLATION, DUPLICATE, FIFO_VIOLATION, LOST, VIEW_VIOLATION
from ordering.membership.membership import MemberIncarnation
from tests.simulator.mutation import NONE, Mutation
from tests.simulator.orders_applications import Application, Applications
from tests.simulator.orders_liars import Liars, proves
from tests.simulator.orders_logs import MISHAPS_EVERY, POWERS, CastLog, CastLogs, GoingOn, Lacks, lacks
from tests.simulator.orders_starts import Starts

ACTIONS = 400
MAX_MEMBERS = 8
SITES = ("n", "s")
ROUNDS_TO_HEAL = 100
MAX_RECORDS = 1 << 20
"""More than any log has."""


@dataclass(frozen=True)
class Rules:
    """The actors' parts and their own rules: a mutation breaks one."""

    receiver: type[CausalReceiver] = CausalReceiver
    outgoing: type[Outgoing] = Outgoing
    supply_in_midst: bool = False
    """A state is supplied while something is delivered that its application was not given yet."""
    read_full_again: bool = True
    """Records that found it FULL are read again when there is room."""
    course_of: Callable[[InheritedCast, MemberIncarnation, CausalReceiver, Mapping[MemberIncarnation, int]], Course] = (
        course_of
    )
    begin_by_mark: bool = True
    """A relay goes on behind the record that its last copy was made from, not behind so many as there are copies."""
    proves: Callable[[Stall, bool, bool], bool] = proves
    """Whether a stall proves a wrong clock. It is of the reader's site, or not; the site's logs were read, or not."""
    fate_of_record: Callable[[CausalReceiver, Cast | OrderedRecord], DeliveryStatus] = fate_of_record
    fate_of_state: Callable[[CausalReceiver, CausalState], DeliveryStatus] = fate_of_state
    lacks: Lacks = lacks
    """Whether retention must leave a cast for a reader."""


@dataclass
class Process:
    """An incarnation of a member."""

    life: MemberIncarnation
    home: CastLog
    merger: Merger | None = None
    outgoing: Outgoing | None = None
    offsets: dict[int, int] = field(default_factory=dict)
    progress: int = 0
    full_at: dict[int, int] = field(default_factory=dict)
    places: dict[tuple[MemberIncarnation, int, int], int] = field(default_factory=dict)
    """The place of each cast that it has read (partition and first offset), to read again from."""
    data_offset: int = 0
    unwritten: list[Cast] = field(default_factory=list)
    unacknowledged: list[Cast] = field(default_factory=list)
    forwards: list[Broadcast] = field(default_factory=list)
    ordered: int = 0
    delivered: int = 0
    """Its deliveries and its state's, as a set of bits: bit n is message n of the judge."""
    happened: int = 0
    """Messages before its next one."""
    happened_to_casts: int = 0
    """Messages before its next fifo one: its own casts, and the messages before those."""
    in_view: dict[int, int] = field(default_factory=dict)
    """Its deliveries at the time of each view."""
    is_alive: bool = True
    is_liar: bool = False
    """Whether its messages may count casts that do not exist."""
    is_leaving: bool = False
    is_suspected: bool = False

    @property
    def receiver(self) -> CausalReceiver | None:
        """Return its deliveries in its views."""
        return self.merger.causal if self.merger is not None else None

    @property
    def stays(self) -> bool:
        """Whether it goes on into the next view."""
        return self.is_alive and not self.is_leaving and not self.is_suspected


class Orders:
    """A seed's history. `run` it; it returns the violations as (anomaly, sentence)."""

    may_lie = True
    """Whether a member may lie."""

    def __init__(self, seed: int, mutation: Mutation = NONE) -> None:
        self.random = random.Random(seed)
        self.rules = mutation.rules or Rules()
        self.max_held = self.random.choice((3, 8, 1_000))
        self.sites = SITES[: self.random.randint(1, 2)]
        self.cast_logs = CastLogs(seed, [*filter(mutation.has, POWERS)], self.sites, self.random)
        self.partitions = self.cast_logs.partitions
        self.data: list[OrderedRecord] = []
        self.lives = 0
        self.processes: list[Process] = []
        self.members: list[Process] = []
        """Members of the newest view that was decided."""
        self.views = 0
        self.joining: list[Process] = []
        self.flush = 0
        self.answered: set[MemberIncarnation] = set()
        self.past: list[int] = []
        """Messages before each message."""
        self.orders: list[str] = []
        self.senders: list[MemberIncarnation] = []
        self.settled: dict[int, tuple[Settled, ...]] = {}
        self.problems: list[tuple[str, str]] = []
        self.applications = Applications(self)
        self.starts = Starts(self)
        self.liars = Liars(self, seed if self.may_lie else 0)
        self.is_healing = False
        self.seen: Counter[str] = Counter()
        """Counts of events, so that a test can say that they occurred."""
        for _ in range(self.random.randint(2, 4)):
            self._join()
        self._decide_view()
        for process in self.members:
            self._take_state(process, CausalState())
            self.applications.begin(process)
        self.liars.begin()

    def run(self) -> list[tuple[str, str]]:
        weights = {
            "send": 30, "read": 60, "read_data": 30, "write": 25, "relay": 20, "sequence": 25, "acknowledge": 10,
            "join": 3, "die": 2, "leave": 1, "suspect": 1, "flush": 2, "transfer": 4, "coordinate": 10, "again": 5,
            "repeat": 2, "ask": 5, "answer": 3, "application": 60, "kill_relay": 3, "run_relay_twice": 1, "cut": 1,
        }  # fmt: skip
        for number, name in enumerate(self.random.choices(list(weights), list(weights.values()), k=ACTIONS)):
            getattr(self, f"_do_{name}")()
            if self.cast_logs.kafka.powers and number % MISHAPS_EVERY == 0:
                self._befall()
            if self.problems:
                return self.problems
        self.liars.lies_left = 0
        self._heal()
        if self.liars.kill():
            self._heal()
        self._check()
        return self.problems

    # Members.

    def _one(self) -> Process | None:
        ready = [process for process in self.processes if process.is_alive and process.receiver is not None]
        return self.random.choice(ready) if ready else None

    def _join(self) -> None:
        self.lives += 1
        alive = {process.life.address for process in self.processes if process.is_alive}
        addresses = [f"{site}/{name}" for site in self.sites for name in "abcdefgh"]
        dead = [each.life.address for each in self.members if each.life.address not in alive]
        again = bool(dead) and self.random.random() < 0.5
        address = self.random.choice(dead if again else [address for address in addresses if address not in alive])
        self.seen["started again"] += again
        homes = [log for log in self.partitions if log.site == address[0] and log.origin is None]
        process = Process(MemberIncarnation(address, self.lives), homes[sum(address.encode()) % len(homes)])
        self.processes.append(process)
        self.joining.append(process)
        self.starts.begins(process)

    def _take_state(self, process: Process, state: CausalState) -> None:
        process.merger = self.merger_at(CausalState.from_bytes(state.to_bytes()))
        process.outgoing = self.rules.outgoing(process.life, process.merger.causal)
        process.data_offset = state.seqno

    def merger_at(self, state: CausalState) -> Merger:
        """The merging of a reader that begins there."""
        merger = Merger(MergedState(flush=True))
        merger.causal = self.rules.receiver(state, self.max_held, max_waiting=5)
        return merger

    def _do_transfer(self) -> None:
        """A late joiner takes the state of a member that has delivered its view, or a later one."""
        waiting = [each for each in self.members if each.is_alive and each.receiver is None]
        if not waiting:
            return
        joiner = self.random.choice(waiting)
        if self.random.random() < 0.5 and self._begin_with_the_view(joiner):
            if joiner.receiver is not None:
                self.applications.begin(joiner, may_ask=True)
            return
        has = [
            each
            for each in self.members
            if each.receiver is not None and joiner.life in each.receiver.members and not each.is_liar
        ]
        if not has:
            return
        donor = self.random.choice(has)
        assert donor.receiver is not None
        self._take_state(joiner, donor.receiver.state)
        self._go_on_from(joiner, donor.delivered)
        if donor.home.site == joiner.home.site and self.random.random() < 0.7:
            joiner.offsets = self.offsets_behind(donor)
            self.seen["joined from offsets"] += 1
        self.applications.begin(joiner)
        self.seen["joined late"] += 1

    def offsets_behind(self, reading: Process | Application) -> dict[int, int]:
        """Return the offsets at which a process reads on that takes its state."""
        assert reading.receiver is not None
        offsets = dict(reading.offsets)
        for where, offset in reading.full_at.items():
            offsets[where] = min(offsets[where], offset)
        for cast in reading.receiver.held:
            where, offset = divmod(reading.places[key_of(cast)], 1 << 32)
            offsets[where] = min(offsets[where], offset)
        return offsets

    def _go_on_from(self, joiner: Process, delivered: int) -> None:
        assert joiner.outgoing is not None
        assert joiner.receiver is not None
        joiner.delivered = joiner.happened = delivered
        for bit in bits(delivered):
            joiner.happened |= self.past[bit]
        if joiner.outgoing.is_quiet:  # refused, if it has joined within the flush
            joiner.outgoing.flush_ok(joiner.receiver.cut.flush)
            self._release(joiner)

    def _begin_with_the_view(self, joiner: Process) -> bool:
        """A newcomer takes no state: it reads DATA from a START_FLUSH on, and begins with its first view."""
        at = next(at for at, record in enumerate(self.data) if record.kind == VIEW and joiner.life in record.members)
        view = self.data[at].view
        honest_first = sorted(self.processes, key=lambda each: each.is_liar)
        before = next((each.in_view[view] for each in honest_first if view in each.in_view), None)
        if before is None:
            before = self.liars.before_view(self.data[at], at)
        kinds = [record.kind for record in self.data[:at]]
        starts = [
            number for number, kind in enumerate(kinds) if kind == START_FLUSH and STOP_FLUSH not in kinds[number:]
        ]
        if before is None or not starts:
            return False
        known = [record for record in self.data[: starts[0]] if record.kind == VIEW][-1]
        calm = max(number for number, kind in enumerate(kinds[: starts[0]]) if kind in (VIEW, STOP_FLUSH)) + 1
        start = self.random.choice((self.random.randint(calm, starts[0]), starts[0]))
        lives = known.members
        state = CausalState(known.view, lives, (0,) * len(lives), start, (0,) * len(lives), is_new=True)
        newcomer = CausalReceiver(state, max_waiting=len(self.data))
        for record in self.data[start : at + 1]:
            newcomer.step(record)
        if newcomer.seqno < at + 1:
            self.find(LOST, f"the newcomer {joiner.life} waits for what it can't have")
            return True
        self._take_state(joiner, newcomer.state)
        joiner.in_view[view] = before
        self._go_on_from(joiner, before)
        self.seen["began with a view"] += 1
        return True

    def _do_join(self) -> None:
        if sum(process.is_alive for process in self.processes) < MAX_MEMBERS:
            self._join()

    def _do_die(self) -> None:
        """Kill it: unwritten casts are gone. Records for the sequencer may arrive until the view."""
        if (process := self._one_to_spare()) is not None:
            self.end(process)

    def begin_again(self, process: Process) -> None:
        """Let the process end, and another life join."""
        self.end(process)
        self._join()

    def end(self, process: Process) -> None:
        """Kill it."""
        process.is_alive = False
        self.seen["died with casts unwritten" if process.unwritten else "died"] += 1
        self.seen["died in a flush"] += self.flush > 0
        self.starts.ends(process)
        process.unwritten.clear()

    def die_serving(self, supplier: Process, joiner: Process) -> None:
        """Kill it when it has supplied a state, and with it another one, whose casts the state counts.

        The survivors are quick with DATA and slow with casts: the flush begins before they have these.
        """
        others = [each for each in self.members if each.stays and each not in (supplier, joiner) and not each.is_liar]
        known = supplier.receiver, joiner.receiver
        if not supplier.stays or len(others) < 2 or known[0] is None or known[1] is None:
            return
        ahead = dict(zip(known[0].members, known[0].vector, strict=True))
        behind = dict(zip(known[1].members, known[1].vector, strict=True))
        self.end(supplier)
        self.end(max(others, key=lambda each: ahead.get(each.life, 0) - behind.get(each.life, 0)))
        self.seen["died serving"] += 1
        self._do_flush()
        for process in self.members:
            if process.is_alive and process.receiver is not None:
                self.read_data(process, len(self.data))

    def _do_leave(self) -> None:
        if (process := self._one_to_spare()) is not None:
            process.is_leaving = True
            self.seen["left with casts in flight"] += bool(process.unwritten or process.unacknowledged)

    def _do_suspect(self) -> None:
        """A member that lives is put out of the view."""
        if (process := self._one_to_spare()) is not None:
            process.is_suspected = True

    def _one_to_spare(self) -> Process | None:
        ready = [each for each in self.members if each.stays and each.receiver is not None and not each.is_liar]
        return self.random.choice(ready) if len(ready) > 2 or (len(ready) > 1 and len(self.data) > 30) else None

    # Sending.

    def _do_send(self) -> None:
        process = self._one()
        if process is None or process.outgoing is None or process.receiver is None:
            return
        if process.receiver.index_of(process.life) is None:
            return
        for _ in range(self.random.choice((1, 1, 1, 2, 5))):
            process.outgoing.send(self.random.choice((FIFO, CAUSAL, CAUSAL, TOTAL)), b"")
        self._release(process)

    def _release(self, process: Process) -> None:
        assert process.outgoing is not None
        self.starts.take_up(process)
        for message in process.outgoing.release():
            if isinstance(message, Broadcast):
                if message.kind == MESSAGE:
                    message = message._replace(payload=self._note(process, TOTAL))
                process.forwards.append(self.liars.sent(process, message) if process.is_liar else message)
            else:
                cast = message._replace(payload=self._note(process, message.order, message.payload))
                self.starts.leaves(process, cast)
                process.unwritten.append(cast)

    def _note(self, process: Process, order: str, again: bytes = b"") -> bytes:
        """Write down what happened before a message that leaves now; its number is its payload.

        `again`: the number of one that an earlier life has left.
        """
        past = process.happened_to_casts if order == FIFO else process.happened
        number = int(again) if again else len(self.past)
        if again:
            self.past[number], self.senders[number] = past, process.life
        else:
            self.past.append(past)
            self.orders.append(order)
            self.senders.append(process.life)
        process.happened |= past | 1 << number
        if order != TOTAL:
            process.happened_to_casts |= past | 1 << number
        self.seen[order] += 1
        return b"%d" % number

    def _do_write(self) -> None:
        """A request: some of the next casts. It may lose one in the middle; then they are all written again later."""
        process = self._one()
        if process is None or not process.unwritten or process.home.log.is_away:
            return
        count = self.random.randint(1, len(process.unwritten))
        request = process.unwritten[:count]
        lost = self.random.random() < 0.1
        if lost and count > 1:
            process.home.write(request[self.random.randint(1, count - 1) :])
            self.seen["gap"] += 1
            return
        process.home.write(request)
        if self.random.random() < 0.1:  # the answer is lost
            self.seen["written again"] += 1
            return
        del process.unwritten[:count]
        process.unacknowledged += request

    def _do_acknowledge(self) -> None:
        process = self._one()
        if process is not None and process.unacknowledged and process.outgoing is not None:
            process.outgoing.in_views.acknowledge(process.unacknowledged[-1].local_seqno)
            process.unacknowledged.clear()
            self._release(process)

    def _do_repeat(self) -> None:
        """A request that was long on its way comes after all, perhaps behind the death of its sender."""
        logs = [log for log in self.partitions if log.origin is None and log.log.records and not log.log.is_away]
        if logs:
            log = self.random.choice(logs)
            at = self.random.randrange(len(log.log.records))
            casts = [record.cast for record in log.log.records[at : at + 3] if record]
            log.write([cast for cast in casts if cast.sender == casts[0].sender])

    def _do_relay(self) -> None:
        if (log := self._one_copy()) is not None and not log.is_cut:
            self._carry(log, self.random.randint(1, 10))

    def _one_copy(self) -> CastLog | None:
        return self.random.choice(self.cast_logs.copies) if self.cast_logs.copies else None

    def _do_kill_relay(self) -> None:
        if (log := self._one_copy()) is not None and log.relays:
            log.relays.pop(self.random.randrange(len(log.relays)))
            self.seen["relay killed"] += 1

    def _do_run_relay_twice(self) -> None:
        if (log := self._one_copy()) is not None and len(log.relays) < 3:
            self.cast_logs.start_relay(log, self._beginning(log))
            self.seen["relay ran twice"] += len(log.relays) > 1

    def _do_cut(self) -> None:
        """The link is cut, or heals."""
        if (log := self._one_copy()) is not None:
            log.is_cut = not log.is_cut
            self.seen["cut"] += log.is_cut

    def _beginning(self, copy: CastLog) -> int:
        return copy.after_mark() if self.rules.begin_by_mark else len(copy.log.records)

    def _carry(self, copy: CastLog, count: int) -> None:
        self.cast_logs.carry(copy, count, self._beginning(copy), self.seen)

    def _befall(self) -> None:
        """Let the Kafka use its powers, and retention run."""
        self.cast_logs.kafka.mishap(self.cast_logs.places, 0.5)
        self.seen["a partition is away"] += any(log.log.is_away for log in self.partitions)
        self._retire()

    def _retire(self) -> None:
        """Let retention run, unless a member waits for its state: retention is longer than a join takes."""
        if any(each.is_alive and each.receiver is None for each in self.members):
            return
        readers = [*self._going_on_from(), *self.applications.going_on_from()]
        self.seen["retention"] += self.cast_logs.retire(readers, self.rules.lacks)

    def _going_on_from(self) -> Iterator[GoingOn]:
        for process in self.processes:
            if process.receiver is not None and (process.is_alive or process in self.members):
                yield GoingOn(process.receiver.state, self.offsets_behind(process))

    # Reading.

    def _do_read(self) -> None:
        process = self._one()
        if process is not None:
            self.read_some(process, process.life.address[0])

    def read_some(self, process: Process | Application, site: str) -> None:
        """Read some records of one partition, or none."""
        where = self.random.randrange(len(self.partitions))
        if self.partitions[where].site == site:
            self._read(process, where, self.random.randint(1, 8))

    def _read(self, process: Process | Application, where: int, count: int) -> None:
        assert process.receiver is not None
        log = self.partitions[where].log
        if log.is_away:
            return
        start = process.offsets.get(where, log.beginning)
        if start < log.beginning:
            self.find(LOST, f"{process.receiver} reads on where retention has dropped something")
            return
        end = min(start + count, log.end)
        for offset, (cast, _) in log.read(start, count):
            process.places.setdefault(key_of(cast), (where << 32) + offset)
            verdict = self._step(process, cast)
            self.seen[verdict.value] += 1
            if verdict is CastVerdict.FULL:
                process.full_at.setdefault(where, offset)
        process.offsets[where] = end

    def _do_again(self) -> None:
        if (process := self._one()) is not None:
            self._read_again(process)
            self.liars.look(process)

    def _do_ask(self) -> None:
        self.applications.ask()

    def _do_answer(self) -> None:
        self.applications.answer()

    def _do_application(self) -> None:
        self.applications.read()

    def _read_again(self, process: Process | Application) -> bool:
        """Go back to where the hold-back queue was full, if that may help."""
        assert process.receiver is not None
        if not process.full_at or not self.rules.read_full_again:
            return False
        if not process.receiver.held.budget.is_left and process.receiver.progress == process.progress:
            return False
        process.progress = process.receiver.progress
        for where, offset in process.full_at.items():
            process.offsets[where] = min(process.offsets[where], offset)
        process.full_at.clear()
        process.receiver.held.refused.clear()
        return True

    def _do_read_data(self) -> None:
        if (process := self._one()) is not None:
            self.read_data(process, self.random.randint(1, 6))

    def read_data(self, process: Process | Application, count: int) -> None:
        """The next records of DATA."""
        for record in self.data[process.data_offset : process.data_offset + count]:
            if not process.is_alive:
                return
            verdict = self._step(process, record)
            if verdict is CastVerdict.FULL:
                self.seen["DATA is full"] += 1
                return
            self.seen["DATA waits"] += verdict is CastVerdict.HOLD
            process.data_offset += 1

    def read_all(self, process: Process | Application, site: str) -> None:
        """Read the logs to their ends."""
        for where, log in enumerate(self.partitions):
            if log.site == site:
                self._read(process, where, len(log.log.records))
        self.read_data(process, len(self.data))
        self._read_again(process)
        self.liars.look(process)

    def _step(self, process: Process | Application, record: Cast | OrderedRecord) -> CastVerdict:
        assert process.merger is not None
        step = process.merger.step(record)
        if isinstance(process, Application):
            process.ready.extend(step.deliveries)
            return step.verdict
        for delivery in step.deliveries:
            self._deliver(process, delivery)
        self.seen["dropped with a view"] += len(step.dropped)
        if step.deliveries and process.is_alive:
            self._release(process)
        return step.verdict

    def _deliver(self, process: Process, record: Cast | OrderedRecord) -> None:
        assert process.outgoing is not None
        process.outgoing.delivered(record)
        if isinstance(record, OrderedRecord) and record.kind != MESSAGE:
            self._event(process, record)
            return
        bit = self.judge(process.life, process.delivered, record)
        process.delivered |= bit
        process.happened |= bit | self.past[bit.bit_length() - 1]

    def judge(self, life: MemberIncarnation, delivered: int, record: Cast | OrderedRecord) -> int:
        """Return the bit of a message that is delivered behind those; note its violations."""
        number = int(record.payload if isinstance(record, Cast) else str(record.record))
        bit = 1 << number
        if self.liars.is_liar(life) or self.liars.is_liar(self.senders[number]):
            return bit  # behind a wrong clock, the liar's next clocks can't be read: its casts are dropped
        if delivered & bit & ~self.liars.doubtful:
            self.find(DUPLICATE, f"{life} delivers {self._name(number)} twice")
        if missing := self.past[number] & ~delivered & ~self.liars.messages:
            first = next(bits(missing))
            of_casts = TOTAL not in (self.orders[first], self.orders[number])
            one_sender = of_casts and self.senders[first] == self.senders[number]
            name = FIFO_VIOLATION if one_sender else CAUSAL_VIOLATION
            self.find(name, f"{life} delivers {self._name(number)} before {self._name(first)}")
        return bit

    def _event(self, process: Process, record: OrderedRecord) -> None:
        assert process.outgoing is not None
        assert process.receiver is not None
        if record.kind == START_FLUSH and process.receiver.index_of(process.life) is not None:
            process.outgoing.flush_ok(record.seqno)
        if record.kind == VIEW:
            settled = record.settled
            if not process.is_liar and settled != self.settled.setdefault(record.view, settled):
                self.find(VIEW_VIOLATION, f"{process.life} takes {settled} for settled with view {record.view}")
            if process.life in record.members:
                process.in_view[record.view] = process.delivered
            else:
                self.seen["put out of a view"] += process.is_suspected
                process.is_alive = False
                self.starts.ends(process)

    # The sequencer.

    def _decide(self, kind: str, record: OrderedRecord | None = None) -> None:
        self.data.append((record or OrderedRecord(0))._replace(seqno=len(self.data) + 1, kind=kind))

    def _do_sequence(self) -> None:
        """Sequence one broadcast of the members; a dead one's, too, as long as it is in the view."""
        waiting = [each for each in self.members if self._may_be_ordered(each)]
        if waiting:
            self._sequence(self.random.choice(waiting))

    def _may_be_ordered(self, process: Process) -> bool:
        return len(process.forwards) > process.ordered and process.life not in self.answered

    def _sequence(self, process: Process) -> None:
        message = process.forwards[process.ordered]
        process.ordered += 1
        if message.kind == FLUSH_OK:
            if message.payload != b"%d" % self.flush:
                return
            self.answered.add(process.life)
        self._decide(
            message.kind,
            OrderedRecord(0, "", *process.life, process.ordered, message.depends, record=message.payload.decode()),
        )

    def _do_flush(self) -> None:
        """A view is due, or somebody asks for a flush."""
        if not self.flush:
            self._decide(START_FLUSH)
            self.flush = len(self.data)

    def _do_coordinate(self) -> None:
        """Install a view once all who go on have answered."""
        changes = bool(self.joining) or not all(each.stays for each in self.members)
        if not self.flush:
            if changes:
                self._do_flush()
            return
        if not all(each.life in self.answered for each in self.members if each.is_alive and not each.is_suspected):
            return
        if changes:
            self._decide_view()
            if self.random.random() < 0.1:
                return  # another view may follow in this flush
        self._decide(STOP_FLUSH)
        self.flush = 0
        self.answered.clear()

    def _decide_view(self) -> None:
        self.members = [each for each in self.members if each.stays] + self.joining
        if self.flush:
            self.answered |= {each.life for each in self.joining}
        self.joining = []
        self.views += 1
        lives = tuple(each.life for each in self.members)
        self._decide(VIEW, OrderedRecord(0, view=self.views, members=lives, is_in_flush=self.flush > 0))

    # The end.

    def _heal(self) -> None:
        """Heal: no more failures, until nothing more happens."""
        before, self.is_healing = None, True
        self.cast_logs.kafka.heal()
        for _ in range(ROUNDS_TO_HEAL):
            for copy in self.cast_logs.copies:
                for _ in range(len(copy.relays) + 2):
                    self._carry(copy, MAX_RECORDS)
            for process in self.processes:
                if process.is_alive and process.receiver is not None and not self._finish(process):
                    return
            for process in self.members:
                while self._may_be_ordered(process):
                    self._sequence(process)
            self._do_transfer()
            self._do_coordinate()
            receivers = [each.receiver for each in self.processes if each.receiver is not None]
            given = [(one.receiver.progress, len(one.ready)) for one in self.applications.running]
            mine = (
                [(each.progress, each.held.budget.holding) for each in receivers],
                sum(len(each.unwritten) for each in self.members),
            )
            now = len(self.data), self.flush, len(self.past), mine, given
            is_full = any(each.full_at for each in self.members) or any(
                one.full_at for one in self.applications.running
            )
            is_awaited = self.liars.liar is not None and any(
                each.is_alive and each.receiver is None for each in self.members
            )
            if now == before and not is_full and not is_awaited:
                return
            before = now

    def _finish(self, process: Process) -> bool:
        """Write and read all that there is."""
        process.home.write(process.unwritten)
        process.unacknowledged += process.unwritten
        process.unwritten.clear()
        assert process.outgoing is not None
        if process.unacknowledged:
            process.outgoing.in_views.acknowledge(process.unacknowledged.pop().local_seqno)
            process.unacknowledged.clear()
        self._release(process)
        self.read_all(process, process.life.address[0])
        self.applications.finish(process)
        return not self.problems

    def _check(self) -> None:
        """Members that live deliver the same, and all that any of them sent. Who goes on has the same in each view."""
        alive = [process for process in self.members if process.is_alive]
        everything = 0
        for process in alive:
            everything |= process.delivered
        for number, sender in enumerate(self.senders):
            if any(process.life == sender for process in alive):
                everything |= 1 << number
        for process in alive:
            if process.receiver is None:
                self.find(LOST, f"{process.life} finds nobody with a state")
            elif missing := everything & ~process.delivered & ~self.liars.messages:
                self.find(LOST, f"{process.life} never delivers {self._name(next(bits(missing)))}")
            elif process.outgoing is not None and len(process.outgoing):
                self.find(LOST, f"{process.life} can't send {len(process.outgoing)} messages")
        self._check_states(alive)
        if not self.problems:
            self.applications.check(alive)

    def _check_states(self, alive: list[Process]) -> None:
        # A newcomer does not know the earlier settled casts; for each view, `_event` compares that.
        states = [replace(each.receiver.state, settled=()) for each in alive if each.receiver is not None]
        if not self.problems and any(state != states[0] for state in states):
            self.find(LOST, f"the states of those who live differ: {states}")
        known: dict[int, tuple[MemberIncarnation, int]] = {}
        for process in self.processes:  # a liar does not wait for what its own message counts
            for view, delivered in () if process.is_liar else process.in_view.items():
                life, first = known.setdefault(view, (process.life, delivered))
                if (first ^ delivered) & ~self.liars.messages:
                    self.find(VIEW_VIOLATION, f"before view {view}, {life} and {process.life} delivered other sets")

    def find(self, name: str, detail: str) -> None:
        """Something is broken."""
        self.problems.append((name, detail))

    def _name(self, number: int) -> str:
        return f"message {number} ({self.orders[number]}, of {self.senders[number]})"


def key_of(cast: Cast) -> tuple[MemberIncarnation, int, int]:
    """Return the key by which casts are the same."""
    return cast.member, cast.view, cast.local_seqno


def bits(number: int) -> Iterator[int]:
    """The places of the ones in a number, lowest first."""
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low
