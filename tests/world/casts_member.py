"""A process with one member that sends in all orders, as it ships (`connectors.client`), but for its threads.

A turn lets one of its loops go on: the tailer of DATA, the readers of casts, the hub, the heartbeats, the calls of its
application, the beginning of the next incarnation; or it lets the application take its next deliveries. Not as it
ships: a state goes from application to application without letters, and no position is saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from connectors.client.deliveries.cut import Cut, packed, unpacked
from connectors.client.deliveries.merged_deliveries import MergedDeliveries, MergedSource
from connectors.client.incarnation.forwarder import Forwarder
from connectors.client.incarnation.incarnations import Incarnations
from connectors.client.incarnation.sender import Sender
from connectors.client.memory.outbox import Outbox
from connectors.client.tail.merged_log import Begin, MergedLog
from connectors.client.tail.sharing import share
from connectors.client.values.delivery import Delivery
from connectors.client.values.sending_limits import SendingLimits
from connectors.kafka.log.data_log import Start
from ordering.base.errors import AbcastError, Blocked, BrokerUnreachable, Excluded, ForwardTableFull, UsageError
from ordering.base.names import Address
from ordering.base.reader import Reader as EpochReader
from ordering.base.records import MESSAGE, VIEW
from ordering.casts.casts import TOTAL, Cast, Depends, OrderedRecord
from ordering.casts.causal import CausalReceiver
from ordering.casts.clocks import Clock
from ordering.casts.delivery_status import DeliveryStatus
from ordering.membership.membership import MemberIncarnation
from ordering.participant.events import ViewChange
from ordering.participant.participant_table import ParticipantPhase
from tests.world.casts_judge import Seen
from tests.world.casts_kafka import MemberConnection
from tests.world.kafka import WorldKafka
from tests.world.threads import Calls, Hub, Tailer

if TYPE_CHECKING:
    from tests.world.casts_actions import CastActions

GROUP = "g"
LIMITS = SendingLimits(resend_after_s=1.0)


class Member:
    """A member in a process of its own. `kill` it."""

    def __init__(self, world: CastActions, kafka: WorldKafka, address: str, outbox: Outbox | None) -> None:
        """Start it, and ask to join. Raises what a start raises."""
        self.world, self.address, self.kafka = world, address, kafka
        self.name = f"{address}#{world.starts}"
        self.connection = MemberConnection.of(kafka, self.name)
        self.calls, self.outbox = Calls(address), outbox
        self.rejoins: list[Forwarder] = []
        incarnations = Incarnations(Address.parse(address), LIMITS, outbox, casts=True)
        self.sender = Sender(self.connection, GROUP, incarnations, self.calls)
        self.sender._rejoin.start = self.rejoins.append  # type: ignore[method-assign,assignment]
        self.application: Application | None = None
        self.state: bytes | None = None
        """A state on its way here, and `had`: what its application was given."""
        self.had = 0
        self.wants_state = False
        self.hub_seen = Seen("")
        self._watched: object = None
        self.is_alive, self.is_paused, self.is_liar = True, False, False
        try:
            self.sender.start().join()
        except BaseException:
            self.kill()
            raise

    @property
    def forwarder(self) -> Forwarder:
        """The newest incarnation's forwarder."""
        assert self.sender.forwarder is not None
        return self.sender.forwarder

    @property
    def life(self) -> MemberIncarnation:
        """The newest incarnation."""
        return self.forwarder.participant.member

    @property
    def joined(self) -> ViewChange | None:
        """The first view of the newest incarnation, while it is in the group."""
        now = self.forwarder.participant
        return now.joined_at if now.phase is ParticipantPhase.MEMBER else None

    @property
    def hub(self) -> Hub:
        """The hub of the process."""
        hub = self.forwarder.hub
        assert isinstance(hub, Hub)
        return hub

    @property
    def logs(self) -> Iterator[MergedLog]:
        """The logs that are read here."""
        if self.hub.log is not None:
            yield self.hub.log
        if self.application is not None and self.application.log is not None:
            yield self.application.log

    @property
    def unwritten(self) -> set[int]:
        """The numbers of the casts that it has not seen written."""
        caster = self.forwarder._send_queue.caster
        kept = [*caster._table, *caster._waiting, *caster._inherited] if caster is not None else []
        return {int(each.payload) for each in kept}

    # --- turns ---

    def tail(self) -> None:
        """Read DATA for all in the process."""
        tailer = self.hub._tailer
        assert isinstance(tailer, Tailer)
        tailer.turn()

    def read(self) -> None:
        """Read casts for the hub."""
        if self.hub.log is not None:
            self.hub.log._cast_reader.turn()  # type: ignore[attr-defined]

    def deliver(self) -> None:
        """Let the hub deliver. The judge watches it from the first view on."""
        hub = self.hub
        if self._watched is not hub.log and hub.log is not None:
            self._watched = hub.log
            self.hub_seen = self._new_seen("hub", is_lax=self.world.is_lax)
            with suppress(AbcastError):
                hub.add(_Watch(self))
        hub.turn()

    def beat(self) -> None:
        """Send a heartbeat."""
        with share(self.connection) as shared:
            beats: Any = shared.heartbeats(GROUP, self.forwarder.address.site)
            beats.turn()

    def lie(self, lies: Sequence[int]) -> None:
        """Let it count so many casts too many. It believes what it should say itself: nobody goes by its deliveries."""
        self.is_liar = True
        self.connection.lies.extend(lies)
        for log in self.logs:
            _believe(log.merger.causal, self.life, self.connection.truth)
        for seen in (self.hub_seen, *([self.application.seen] if self.application is not None else [])):
            seen.is_out = True

    def call(self) -> None:
        """Make the application's next call. An answer to a flush waits for the casts before it."""
        forwarder, waiting = self.forwarder, self.calls.waiting
        if not waiting:
            return
        flush = getattr(waiting[0], "args", ())
        caster = forwarder._send_queue.caster
        if flush and caster is not None and not forwarder._may_answer(caster, *flush):
            return
        waiting.pop(0)()

    def rejoin(self) -> None:
        """Begin the next incarnation, and a new application. Others may lack its earlier messages."""
        if not self.rejoins or self.kafka.topics.away:  # it would retry, and nobody else acts until then
            return
        old = self.rejoins[0]
        if old.participant.phase is ParticipantPhase.EXCLUDED and old.has_pending and self.world.dice.random() < 0.8:
            return
        self.rejoins.pop()
        self.leave_application()
        self.world.is_put_out(self, self.unwritten)
        begun = self.sender._rejoin._begin_anew(old)
        if begun is not None:
            begun.join()

    def take(self) -> None:
        """Let the application take what there is for it."""
        self.world.look(self.hub_seen)
        if self.application is not None:
            self.world.look(self.application.seen)
            self.application.take()
            return
        self.forwarder.check()  # as the calls that wait until it is in the group
        if self.joined is not None:
            self._begin_application(self.joined)

    def read_for_application(self) -> None:
        """Read casts for the application."""
        if self.application is not None and self.application.log is not None:
            self.application.log._cast_reader.turn()  # type: ignore[attr-defined]

    # --- the application ---

    def _begin_application(self, joined: ViewChange) -> None:
        if self.wants_state and self.state is None:
            return
        seen, cut = self._new_seen("application", is_lax=self.world.is_lax), None
        if self.state is not None:
            cut, _ = unpacked(self.state)
            status = self.hub.delivery_status_of_state(cut.state.causal, 0.0)
            if status is DeliveryStatus.NOT_YET:
                return
            self.state, had = None, self.had
            if status is DeliveryStatus.NEVER:
                self.world.seen["a state is void"] += 1
                return
            if joined.seqno:  # else its hub began amid the view
                self.world.check_state(self, had)
            self.world.judge.go_on(seen, had)
            self.world.seen["began with a state"] += 1
        first, life = joined.seqno, self.life if joined.seqno else None
        if not first and cut is None:  # an earlier process was in the view: nothing says what that was given
            first, seen.given, seen.is_lax = self.hub.receiver.seqno + 1, 0, True
        source = MergedSource(self.connection, GROUP, self.sender.address, self.hub, life, cut)
        if not source.may_open(0.0):
            source.close()
            return
        self.wants_state = False
        counted = cut.seqno if cut is not None else 0
        self.application = Application(self, source, first or counted + 1, seen, counted)

    def _new_seen(self, what: str, *, is_lax: bool) -> Seen:
        seen = Seen(f"the {what} of {self.name}", 0 if is_lax else None, life=self.life, is_lax=is_lax)
        self.world.judge.readers.append(seen)
        return seen

    def leave_application(self) -> None:
        """End the application."""
        if self.application is not None:
            self.application.close()
            self.application = None
        self.state, self.wants_state = None, False

    def cut(self) -> bytes | None:
        """Return the application's state, if it may supply one now."""
        if self.application is None or self.application.seen.given is None:
            return None
        cut: Cut | None = self.application.run.cut()
        return packed(cut._replace(cluster_id=self.connection.cluster_id()), b"") if cut is not None else None

    def send_in(self, order: str) -> None:
        """Send a message, if the application may."""
        is_in = self.joined is not None or self.forwarder.participant.is_silent
        if self.application is None or self.application.seen.given is None or not is_in:
            return
        world, seen = self.world, self.application.seen
        payload = world.judge.sends(seen, self.address, order, self)
        if self.is_liar:
            world.judge.may_lack(int(payload))
        try:
            if order == TOTAL:
                self.forwarder.broadcast((payload,), (), 0.0)
            else:
                self.forwarder.cast(order, payload, (), 0.0)
            world.seen[order] += 1
        except AbcastError as error:
            world.judge.is_taken_back(seen, payload)
            if not isinstance(error, Blocked | ForwardTableFull | Excluded | UsageError | BrokerUnreachable):
                raise

    def going_on_from(self) -> Iterator[tuple[Member, Begin]]:
        """Yield the places from which its readers go on, or will."""
        for log in self.logs:
            yield self, log.behind
        begun = self.application
        if begun is not None and begun.log is not None:
            return
        if begin := self.hub.begins.get(self.life):
            yield self, begin
        cut = begun.source._cut if begun is not None else unpacked(self.state)[0] if self.state is not None else None
        if cut is not None:
            offsets = cut.offsets if cut.cluster_id == self.connection.cluster_id() else {}
            ends = {place: len(log) for place, log in self.kafka.topics.partitions.items()}
            yield self, Begin(Start(0, EpochReader()), cut.state, ends | dict(offsets))

    @property
    def progress(self) -> object:
        """The part of its state that changes while the process does something."""
        given = self.application.seen.given if self.application is not None else None
        read = [sorted(log._casts.next.items()) for log in self.logs]
        return self.hub_seen.given, given, self.life, self.hub.log and self.hub.log.merger.causal.view, read

    @property
    def is_settled(self) -> bool:
        """Whether nothing waits here."""
        forwarder = self.forwarder
        caster = forwarder._send_queue.caster
        return (
            self.joined is not None
            and self.application is not None
            and not forwarder.has_pending
            and caster is not None
            and caster.is_settled
            and not caster.pending
            and caster.is_caught_up
            and not any(log.ready or log.merger.causal.waiting for log in self.logs)
        )

    def kill(self) -> None:
        """Kill the process. Its records on their way may arrive later."""
        self.is_alive = False
        if self.outbox is not None:
            self.outbox.close()
        if self.world.dice.random() < 0.5:
            self.connection.abandon()


