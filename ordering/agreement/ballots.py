"""The ballots that decide the next view: Paxos among the members of the view in force.

`ordering.agreement.views` has the protocol and its invariants.
"""

from __future__ import annotations

from ordering.agreement.flush import is_next, is_quorum, is_report, next_view, report_of
from ordering.agreement.formation import ProcessIncarnation
from ordering.agreement.isis import Agreement
from ordering.agreement.messages import (
    NO_BALLOT,
    Accept,
    Ballot,
    BallotAccepted,
    BallotPromise,
    Message,
    NextView,
    Prepare,
    Refuse,
    Stuck,
    Vote,
)
from ordering.agreement.outgoing import MAX_PATIENCE
from ordering.agreement.process import Attempt, ProcessInView
from ordering.agreement.suspicion import Suspicion


class Ballots:
    """A process's part in the ballots: as the coordinator of its own, and as a member in all."""

    def __init__(self, here: ProcessInView, suspicion: Suspicion) -> None:
        self._here, self._state, self._suspicion = here, here.state, suspicion

    def tick(self, agreement: Agreement) -> NextView | None:
        """Open a ballot if there has been a reason for long enough, or continue the own one; return a decided value."""
        state, reason = self._state, self._suspicion.reason()
        if state.attempt is not None:
            return self._continue(state.attempt)
        if not (reason.suspects or reason.joiners or state.promised > NO_BALLOT or state.excluded):
            state.patience_ms = 0
        elif state.patience_ms == 0:
            rank = self._suspicion.rank(reason.suspects)
            state.patience_ms = state.now_ms + 1 + rank * state.suspect_after_ms // 2
        elif state.now_ms >= state.patience_ms:
            return self._open(agreement)
        return None

    # As coordinator

    def _open(self, agreement: Agreement) -> NextView | None:
        state, mine = self._state, self._here.places[self._state.me]
        state.highest_round = max(state.highest_round, state.promised.round) + 1
        ballot = Ballot(state.highest_round, mine)
        state.attempt = Attempt(ballot, state.now_ms, state.now_ms, ())
        state.promised = ballot
        self._here.cast(Prepare(state.view.id, ballot))
        self._here.freeze(agreement)
        return self.count_promise(mine, self._own_promise(agreement))

    def _continue(self, attempt: Attempt) -> NextView | None:
        """Ask members again that have not answered; report a minority; return a decided value."""
        state, size = self._state, len(self._state.view.members)
        taken_ms = min(attempt.asked_at_ms - attempt.since_ms, state.suspect_after_ms // 2)
        if state.now_ms - attempt.asked_at_ms >= max(state.resend_after_ms, taken_ms):
            state.attempt = attempt = attempt._replace(asked_at_ms=state.now_ms)
            for member, place in self._here.places.items():
                if place not in attempt.answered and member != state.me:
                    self._here.tell(member, self._question(attempt))
        is_late = state.now_ms - attempt.since_ms >= state.suspect_after_ms
        if is_late and not attempt.is_stuck and not is_quorum(attempt.answered, size, self._excluded_places()):
            state.attempt = attempt._replace(is_stuck=True)
            reached = tuple(state.view.members[place] for place in sorted(attempt.answered))
            self._here.outputs.append(Stuck(state.view, reached, size // 2 + 1))
        # By the time, or by an operator's exclusion, the answers may be enough now.
        return self._choose() or self._decided()

    def _question(self, attempt: Attempt) -> Message:
        if attempt.value is None:
            return Prepare(self._state.view.id, attempt.ballot)
        return Accept(self._state.view.id, attempt.ballot, attempt.value)

    def count_promise(self, place: int, message: BallotPromise) -> NextView | None:
        """Take the promise of the member at `place`; return a decided value."""
        state, attempt = self._state, self._state.attempt
        if attempt is None or message.ballot != attempt.ballot or attempt.value is not None:
            return None
        is_vote = message.vote is None or is_next(message.vote.value, state.view)
        if not is_vote or not is_report(message.report, len(state.view.members)):
            state.ignored += 1
            return None
        promises = {**dict(attempt.promises), place: message}
        state.attempt = attempt._replace(promises=tuple(sorted(promises.items())))
        return self._choose()

    def _choose(self) -> NextView | None:
        """Choose the value when a quorum has promised, and every other member has, is suspected, or is late."""
        state, attempt = self._state, self._state.attempt
        if attempt is None or attempt.value is not None:
            return None
        promises, size = dict(attempt.promises), len(state.view.members)
        if not is_quorum(promises, size, self._excluded_places()):
            return None
        reason = self._suspicion.reason()
        missing = set(range(size)) - set(promises) - reason.suspects
        if missing and state.now_ms - attempt.since_ms < state.suspect_after_ms // 2:
            return None
        votes = [promise.vote for promise in promises.values() if promise.vote is not None]
        if votes:
            value = max(votes, key=lambda vote: vote.ballot).value
        else:
            reports = {place: promise.report for place, promise in promises.items()}
            value = next_view(state.view, reports, reason.joiners)
        state.vote = Vote(attempt.ballot, value)
        state.attempt = attempt._replace(value=value, asked_at_ms=state.now_ms)
        self._here.cast(Accept(state.view.id, attempt.ballot, value))
        return self.count_accepted(self._here.places[state.me], BallotAccepted(state.view.id, attempt.ballot))

    def count_accepted(self, place: int, message: BallotAccepted) -> NextView | None:
        """Take the acceptance of the member at `place`; return the value if that decides it."""
        state, attempt = self._state, self._state.attempt
        if attempt is None or attempt.value is None or message.ballot != attempt.ballot:
            return None
        state.attempt = attempt._replace(accepted_by=tuple(sorted({*attempt.accepted_by, place})))
        return self._decided()

    def _decided(self) -> NextView | None:
        """Return the value if a quorum has accepted it."""
        attempt, size = self._state.attempt, len(self._state.view.members)
        if attempt is None or attempt.value is None:
            return None
        return attempt.value if is_quorum(attempt.accepted_by, size, self._excluded_places()) else None

    def _excluded_places(self) -> set[int]:
        return {self._here.places[member] for member in self._state.excluded}

    # As member

    def promise(self, agreement: Agreement, sender: ProcessIncarnation, message: Prepare) -> None:
        """Answer a coordinator that opens a ballot."""
        if self._follows(agreement, sender, message):
            self._here.answer(sender, message, self._own_promise(agreement))

    def accept(self, agreement: Agreement, sender: ProcessIncarnation, message: Accept) -> None:
        """Answer a coordinator that asks to accept its value."""
        state = self._state
        if message.ballot >= state.promised and not is_next(message.value, state.view):
            state.ignored += 1
        elif self._follows(agreement, sender, message):
            state.vote = Vote(message.ballot, message.value)
            self._here.answer(sender, message, BallotAccepted(state.view.id, message.ballot))

    def _follows(self, agreement: Agreement, sender: ProcessIncarnation, message: Prepare | Accept) -> bool:
        """Take part in a ballot, unless a higher one is promised; then refuse."""
        state, ballot = self._state, message.ballot
        if ballot < state.promised:
            self._here.answer(sender, message, Refuse(state.view.id, state.promised))
            return False
        state.highest_round = max(state.highest_round, ballot.round)
        if ballot > state.promised:
            state.promised = ballot
            self._give_way()
        self._here.freeze(agreement)
        return True

    def refused(self, promised: Ballot) -> None:
        """Note that a member has promised a ballot above the one of this process."""
        state = self._state
        state.highest_round = max(state.highest_round, promised.round)
        if state.attempt is not None and promised > state.attempt.ballot:
            self._give_way()

    def _give_way(self) -> None:
        """Give way to a higher ballot. Open a still higher one only if that fails, each round later than before.

        A ballot takes four messages one after another. On slow links, rivals that did not wait for it would outbid each
        other for ever.
        """
        state = self._state
        state.attempt = None
        rank = self._suspicion.rank(self._suspicion.reason().suspects)
        rounds = min(MAX_PATIENCE, max(1, state.highest_round))
        state.patience_ms = state.now_ms + state.suspect_after_ms // 2 * (1 + rank) * rounds

    def _own_promise(self, agreement: Agreement) -> BallotPromise:
        return BallotPromise(self._state.view.id, self._state.promised, self._state.vote, report_of(agreement.state))
