"""The view in force at a process: how it learns of a view, leaves the one before, and tells others.

`ordering.agreement.views` proves that all members leave a view with the same deliveries.
"""

from __future__ import annotations

from collections import deque

from ordering.agreement.flush import is_next
from ordering.agreement.formation import Formation, Hello, ProcessIncarnation, View
from ordering.agreement.isis import Agreement
from ordering.agreement.messages import NO_BALLOT, DecidedView, Installed, Join, Missing, NextView, Outside
from ordering.agreement.process import ProcessInView
from ordering.agreement.state import begin
from ordering.agreement.suspicion import MAX_JOINERS, Suspicion


class Installation:
    """The part of a process that goes from view to view. `formation`: of a fresh process, until its first view."""

    def __init__(self, here: ProcessInView, suspicion: Suspicion, formation: Formation | None) -> None:
        self._here, self._state, self._suspicion = here, here.state, suspicion
        self._formation = formation

    @property
    def latest_incarnation(self) -> int:
        """Return the latest incarnation of this process's name that it has heard of; its own if that is the latest."""
        me, view = self._state.me, self._state.view
        if self._formation is None:
            return me.incarnation
        known = [*view.members, *(process for process, _ in view.rows)]
        told = (process.incarnation for process in known if process.name == me.name)
        return max(self._formation.newest(me.name), *told, me.incarnation)

    def begin_alone(self) -> None:
        """Begin the first view of a group of one, which no other process confirms."""
        view = self._formation.view() if self._formation is not None else None
        if view is not None:
            self.learn(NextView(view))

    def hear_hello(self, sender: ProcessIncarnation, message: Hello) -> None:
        """Take the greeting of a fresh process: form the first view with it, or let it join."""
        if self._formation is not None:
            view = self._formation.hear(sender, message)
            if view is not None:
                self.learn(NextView(view))
        elif self._here.agreement is not None:
            self.hear_join(sender)

    def hear_join(self, sender: ProcessIncarnation) -> None:
        """Take the request to join of a process outside of the view."""
        self.tell_view(sender)
        self._suspicion.hear_join(sender)

    def tell_view(self, receiver: ProcessIncarnation) -> None:
        """Send the view in force, if this process is or was in one, at most every `resend_after_ms`."""
        state = self._state
        if self._formation is None and state.view.id and self._note_told(receiver):
            self._here.tell(receiver, DecidedView(NextView(state.view, state.settled)))

    def ask_view(self, sender: ProcessIncarnation) -> None:
        """Ask a process of a later view for that view: it tells the view to a process that asks to join."""
        if self._note_told(sender):
            self._here.tell(sender, Join(self._state.view.id))

    def _note_told(self, receiver: ProcessIncarnation) -> bool:
        """Note that a process is told the view or asked for one. Return False if it is too early for that."""
        state = self._state
        last = state.told.get(receiver)
        if last is not None and state.now_ms - last < state.resend_after_ms:
            return False
        if last is None and len(state.told) >= MAX_JOINERS:
            state.told.clear()
        state.told[receiver] = state.now_ms
        return True

    def tick_outside(self) -> None:
        """Greet all, or ask to join, while the process is in no view."""
        state = self._state
        pause_ms = max(state.resend_after_ms, state.suspect_after_ms // 8)
        if state.now_ms - state.beat_at_ms < pause_ms and state.beat_at_ms:
            return
        state.beat_at_ms = state.now_ms
        if self._formation is not None:
            for name in self._formation.names:
                if name != state.me.name:
                    self._here.tell(ProcessIncarnation(name), self._formation.hello())
        names = {member.name for member in state.view.members} | {process.name for process, _ in state.view.rows}
        for name in sorted(names - {state.me.name}):
            self._here.tell(ProcessIncarnation(name), Join(state.view.id))

    def learn_from(self, sender: ProcessIncarnation, value: NextView) -> None:
        """Take a decided view from another process; ignore one that can't follow the view in force."""
        state, view = self._state, value.view
        if self._formation is None:
            may_follow = view.id != state.view.id + 1 or self._here.agreement is None or is_next(value, state.view)
            if view.origin == state.view.origin and may_follow:
                self.learn(value)
            else:
                state.ignored += 1
        elif state.me not in view.members:
            is_other = view.origin != state.view.origin
            if self._formation.is_newest(sender) and (is_other or view.id > state.view.id):
                state.view, state.settled = view, value.settled
                self._here.places = {}
                self._here.outputs.append(Outside(view))
        elif self._formation.is_newest(sender) if view.id > 1 else self._formation.may_take_over(sender, view.members):
            state.view = View(0, 0, ())
            self.learn(value)

    def learn(self, value: NextView) -> None:
        """Leave the view in force as the value says, and begin the next one if this process is in it."""
        state, view, agreement = self._state, value.view, self._here.agreement
        if view.id < state.view.id or (
            view.id == state.view.id and (agreement is not None or state.me not in view.members)
        ):
            return
        row = max(dict(view.rows).get(state.me, 0), state.own_row)
        counter = 0
        if agreement is not None:
            self._here.flush()
            agreement.freeze()
            if view.id == state.view.id + 1:
                self._here.deliver(agreement.deliveries.settle(value.settled))
            state.delivered, counter = agreement.state.delivered, agreement.state.counter
            state.backlog = deque(agreement.state.unordered(row))
        else:
            for _ in range(min(row - state.own_row, len(state.backlog))):
                state.backlog.popleft()
        state.own_row = row
        self._enter(value)
        if state.me in view.members:
            self._install(view, counter)
        else:
            self._here.agreement = state.agreement = None
            self._here.outputs.append(Outside(view))

    def _enter(self, value: NextView) -> None:
        """Take a view for the one in force, and forget the ballots of the one before."""
        state = self._state
        state.view, state.settled = value.view, value.settled
        state.promised, state.vote, state.attempt, state.patience_ms = NO_BALLOT, None, None, 0
        state.highest_round = 0
        state.excluded, state.told = set(), {}
        self._here.places = {member: place for place, member in enumerate(state.view.members)}
        self._suspicion.enter_view()

    def _install(self, view: View, counter: int) -> None:
        state = self._state
        self._formation = None
        if state.delivered < view.base:
            self._here.outputs.append(Missing(state.delivered + 1, view.base))
        state.delivered = view.base
        known = dict(view.rows)
        state.agreement = begin(
            view.id,
            self._here.places[state.me],
            [known.get(member, 0) for member in view.members],
            delivered=view.base,
            counter=counter,
            backlog=state.backlog,
            now_ms=state.now_ms,
            resend_after_ms=state.resend_after_ms,
        )
        self._here.agreement = agreement = Agreement(state.agreement)
        state.backlog = deque()
        self._here.outputs.append(Installed(view))
        agreement.tick(state.now_ms)