def _believe(receiver: CausalReceiver, own: MemberIncarnation, truth: Mapping[tuple[str, str], Depends]) -> None:
    read = receiver._clock_of

    def true_clock_of(record: OrderedRecord) -> Clock:
        known = truth.get((str(own.incarnation), str(record.local_seqno))) if record.member == own else None
        return read(record if known is None else record._replace(depends=known))

    receiver._clock_of = true_clock_of  # type: ignore[method-assign]


class Application:
    """A run of deliveries in all orders, with events."""

    def __init__(self, member: Member, source: MergedSource, first: int, seen: Seen, counted: int) -> None:
        self.member, self.source, self.seen = member, source, seen
        self.run = MergedDeliveries(source, first, None, is_shared=True, events=True, counted=counted)
        self._memory = share(member.connection)
        self._places = self.run._places(_Memory(self._memory))  # type: ignore[arg-type]

    @property
    def seen_seqno(self) -> int:
        """The last seqno that the application has passed."""
        return self.run._next_seqno - 1

    @property
    def log(self) -> MergedLog | None:
        """The log, once it is open."""
        return self.run._log

    def take(self) -> None:
        """Take the next deliveries."""
        world = self.member.world
        for seqno, next_offset, what in next(self._places):
            if isinstance(what, Delivery) and (seqno > self.run._counted or what.order != TOTAL):
                world.judge.gives(self.seen, _as_record(what))
            elif isinstance(what, ViewChange) and seqno > self.run._counted:
                world.judge.gives(self.seen, _as_view(what))
            if what is not None:
                self.run._bookmark.hand_out(seqno, next_offset)
                self.run.take()

    def close(self) -> None:
        """Disconnect."""
        self._places.close()  # type: ignore[attr-defined]
        self.source.close()
        self._memory.release()


