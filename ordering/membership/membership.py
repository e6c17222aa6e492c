"""Membership of a group as a function of the log: members, settings, flush, remote views.

Source: FLUSH (docs/sources.md), "FLUSH on view change" (view bundling) and "Crash handling during FLUSH".

A FORWARD of a control kind (`join`, `leave`, `start-flush` …) is accepted by its local seqno, like a message. It
becomes DATA of its kind if it changes something, and else `refused`, with the reason. At the end of a batch
`ordering.membership.view_change` decides what follows: a view, or a step of a flush. These are DATA, too.

Invariant. Only `fold(membership, DATA record)` changes members, settings, flush and remote views, both in the sequencer
that decides the record and in every reader. So a sequencer that takes over after a crash has the same joiners and
answers, and decides at the end of its next batch what its predecessor did not. Times are not in DATA
(`ordering.membership.failure_detector`): after a takeover every member has a whole grace period.
docs/protocols/membership.md has the rules for incarnations that are over, kept rows, and remote views.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

from ordering.base.canonical import UNREADABLE, canonical_json
from ordering.base.capacity import NO_ROOM_FOR_MEMBERS, has_room_for_member
from ordering.base.errors import ProtocolViolation, UsageError
from ordering.base.kinds import MESSAGE_KINDS, NEEDS, Rank
from ordering.base.names import is_address, is_relay, relay_of
from ordering.base.records import (
    FLUSH_COMPLETED,
    FLUSH_OK,
    FORGET,
    JOIN,
    LEAVE,
    MAX_NUMBER,
    REFUSED,
    REMOTE_VIEW,
    SETTINGS,
    START_FLUSH,
    STOP_FLUSH,
    VIEW,
    Data,
    Forward,
    Partition,
    named_partitions,
    parsed_partitions,
)
from ordering.membership.failure_detector import NOTHING_HEARD, FailureDetector
from ordering.membership.flush import NO_FLUSH, Flush, FlushPhase
from ordering.membership.forgetting import NO_ROWS, NOTHING_FORGOTTEN, SenderRow, forgettable, from_payload, to_payload
from ordering.membership.settings import DEFAULT_SETTINGS, Settings

MAX_LEFT = 1_000
"""Largest number of received rows kept for members that left."""

NOT_A_MEMBER = "the group is closed and the sender is not a member"


class ReceivedRow(NamedTuple):
    """A row of the received table: the newest incarnation of a sender and its highest accepted local seqno."""

    incarnation: int
    local_seqno: int


NOTHING_ACCEPTED = ReceivedRow(0, 0)


class MemberIncarnation(NamedTuple):
    """A member in one of its incarnations."""

    address: str
    incarnation: int

    @classmethod
    def of(cls, row: Sequence[Any]) -> MemberIncarnation:
        """Return the member in a row of JSON; a later version may have added values. Raises an UNREADABLE error."""
        address, incarnation, *_ = row
        if type(address) is not str or type(incarnation) is not int:
            raise TypeError(f"{address!r:.40} and {incarnation!r:.40} are no member and its incarnation")
        return cls(address, incarnation)


class FormerMember(NamedTuple):
    """A member that left, and its received row as it was then."""

    address: str
    incarnation: int
    local_seqno: int


class RemoteSite(NamedTuple):
    """A neighbouring site: the members of its newest view, and whether its relay is silent."""

    members: tuple[MemberIncarnation, ...] = ()
    is_silent: bool = False


@dataclass(frozen=True)
class Membership:
    """The sequencer's knowledge of a group's members; see the module. `members` are in order of age, oldest first.

    `horizon` has the end of each forward partition at the takeover; it is empty once all records before it are
    considered. `incarnations_over` has the incarnation of each sender whose newest incarnation is over. `unknown` has
    the other fields of a later version's snapshot, as JSON values.
    """

    settings: Settings = DEFAULT_SETTINGS
    members: tuple[MemberIncarnation, ...] = ()
    joining: tuple[MemberIncarnation, ...] = ()
    leaving: tuple[str, ...] = ()
    flush: Flush = NO_FLUSH
    left: tuple[FormerMember, ...] = ()
    incarnations_over: Mapping[str, int] = field(default_factory=dict)
    incarnation_floor: int = 0
    remote: Mapping[str, RemoteSite] = field(default_factory=dict)
    detector: FailureDetector = NOTHING_HEARD
    horizon: Mapping[Partition, int] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_watched(self) -> bool:
        """Whether time matters: there are members here or at a neighbouring site, or a flush runs."""
        return bool(self.members or self.joining or self.flush.id or any(site.members for site in self.remote.values()))

    @property
    def relays(self) -> list[str]:
        """The addresses of the relays that have brought a view of their site."""
        return [relay_of(site) for site in self.remote]

    @cached_property
    def _addresses(self) -> frozenset[str]:
        return frozenset(member.address for member in self.members)

    @cached_property
    def _silenced(self) -> frozenset[str]:
        """The members that have sent FLUSH_OK, or need not any more."""
        answered = frozenset(self.flush.answered)
        return answered | self._addresses if self.flush.phase is FlushPhase.BLOCKED else answered

    def is_member(self, address: str) -> bool:
        """Whether some incarnation of the sender is in the view."""
        return address in self._addresses

    def keeps_row(self, address: str) -> bool:
        """Whether the sender's received row must not be forgotten: a member's, a joiner's, a relay's."""
        return self.is_member(address) or is_relay(address) or any(member.address == address for member in self.joining)

    def may_send(self, address: str, kind: str) -> bool:
        """Whether the sender may send a FORWARD of this kind. If not, the record is a dead letter."""
        if not self.settings.closed or self.is_member(address) or NEEDS[kind] is Rank.STRANGER:
            return True
        return NEEDS[kind] is Rank.JOINER and any(member.address == address for member in self.joining)

    def is_silenced(self, address: str, kind: str) -> bool:
        """Whether the sender is quiet after its FLUSH_OK. Its messages are dropped until it sends them again later."""
        return kind in MESSAGE_KINDS and address in self._silenced

    def last_incarnation_over(self, address: str, *, has_row: bool) -> int:
        """Return the highest incarnation of a sender that is over: nothing more of it is ordered. 0 if there is none.

        `has_row`: whether the received table has the sender.
        """
        return self.incarnations_over.get(address, 0) if has_row else self.incarnation_floor

    def without_time(self) -> Membership:
        """Return the part that DATA tells: no member was heard yet, so each has a whole grace period."""
        return self if self.detector == NOTHING_HEARD else replace(self, detector=NOTHING_HEARD)

    def to_json(self, *, later: bool = True) -> dict[str, Any]:
        """Return JSON values. `later`: with the fields of later versions."""
        return {
            **(self.unknown if later else {}),
            "settings": {**(self.settings.unknown if later else {}), **self.settings.known()},
            "members": self.members,
            "joining": self.joining,
            "leaving": self.leaving,
            "flush": {**asdict(self.flush), "phase": self.flush.phase.value},
            "left": self.left,
            "lives_over": self.incarnations_over,
            "incarnation_floor": self.incarnation_floor,
            "remote": self.remote,
            **self.detector.to_json(),
            "horizon": named_partitions(self.horizon),
        }

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Membership:
        """Return the inverse of `to_json`."""
        flush = {item.name: body["flush"][item.name] for item in fields(Flush)}
        flush["phase"], flush["answered"] = FlushPhase(flush["phase"]), tuple(flush["answered"])
        body = dict(body)
        times = {item.name: body.pop(item.name) for item in fields(FailureDetector) if item.name in body}
        parsed = {
            "incarnations_over": body.pop("lives_over", {}),
            "settings": Settings(**with_unknown(Settings, body["settings"])),
            "members": tuple(MemberIncarnation.of(row) for row in body["members"]),
            "joining": tuple(MemberIncarnation.of(row) for row in body["joining"]),
            "leaving": tuple(body["leaving"]),
            "flush": Flush(**flush),
            "left": tuple(FormerMember(*row[:3]) for row in body["left"]),
            "remote": {
                name: RemoteSite(tuple(MemberIncarnation.of(row) for row in members), is_silent)
                for name, (members, is_silent, *_) in body["remote"].items()
            },
            "detector": FailureDetector.from_json(times),
            "horizon": parsed_partitions(body["horizon"]),
        }
        return cls(**with_unknown(cls, {**body, **parsed}))


NO_MEMBERS = Membership()


def with_unknown(kind: type, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the dataclass `kind` in `body`, and all other fields under `unknown`."""
    names = {item.name for item in fields(kind)} - {"unknown"}
    known = {name: value for name, value in body.items() if name in names}
    unknown = {name: value for name, value in body.items() if name not in names}
    return {**known, "unknown": unknown}


