"""Mutations of the casts: each breaks a rule on purpose, with its error and the anomaly that it must show."""

from __future__ import annotations

from dataclasses import replace

from ordering.casts.casts import CAUSAL, FIFO, Cast, CastVerdict, OrderedRecord, Settled
from ordering.casts.causal import CausalReceiver, CausalState
from ordering.casts.clocks import Clock
from ordering.casts.delivery_status import DeliveryStatus, fate_of_record, fate_of_state
from ordering.casts.held_casts import Need
from ordering.casts.outgoing import Outgoing
from ordering.casts.stalls import Stall
from ordering.casts.unwritten_casts import Course, InheritedCast
from ordering.checker.anomalies import CAUSAL_VIOLATION, DUPLICATE, FIFO_VIOLATION, LOST, VIEW_VIOLATION
from ordering.membership.membership import MemberIncarnation
from tests.simulator.mutation import Mutation
from tests.simulator.orders import Rules
from tests.simulator.orders_liars import proves
from tests.simulator.orders_logs import POWERS


class BlindToOthers(CausalReceiver):
    """Rule (1) without rule (2): it does not look at the entries of others."""

    def _missing(self, index: int, cast: Cast) -> Need | None:
        need = super()._missing(index, cast)
        return need if need is not None and need.entry < 0 else None


class BlindToOtherSites(CausalReceiver):
    """Ignores casts of another site than the sender's that the sender had delivered."""

    def _missing(self, index: int, cast: Cast) -> Need | None:
        need = super()._missing(index, cast)
        if need is None or need.entry < 0:
            return need
        return need if self.members[need.entry].address[0] == cast.sender[0] else None


class BlindToTotal(CausalReceiver):
    """Ignores `after`."""

    def _missing(self, index: int, cast: Cast) -> Need | None:
        return super()._missing(index, cast._replace(after=0))


class TotalAlone(CausalReceiver):
    """Delivers total messages without waiting for the casts that they depend on."""

    def _clock_of(self, record: OrderedRecord) -> Clock:
        return ()


class Forgetful(CausalReceiver):
    """Forgets to merge delivered casts into its own clock."""

    @property
    def vector(self) -> Clock:
        return (0,) * len(self.members)


class TakesOlder(CausalReceiver):
    """Without rule (5)."""

    def _take_cast(self, cast: Cast) -> CastVerdict:
        verdict = super()._take_cast(cast)
        if verdict is CastVerdict.DISCARD and cast not in self.held:
            self._deliveries.append(cast)
            return CastVerdict.ACCEPT
        return verdict


class TakesAhead(CausalReceiver):
    """Without rule (3): a fifo cast need not be its sender's next one."""

    def _take_cast(self, cast: Cast) -> CastVerdict:
        verdict = super()._take_cast(cast)
        if verdict is CastVerdict.HOLD and cast.order == FIFO and cast.view == self.view:
            self._deliveries.append(cast)
        return verdict


class DropsInsteadOfHolding(CausalReceiver):
    """Drops casts that can't be delivered at once."""

    def _take_cast(self, cast: Cast) -> CastVerdict:
        before = self.held.budget.max_held
        self.held.budget.max_held = 0
        verdict = super()._take_cast(cast)
        self.held.budget.max_held = before
        return CastVerdict.HOLD if verdict is CastVerdict.FULL else verdict


class NeverBlocks(CausalReceiver):
    """Delivers casts that are not agreed, in a flush."""

    def _missing(self, index: int, cast: Cast) -> Need | None:
        limit, self.cut.limit = self.cut.limit, None
        need = super()._missing(index, cast)
        self.cut.limit = limit
        return need


class OneLife(CausalReceiver):
    """Goes by addresses: a new incarnation continues the last one's entry."""

    def _install(self, record: OrderedRecord) -> tuple[Settled, ...]:
        before = {life.address: number for life, number in zip(self.members, self._vector, strict=True)}
        settled = super()._install(record)
        self._vector = [
            max(number, before.get(life.address, 0)) for life, number in zip(self.members, self._vector, strict=True)
        ]
        return settled