class _Memory:
    """The part of a member's memory that a run of deliveries needs."""

    def __init__(self, shared: Any) -> None:
        self.shared = shared


class _Watch:
    """The judge's view of a hub, as one of the incarnations that it calls."""

    def __init__(self, member: Member) -> None:
        self._of, self.member = member, MemberIncarnation("judge", 1)

    def heard(self, read: Sequence[Cast], delivered: Sequence[Cast | OrderedRecord]) -> None:
        """Judge what the hub has delivered, from the incarnation's first view on."""
        world, of = self._of.world, self._of
        for record in delivered:
            if not of.hub_seen.first and (of.hub.receiver.is_new or not _begins(record, of.life)):
                continue
            world.judge.gives(of.hub_seen, record)

    def failed(self, error: Exception) -> None:
        """Leave the error to the member."""


def _begins(record: Cast | OrderedRecord, life: MemberIncarnation) -> bool:
    if isinstance(record, Cast) or record.kind != VIEW:
        return False
    return life in OrderedRecord.of_view(record.seqno, record.view, record.record.value, None).members  # type: ignore[attr-defined]


def _as_view(what: ViewChange) -> OrderedRecord:
    return OrderedRecord(what.seqno, VIEW, view=what.view_id, members=what.incarnations)


def _as_record(what: Delivery) -> Cast | OrderedRecord:
    if what.order == TOTAL:
        return OrderedRecord(what.seqno, MESSAGE, what.sender, what.incarnation, what.local_seqno, record=_Value(what))
    return Cast(what.sender, what.incarnation, what.local_seqno, what.payload, what.order, what.view_id)


class _Value:
    def __init__(self, what: Delivery) -> None:
        self.value = what.payload
