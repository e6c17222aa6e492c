"""Receivers and senders of casts that break a rule: the parts of `tests.world.casts_mutations`."""

from __future__ import annotations

from dataclasses import replace

from ordering.casts.casts import CAUSAL, FIFO, Cast, CastVerdict, OrderedRecord, Settled
from ordering.casts.causal import CausalReceiver, CausalState
from ordering.casts.clocks import Clock
from ordering.casts.delivery_status import DeliveryStatus, fate_of_record, fate_of_state
from ordering.casts.held_casts import Need
from ordering.casts.outgoing import Outgoing


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
