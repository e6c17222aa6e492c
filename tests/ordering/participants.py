"""A participant on its own: its log, and its effects."""

from __future__ import annotations

import json
from typing import Any

from ordering.base.records import START_FLUSH, STOP_FLUSH, VIEW, Data
from ordering.membership.membership import NO_MEMBERS, MemberIncarnation, Membership, ReceivedRow
from ordering.membership.settings import Settings
from ordering.participant.participant import Participant, step
from ordering.participant.participant_events import Began, Event
from ordering.participant.participant_table import Cause, ParticipantPhase, Transition
from ordering.sequencer.state import SequencerState

ALICE = MemberIncarnation("nyc/alice", 5)
BOB = MemberIncarnation("nyc/bob", 1)
OPEN, CLOSED = Settings(), Settings(closed=True)


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def state(membership: Membership = NO_MEMBERS, view: int = 0, received: dict[str, ReceivedRow] | None = None) -> Any:
    return SequencerState("g", view=view, membership=membership, received=received or {})


class Bench:
    """A participant with its log and its effects."""

    def __init__(self, membership: Membership | None = NO_MEMBERS, *, joins: bool = False, answered: int = 0) -> None:
        """Without a membership, its incarnation has not begun."""
        self.now = Participant(ALICE)
        self.seqno = self.view_id = 0
        self.did: list[str] = []
        if membership is not None:
            self.tell(Began(ALICE, state(membership, 3), joins, answered))

    def tell(self, event: Event) -> None:
        self.now, actions = step(self.now, event)
        for action in actions:
            words = [action.kind or action.do.value, str(action.flush_id or "")]
            self.did.append(" ".join(word for word in words if word))

    def feed(
        self, kind: str, sender: MemberIncarnation | None = None, payload: bytes = b"", local_seqno: int = 0
    ) -> int:
        self.seqno += 1
        self.tell(Data(kind, 1, self.seqno, self.view_id, *(sender or ("", 0)), local_seqno, payload))
        return self.seqno

    def view(self, *members: MemberIncarnation, flush: int = 0, suspected: tuple[str, ...] = ()) -> None:
        self.view_id += 1
        self.feed(VIEW, payload=body(members=members, joined=[], left=[], suspected=suspected, flush=flush))

    def start(self, requester: MemberIncarnation | None = None, local_seqno: int = 0) -> int:
        return self.feed(START_FLUSH, requester, b"" if requester else body(requester="nyc/bob"), local_seqno)

    def stop(self, flush: int, reason: str = "the view is installed") -> None:
        self.feed(STOP_FLUSH, payload=body(flush=flush, reason=reason))

    @property
    def gates(self) -> tuple[bool, bool]:
        """Return whether messages are taken, and whether they are sent."""
        return self.now.takes_messages, self.now.sends_messages

    def expect(self, phase: ParticipantPhase, *did: str) -> None:
        assert (self.now.phase, self.did) == (phase, list(did))
        self.did.clear()


class Watched(dict[tuple[ParticipantPhase, Cause], Transition]):
    """A table that records which of its rows were used."""

    def __init__(self, rows: dict[tuple[ParticipantPhase, Cause], Transition]) -> None:
        super().__init__(rows)
        self.taken: set[tuple[ParticipantPhase, Cause]] = set()

    def get(self, key: tuple[ParticipantPhase, Cause], default: Transition | None = None) -> Transition | None:  # type: ignore[override]
        self.taken.add(key)
        return super().get(key, default)
