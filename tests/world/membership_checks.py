"""The promises of a world of members, checked at the end of a history; and its DATA, for a person."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from connectors.kafka.codec.codec import decode_data
from connectors.takeover.rows import decoded
from ordering.base.packs import unpacked
from ordering.base.reader import Reader, Verdict
from ordering.base.records import (
    EPOCH,
    FLUSH_COMPLETED,
    MESSAGE,
    REFUSED,
    SETTINGS,
    STOP_FLUSH,
    VIEW,
    Data,
    Forward,
    Partition,
    Source,
)
from ordering.checker.anomalies import DUPLICATE, LOST
from ordering.checker.checker import Checker
from ordering.membership.flush import FlushPhase
from ordering.membership.membership import MemberIncarnation, RemoteSite
from ordering.participant.events import EventReader
from ordering.sequencer.sequencer import absorb
from ordering.sequencer.state import SequencerState
from tests.world.guests import Guests
from tests.world.kafka import WorldConnection, WorldKafka, partition
from tests.world.member_parts import GROUP, SITE
from tests.world.members import RETURNED, UNPAIRED, Process
from tests.world.neighbour import SITE as FAR
from tests.world.neighbour import Neighbour
from tests.world.world import World

PATTERN = re.compile(r"V+|V(V*U)?(BV*U)*(BV*)?")
PATTERN_WITHOUT_FLUSH = re.compile(r"V+(V*U)?(V*BV*U)*(V*BV*)?V*")
CALLS = re.compile("(BU)*B?")

WRONG_VIEW = "wrong view"
"""The group counts a stranger as a member, or a member as none."""
HANGING = "hanging flush"
BLOCKED = "blocked"
"""The flush is over, and a member does not know it."""
STUCK = "stuck"
"""A record is not ordered however often it is sent, or a member waits for something for ever."""
OTHER_VIEW = "other view"
"""A message is delivered in another view than that in which it was sent."""
OTHER_STATE = "DATA tells another state than the sequencer has"
FALSE_RECEIPT = "false receipt"
OUT_OF_ORDER = "views and flushes out of order"
"""An application has seen views and flushes in an order that is none."""
WRONG_STAMP = "wrong stamp"
REMOTE_VIEW = "wrong remote view"
"""The group knows other members of the neighbouring site than that has."""
SURVIVORS = "survivors disagree"
"""Two members that go on from a view into the next one have delivered other messages in it."""
ENDED_JOB = "job ended"
"""A job has stopped with an error that no retry mends."""


def decided(state: SequencerState) -> SequencerState:
    """Drop the parts that are no decisions: only snapshots may have them."""
    membership = replace(state.membership.without_time(), horizon={})
    state = replace(state, positions={}, decided={}, duplicates=0, unsnapped=0, latest_ms=0, snapshot_ms=0, aged={})
    return replace(state, membership=membership)


class MembershipChecks(World[Any]):
    """The promises to the members of a group."""

    kafka: WorldKafka
    connection: WorldConnection
    guests: Guests
    neighbour: Neighbour | None
    with_flush: bool

    def __init__(self, seed: int, actions: Mapping[str, int]) -> None:
        super().__init__(seed, actions)
        self.processes: list[Process] = []
        self.newest: dict[str, Process] = {}
        """By address."""
        self.waiting: list[Process] = []
        """Processes that could not start, and whose outboxes have messages."""
        self.is_healed = self.is_steady = False
        self._told, self._told_until, self._described = SequencerState(GROUP), 0, 0

    @property
    def alive(self) -> list[Process]:
        """The processes that run."""
        return [process for process in self.processes if process.is_alive]

    def data(self, since: int = 0) -> list[Data]:
        """Return DATA, dropped records included."""
        records = self.kafka.topics.partitions[partition("data", SITE)][since:]
        return [decode_data(record.key, record.value, record.headers) for record in records]

    def forward(self) -> dict[Partition, list[Forward]]:
        """Return FORWARD and what a relay has brought."""
        logs: dict[Partition, list[Forward]] = {}
        for place in self.kafka.places(("forward", "relayed")):
            found = [
                decoded(Source(*place, record.offset), record)
                for record in self.kafka.topics.partitions[place]
                if record.headers
            ]
            logs[place] = [record for record in found if isinstance(record, Forward)]
        return logs

    def known(self) -> SequencerState:
        """Return the state that DATA tells, read on from the last position."""
        new = self.data(self._told_until)
        self._told, self._told_until = absorb(self._told, new), self._told_until + len(new)
        return self._told

    # For a person.

    def short(self, life: MemberIncarnation) -> str:
        """Return a member's name."""
        return f"{life.address.removeprefix(f'{SITE}/')}#{life.incarnation}"

    def tell_data(self) -> None:
        """Add new records of DATA to the story."""
        for record in self.data(self._described):
            self._described += 1
            if record.kind != EPOCH:
                self.tell(f"  DATA {self.describe(record)}")

    def describe(self, record: Data) -> str:
        """Return a record in words."""
        who = self.short(MemberIncarnation(record.sender, record.incarnation)) if record.sender else "the sequencer"
        what = f"{record.seqno} {record.kind} of {who}"
        if record.kind == VIEW:
            body = json.loads(record.payload)
            flush = f" in the flush {body['flush']}" if body["flush"] else ""
            members = " ".join(self.short(MemberIncarnation(*row)) for row in body["members"])
            return f"{record.seqno} view {record.view}{flush}: {members or 'empty'}"
        if record.kind in (MESSAGE, SETTINGS):
            return f"{what}: {record.payload.decode()}"
        if record.kind in (REFUSED, STOP_FLUSH, FLUSH_COMPLETED) and record.payload.startswith(b"{"):
            body = json.loads(record.payload)
            return f"{what}: {body.get('reason') or body['flush']}"
        return what

    # The end.

    def is_settled(self) -> bool:
        """Whether nothing is left to wait for."""
        membership = self.known().membership
        return (
            {process.life for process in self.alive} == set(membership.members)
            and membership.flush.phase is FlushPhase.RUNNING
            and not any(process.is_waiting for process in self.alive)
        )

    def check(self) -> None:
        """Check all promises at the end."""
        membership = self.known().membership
        if {process.life for process in self.alive} != set(membership.members):
            alive = [process.life for process in self.alive]
            self.blame(WRONG_VIEW, f"alive are {alive}, but the view is {membership.members}")
        if membership.flush.phase is not FlushPhase.RUNNING:
            self.blame(HANGING, f"the flush hangs: {membership.flush}")
        self._check_alive()
        self._check_neighbour()
        self._check_seen()
        self._check_survivors()
        checker = Checker()
        effective, reader = list[Data](), Reader()
        for record in self.data():
            checker.data(SITE, record)
            if reader.judge(record) is Verdict.TAKE:
                effective += unpacked(record)
        self._check_views(effective)
        self._check_messages(effective)
        self.anomalies += self.guests.check_ledger(self.connection)
        self.anomalies += checker.finish()

    def _check_alive(self) -> None:
        """Check that live members have nothing left to wait for."""
        for process in self.alive:
            if process.now.is_silent:
                self.blame(BLOCKED, f"{process.life} is still blocked")
            if process.is_waiting:
                self.blame(STUCK, f"{process.life} holds {process.held}, and waits: {process.now.request}")
            if process.has_left:
                self.blame(RETURNED, f"{process.life} is there, although it has left")
            if process.calls.endswith("B"):
                self.blame(UNPAIRED, f"{process.life} is still in block()")

    def _check_seen(self) -> None:
        """Check the applications' views and calls, each in its place."""
        pattern = PATTERN if self.with_flush else PATTERN_WITHOUT_FLUSH
        for process in self.processes:
            if not CALLS.fullmatch(process.calls):
                self.blame(UNPAIRED, f"the calls of {process.life} were {process.calls}")
            for stay in process.stays:
                if stay.seen and not pattern.fullmatch(stay.seen):
                    self.blame(OUT_OF_ORDER, f"{stay.life} saw {stay.seen}")

    def _check_neighbour(self) -> None:
        """Check that the sequencer and each member know the view in force at the other site."""
        if self.neighbour is None:
            return
        members, remote = self.neighbour.in_force.members, self.known().membership.remote
        if remote != {FAR: RemoteSite(members)}:
            self.blame(REMOTE_VIEW, f"{FAR} has {members}, but known is {remote}")
        for process in self.alive:
            seen = process.now.known.remote.get(FAR)
            if seen is None or (seen.members, seen.reachable) != (tuple(life.address for life in members), True):
                self.blame(REMOTE_VIEW, f"{process.life} takes {seen} for the view of {FAR}, but it is {members}")

    def _check_views(self, effective: list[Data]) -> None:
        """Check that, with flush on, a message of a member is delivered in the view in which it was sent."""
        sent_in: dict[tuple[str, int, int], int] = {}
        for process in self.processes:
            sent_in |= {(process.address, *key): view_id for key, view_id in process.sent_in.items()}
        events = EventReader()
        for record in effective:
            events.accept(record.kind, record.seqno, record.view, record.sender, record.payload)
            if record.view != (events.view.view_id if events.view else 0):
                self.blame(WRONG_STAMP, f"seqno {record.seqno} is stamped with view {record.view}")
            sent = sent_in.get((record.sender, record.incarnation, record.local_seqno))
            if record.kind == MESSAGE and self.with_flush and sent not in (None, record.view):
                self.blame(OTHER_VIEW, f"seqno {record.seqno} was sent in view {sent}, delivered in {record.view}")

    def _check_messages(self, effective: list[Data]) -> None:
        """Check that each live process has all its messages ordered once, through all its incarnations."""
        messages = [record for record in effective if record.kind == MESSAGE]
        for payload, times in Counter(record.payload for record in messages).items():
            if times > 1:
                self.blame(DUPLICATE, f"{payload!r} is ordered {times} times")
        seqnos = {record.payload: record.seqno for record in messages}
        for process in self.alive:
            for payload, receipt in process.said.items():
                if payload not in seqnos:
                    self.blame(LOST, f"{payload!r}")
                elif receipt is not None and receipt._number not in (0, seqnos[payload]):
                    self.blame(FALSE_RECEIPT, f"{payload!r} is at {seqnos[payload]}, and its receipt {receipt}")

    def _check_survivors(self) -> None:
        """Check that all that go on from a view into the next one have delivered the same set in it."""
        sets: dict[int, tuple[MemberIncarnation, list[int]]] = {}
        for stay in [stay for process in self.processes for stay in process.stays]:
            for view_id, seqnos in stay.delivered.items():
                if view_id + 1 not in stay.delivered:
                    continue
                life, known = sets.setdefault(view_id, (stay.life, seqnos))
                if known != seqnos:
                    self.blame(SURVIVORS, f"in view {view_id}, {life} had {known}, but {stay.life} {seqnos}")