def forgotten_by(membership: Membership, record: Forward, received: Mapping[str, ReceivedRow]) -> tuple[SenderRow, ...]:
    """Return the rows that a `forget` record drops."""
    return forgettable(from_payload(record.payload) or (), received, membership.keeps_row, record.timestamp_ms)


def _room_to_join(membership: Membership, address: str) -> str:
    names = (each.address for each in (*membership.members, *membership.joining))
    return "" if has_room_for_member(names, address) else NO_ROOM_FOR_MEMBERS


def refusal(membership: Membership, record: Forward, received: Mapping[str, ReceivedRow]) -> str:
    """Return the reason why an accepted control record changes nothing; "" if it changes something."""
    member, flush = MemberIncarnation(record.sender, record.incarnation), membership.flush
    is_member = member in membership.members and record.sender not in membership.leaving
    needed = NEEDS[record.kind]
    if needed > Rank.STRANGER and not is_member and not (needed is Rank.JOINER and member in membership.joining):
        return "the sender is not a member"
    if record.kind == JOIN:
        is_known = is_member or member in membership.joining
        return "the sender is a member already" if is_known else _room_to_join(membership, record.sender)
    if record.kind == SETTINGS:
        try:
            membership.settings.updated(record.payload)
        except UsageError as error:
            return str(error)
        return ""
    if record.kind == FORGET:
        if from_payload(record.payload) is None:
            return NO_ROWS
        return "" if forgotten_by(membership, record, received) else NOTHING_FORGOTTEN
    if record.kind == REMOTE_VIEW:
        return (
            ""
            if remote_members(record.sender, record.payload) is not None
            else "the payload is not a view of the sender's site"
        )
    if record.kind == START_FLUSH and flush.phase is not FlushPhase.RUNNING:
        return f"a flush runs already, for {flush.requester}"
    if record.kind in (FLUSH_OK, STOP_FLUSH) and (record.payload != b"%d" % flush.id or not flush.allows(record.kind)):
        return "this flush is not in hand"
    if record.kind == FLUSH_OK and record.sender in flush.answered:
        return "the sender has answered already"
    if record.kind == STOP_FLUSH and (not flush.requested or flush.requester != record.sender):
        return "another member asked for this flush"
    return ""