class TornState(CausalReceiver):
    """The state for a late joiner is no cut: one cast of the donor's own vector is missing in it, or one too many."""

    @property
    def state(self) -> CausalState:
        state = super().state
        return replace(state, vector=tuple(number + 1 for number in state.vector))


class Hasty(Outgoing):
    """A total message does not wait until its sender's casts are written."""

    def _may_go(self, order: str, kind: str) -> bool:
        return super()._may_go(CAUSAL if order != FIFO else FIFO, kind)


class CausalBeforeOwnTotal(Outgoing):
    """A causal cast does not wait until its sender has delivered its own broadcasts."""

    def _may_go(self, order: str, kind: str) -> bool:
        return super()._may_go(FIFO if order == CAUSAL else order, kind)


class TalksAfterFlushOk(Outgoing):
    """Sends on behind its FLUSH_OK."""

    def _may_go(self, order: str, kind: str) -> bool:
        self.is_quiet = False
        return super()._may_go(order, kind)


def lagging_hub(hub: CausalReceiver, record: Cast | OrderedRecord) -> DeliveryStatus:
    """Count casts that the hub skips with the view as delivered."""
    fate = fate_of_record(hub, record)
    return DeliveryStatus.DELIVERED if fate is DeliveryStatus.NEVER else fate


def state_of_the_dead(hub: CausalReceiver, state: CausalState) -> DeliveryStatus:
    """Take a state although the group goes on without some of its casts."""
    fate = fate_of_state(hub, state)
    return DeliveryStatus.DELIVERED if fate is DeliveryStatus.NEVER else fate


def state_at_once(hub: CausalReceiver, state: CausalState) -> DeliveryStatus:
    """Take a state before the joiner's hub has delivered the casts in it."""
    return DeliveryStatus.DELIVERED


def nothing_is_lacked(state: CausalState, cast: Cast) -> bool:
    """Retention goes by the readers' offsets, and drops casts that a joiner with another site's state has to read."""
    return False


def takes_all_for_lost(message: InheritedCast, own: MemberIncarnation, hub: object, settled: object) -> Course:
    """Send every inherited cast again, delivered or not."""
    return Course.ANEW


def takes_all_for_delivered(message: InheritedCast, own: MemberIncarnation, hub: object, settled: object) -> Course:
    """Take every inherited cast for delivered."""
    return Course.DELIVERED


def waits_for_ever(stall: Stall, is_own: bool, has_read_all: bool) -> bool:
    """Take nothing for proof."""
    return False


def needs_no_end(stall: Stall, is_own: bool, has_read_all: bool) -> bool:
    """Take a cast that was not read yet for missing."""
    return stall.missing is None or is_own


def knows_other_sites(stall: Stall, is_own: bool, has_read_all: bool) -> bool:
    """Take a cast of another site that has not arrived for missing."""
    return has_read_all


def sees_no_circle(stall: Stall, is_own: bool, has_read_all: bool) -> bool:
    """Take nothing but a missing cast for proof."""
    return stall.missing is not None and proves(stall, is_own, has_read_all)