def outcome(membership: Membership, record: Forward, received: Mapping[str, ReceivedRow]) -> tuple[str, bytes]:
    """Return the kind and the payload of the DATA of an accepted control record."""
    if reason := refusal(membership, record, received):
        return REFUSED, canonical_json({"kind": record.kind, "reason": reason})
    if record.kind == FORGET:
        return FORGET, to_payload(forgotten_by(membership, record, received))
    return record.kind, record.payload


class Fold(NamedTuple):
    """The result of `fold`: the membership, and the senders whose received rows are dropped."""

    membership: Membership
    dropped_rows: tuple[str, ...] = ()


def fold(membership: Membership, record: Data, received: Mapping[str, ReceivedRow]) -> Fold:
    """Return the membership after an effective DATA record. Raises ProtocolViolation if no sequencer writes it."""
    try:
        if record.kind == VIEW:
            return _install(membership, payload_of(record), received)
        if record.kind == FORGET:
            return _forget(membership, record, received)
        return Fold(_changed(membership, record))
    except UNREADABLE as error:
        raise _unreadable(record, error) from error


def _changed(membership: Membership, record: Data) -> Membership:
    """Return the membership after a record that is neither a view nor a `forget`."""
    member = MemberIncarnation(record.sender, record.incarnation)
    kind, flush = record.kind, membership.flush
    if kind == JOIN:
        others = tuple(other for other in membership.joining if other.address != member.address)
        leaving = tuple(address for address in membership.leaving if address != member.address)
        return replace(membership, joining=(*others, member), leaving=leaving)
    if kind == LEAVE:
        joining = tuple(other for other in membership.joining if other.address != member.address)
        leaves = membership.is_member(member.address)
        return replace(
            membership, joining=joining, leaving=(*membership.leaving, member.address) if leaves else membership.leaving
        )
    if kind == SETTINGS:
        return replace(membership, settings=membership.settings.decided(record.payload))
    if kind == REMOTE_VIEW:
        return _apply_remote_view(membership, record)
    if kind == START_FLUSH:
        requester = record.sender or payload_of(record)["requester"]
        flush = flush.start(record.seqno, requester, requested=bool(record.sender))
    elif kind == FLUSH_OK:
        flush = flush.answer(record.sender)
    elif kind == FLUSH_COMPLETED:
        flush = flush.complete()
    elif kind == STOP_FLUSH:
        flush = flush.stop()
    return membership if flush is membership.flush else replace(membership, flush=flush)