MUTATIONS = (
    Mutation(
        "blind-to-others",
        "A causal cast does not wait for other senders' casts that its sender had delivered",
        CAUSAL_VIOLATION,
        rules=Rules(receiver=BlindToOthers),
    ),
    Mutation(
        "blind-to-other-sites",
        "A causal cast does not wait for other sites' casts that its sender had delivered",
        CAUSAL_VIOLATION,
        rules=Rules(receiver=BlindToOtherSites),
    ),
    Mutation(
        "forgets-to-merge",
        "A member does not merge delivered casts into its clock",
        CAUSAL_VIOLATION,
        rules=Rules(receiver=Forgetful),
    ),
    Mutation("takes-older", "A member delivers a delivered cast again", DUPLICATE, rules=Rules(receiver=TakesOlder)),
    Mutation(
        "takes-ahead",
        "A member delivers a fifo cast before an earlier one of the sender",
        FIFO_VIOLATION,
        rules=Rules(receiver=TakesAhead),
    ),
    Mutation(
        "drops-instead-of-holding",
        "A member drops casts that it can't deliver at once",
        LOST,
        rules=Rules(receiver=DropsInsteadOfHolding),
    ),
    Mutation(
        "ignores-after",
        "A cast does not wait for the total messages that its sender had delivered",
        CAUSAL_VIOLATION,
        rules=Rules(receiver=BlindToTotal),
    ),
    Mutation(
        "ignores-depends",
        "A total message does not wait for the casts that it depends on",
        CAUSAL_VIOLATION,
        rules=Rules(receiver=TotalAlone),
    ),
    Mutation(
        "never-blocks",
        "A member in a flush delivers casts beyond the agreed cut",
        VIEW_VIOLATION,
        rules=Rules(receiver=NeverBlocks),
    ),
    Mutation("one-life", "A new incarnation continues the clock of the last one", LOST, rules=Rules(receiver=OneLife)),
    Mutation(
        "torn-state",
        "A donor's state for a late joiner counts one cast too many",
        LOST,
        rules=Rules(receiver=TornState),
    ),
    Mutation(
        "total-before-casts-are-written",
        "A total message does not wait until its sender's casts are written",
        LOST,
        rules=Rules(outgoing=Hasty),
    ),
    Mutation(
        "causal-before-own-total",
        "A causal cast does not wait for its sender's own broadcasts",
        CAUSAL_VIOLATION,
        rules=Rules(outgoing=CausalBeforeOwnTotal),
    ),
    Mutation(
        "talks-after-flush-ok",
        "A member goes on sending after its FLUSH_OK",
        LOST,
        rules=Rules(outgoing=TalksAfterFlushOk),
    ),
    Mutation(
        "application-is-given-what-the-hub-is-not",
        "An application gets casts that its hub skips with a view",
        VIEW_VIOLATION,
        rules=Rules(fate_of_record=lagging_hub),
    ),
    Mutation(
        "state-of-the-dead",
        "A joiner takes a state with casts that the group goes on without",
        LOST,
        rules=Rules(fate_of_state=state_of_the_dead),
    ),
    Mutation(
        "state-before-the-hub",
        "A joiner takes a state before its hub has delivered the casts in it",
        LOST,
        rules=Rules(fate_of_state=state_at_once),
    ),
    Mutation(
        "state-in-midst-of-a-delivery",
        "A donor supplies its state in the middle of a delivery",
        LOST,
        rules=Rules(supply_in_midst=True),
    ),
    Mutation(
        "casts-again-what-was-delivered",
        "A new incarnation sends delivered inherited casts again",
        DUPLICATE,
        rules=Rules(course_of=takes_all_for_lost),
    ),
    Mutation(
        "forgets-what-was-not-delivered",
        "A new incarnation takes every inherited cast for delivered",
        LOST,
        rules=Rules(course_of=takes_all_for_delivered),
    ),
    Mutation(
        "full-is-not-read-again",
        "A reader does not read casts again that found the queue full",
        LOST,
        rules=Rules(read_full_again=False),
    ),
    Mutation(
        "retention-goes-by-offsets",
        "Retention drops casts that a joiner with another site's state has to read",
        LOST,
        rules=Rules(lacks=nothing_is_lacked),
        needs=POWERS,
    ),
    Mutation(
        "waits-for-ever", "A reader accepts no proof that a clock is wrong", LOST, rules=Rules(proves=waits_for_ever)
    ),
    Mutation(
        "proof-without-the-end",
        "A reader takes a cast that it has not read yet for missing",
        LOST,
        rules=Rules(proves=needs_no_end),
    ),
    Mutation(
        "proof-by-other-sites",
        "A reader takes another site's cast that has not arrived for missing",
        LOST,
        rules=Rules(proves=knows_other_sites),
    ),
    Mutation(
        "sees-no-circle",
        "A reader sees no proof in casts that wait for each other",
        LOST,
        rules=Rules(proves=sees_no_circle),
    ),
    Mutation(
        "relay-counts-its-copies",
        "A relay goes on at the number of its copies, not behind the last copy's mark",
        LOST,
        rules=Rules(begin_by_mark=False),
        needs=POWERS,
    ),
)