def _install(membership: Membership, view: dict[str, Any], received: Mapping[str, ReceivedRow]) -> Fold:
    members = tuple(MemberIncarnation.of(row) for row in view["members"])
    present = {member.address for member in members}
    gone = [member.address for member in membership.members if member.address not in present]
    former = [row for row in membership.left if row.address not in present and row.address not in gone]
    former += [FormerMember(address, *received.get(address, NOTHING_ACCEPTED)) for address in gone]
    incarnations_over = {
        address: number for address, number in membership.incarnations_over.items() if address not in present
    }
    if membership.settings.flush or membership.settings.closed:
        for address, incarnation in membership.members:
            if address in view["suspected"] and received.get(address, NOTHING_ACCEPTED).incarnation == incarnation:
                incarnations_over[address] = incarnation
    # A former member that has sent since then is a stranger: its row is kept.
    dropped = [row for row in former[: max(0, len(former) - MAX_LEFT)] if received.get(row.address) == row[1:]]
    for row in dropped:
        incarnations_over.pop(row.address, None)
    flush = membership.flush
    if flush.phase is not FlushPhase.RUNNING:  # a member that joins within a flush has sent nothing yet, and is blocked
        answered = [*flush.answered, *(member.address for member in membership.joining)]
        flush = replace(flush, answered=tuple(address for address in dict.fromkeys(answered) if address in present))
    # A new incarnation starts with a whole grace period.
    stay = {member.address for member in set(members).intersection(membership.members)}
    unheard = {address for address in membership.detector.heard if address not in stay and not is_relay(address)}
    after = replace(
        membership,
        members=members,
        joining=(),
        leaving=(),
        flush=flush,
        left=tuple(former[-MAX_LEFT:]),
        incarnations_over=incarnations_over,
        incarnation_floor=max(membership.incarnation_floor, *(row.incarnation for row in dropped), 0),
        detector=membership.detector.forget(unheard),
    )
    return Fold(after if after.is_watched else after.without_time(), tuple(row.address for row in dropped))


def _forget(membership: Membership, record: Data, received: Mapping[str, ReceivedRow]) -> Fold:
    rows = from_payload(record.payload)
    if rows is None:
        raise ProtocolViolation(f"the {FORGET} of seqno {record.seqno} names no rows.")
    dropped = {row.sender for row in rows if received.get(row.sender) == row[1:]}
    after = replace(
        membership,
        left=tuple(row for row in membership.left if row.address not in dropped),
        incarnations_over={
            address: number for address, number in membership.incarnations_over.items() if address not in dropped
        },
        incarnation_floor=max(membership.incarnation_floor, *(row.incarnation for row in rows), 0),
    )
    return Fold(after, tuple(row.sender for row in rows if row.sender in dropped))


def _apply_remote_view(membership: Membership, record: Data) -> Membership:
    """Apply a `remote-view`: a relay's, or the sequencer's own about a silent relay."""
    if record.sender:
        members = remote_members(record.sender, record.payload)
        if members is None:
            raise ProtocolViolation(f"the remote-view of seqno {record.seqno} is not a view of its site.")
        return replace(membership, remote={**membership.remote, record.sender.partition("/")[0]: RemoteSite(members)})
    body = payload_of(record)
    name, is_silent = body["site"], body["silent"]
    site = membership.remote.get(name, RemoteSite())._replace(is_silent=is_silent)
    detector = membership.detector
    if is_silent:  # the site is back as soon as its relay is heard, even if `suspect_after_ms` changes
        detector = detector.forget([relay_of(name)])
    return replace(membership, remote={**membership.remote, name: site}, detector=detector)


def remote_members(relay: str, view: bytes) -> tuple[MemberIncarnation, ...] | None:
    """Return the members in the payload of a view of the relay's source site; None if it is no such view."""
    site = relay.partition("/")[0]
    try:
        rows: list[tuple[Any, Any]] = [(address, incarnation) for address, incarnation in json.loads(view)["members"]]
    except UNREADABLE:
        return None
    for address, incarnation in rows:
        if not isinstance(address, str) or not is_address(address) or not address.startswith(f"{site}/"):
            return None
        if type(incarnation) is not int or not 1 <= incarnation <= MAX_NUMBER:
            return None
    return tuple(MemberIncarnation(*row) for row in rows) if len(dict(rows)) == len(rows) else None


def payload_of(record: Data) -> dict[str, Any]:
    """Parse the payload of a record that the sequencer decided by itself. Raises ProtocolViolation."""
    try:
        body: dict[str, Any] = dict(json.loads(record.payload).items())
    except UNREADABLE as error:
        raise _unreadable(record, error) from error
    return body


def _unreadable(record: Data, error: Exception) -> ProtocolViolation:
    return ProtocolViolation(f"the {record.kind} of seqno {record.seqno} can't be read: {error!r:.200}")


def refused_kind(payload: bytes) -> str:
    """Return the kind of the record that a `refused` is about; "" if its payload does not tell."""
    try:
        return str(json.loads(payload)["kind"])
    except UNREADABLE:
        return ""
