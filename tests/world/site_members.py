"""Guests of a world of sites: members as they ship (`tests.world.clients`), one at each site.

* `outbox`: they have outboxes, which may be restored from a copy.
* `views`: they join; `flush`: they answer flushes; `closed`: the group is closed.
* `forget`: an operator has one forgotten now and then.

They broadcast, are killed, and start again, beside members that only send. In a closed group, and behind a FORGET,
those would be refused: there are none. At the end each message that a member was to see ordered is ordered once, unless
a log has lost something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.topics.senders import forget_senders, known_senders
from ordering.base.errors import AbcastError, ProtocolViolation, UsageError
from ordering.base.kinds import DATA_KINDS
from ordering.base.names import Address
from ordering.base.records import SETTINGS, Data
from ordering.checker.anomalies import DUPLICATE, LOST
from ordering.membership.settings import Settings
from tests.world.actors import Killed
from tests.world.clients import Disk, GroupMember, parts
from tests.world.guests import Guests
from tests.world.jobs import LATER
from tests.world.kafka import WorldConnection, partition
from tests.world.ledgers import GROUP, Table
from tests.world.stepping import Process
from tests.world.world import World

GUESTS = ("outbox", "views", "flush", "closed", "forget")
JOINING = frozenset({"views", "flush", "closed"})
ACTIONS = {"broadcast": 6, "turn": 10, "crash": 1, "back_up": 1, "restore": 1}
UNANSWERED = 0.05
"""The share of their records that get no answer: half of them are lost."""
INCOMPARABLE = "incomparable"
FORGETS = 0.02
"""Probability at each action that a member is forgotten."""


class SiteMembers:
    """The members; none if no guest has come."""

    def __init__(self, world: World[Any], guests: Guests, suspect_after_ms: int) -> None:
        """`suspect_after_ms`: of the group; a flush may take half as long."""
        self.world, self.guests, self.disk = world, guests, Disk()
        self.settings = Settings(guests.has("closed"), guests.has("flush"), suspect_after_ms, suspect_after_ms // 2)
        self.join = bool(guests.names & JOINING)
        self.members = [self._new(name) for name in world.names] if guests.names & {*GUESTS} else []

    def _new(self, name: str) -> GroupMember:
        def connect(process: Process) -> WorldConnection:
            connection: WorldConnection = self.world.sites[name].connection
            return replace(connection, bootstrap_servers=f"{process.name}:1")

        has_outbox = self.guests.has("outbox")
        return GroupMember(connect, self.disk, Table(), Address(name, "m"), has_outbox=has_outbox, joins=self.join)

    @property
    def are_alone(self) -> bool:
        """Whether nobody else sends."""
        return self.guests.has("closed") or self.guests.has("forget")

    def patches(self) -> dict[str, Any]:
        """Return the parts of clients that are replaced. An operator has the version that the jobs have."""
        kinds = {"connectors.relay.bootstrap.DATA_KINDS": {*DATA_KINDS, LATER}} if self.guests.has("counts") else {}
        return {
            **kinds,
            **parts(self.disk, lambda seconds: self.world.pass_time(int(seconds * 1_000), (), 0.0)),
            "secrets.randbelow": self.guests.dice.randrange,
            "time.time_ns": lambda: round(self.world.actors.now_s * 1e9),
        }

    def begin(self, site: str) -> None:
        """Give the group its settings, at a site."""
        if self.members:
            place, key = partition("forward", site), f"{site}/abcast.admin".encode()
            headers = forward_headers(1, 1, kind=SETTINGS)
            self.world.sites[site].kafka.topics.append(place, key, self.settings.to_json(), headers)

    def act(self) -> None:
        """Let one of them do something."""
        if not self.members:
            return
        dice = self.guests.dice
        member = dice.choice(self.members)
        [kind] = dice.choices(list(ACTIONS), list(ACTIONS.values()))
        self.world.tell(f"  {member.address}: {kind}")
        with self.world.unanswered(UNANSWERED):
            self._let(member, kind)
        if self.guests.has("forget") and dice.random() < FORGETS:
            self._forget(member)

    def _let(self, member: GroupMember, kind: str) -> None:
        with self.world.actors.acting(str(member.address)):
            try:
                if kind == "back_up":
                    self.disk.back_up(member.outbox)
                elif kind == "crash":
                    member.crash()
                elif kind == "restore":
                    member.crash(backup=self.guests.dice.randrange(8))
                else:
                    member.start()
                    for _ in range(self.guests.dice.randint(1, 3) if kind == "broadcast" else 0):
                        member.broadcast()
                    member.turn()
            except Killed:
                member.crash()
            except AbcastError as error:
                self.world.note_error(str(member.address), error)
                if isinstance(error, ProtocolViolation) and "delete the outbox" in str(error):
                    member.crash(gives_up=True)
                if isinstance(error, UsageError) and "take another name" in str(error):
                    member.take_another_name()

    def _forget(self, member: GroupMember) -> None:
        """Ask to forget a member."""
        site = self.world.sites[member.address.site]
        with self.world.actors.acting("operator"), suppress(AbcastError):
            known = known_senders(site.connection, GROUP, site.name)
            rows = [each.row for each in known if each.address == str(member.address)]
            forget_senders(site.connection, GROUP, site.name, rows, timeout_s=0.0)

    def settle(self) -> None:
        """Let all of them go on."""
        for member in self.members:
            self._let(member, "turn")

    def end_the_incomparable(self, site: str) -> None:
        """End the members at a site that can't notice another log: they have fetched no record to compare.

        See `connectors.kafka.log.same_log_consumer`.
        """
        for member in self.members:
            if member.address.site == site and member.is_incomparable:
                self.world.seen[INCOMPARABLE] += 1
                member.crash()

    def are_idle(self, gone: Collection[str] = ()) -> bool:
        """Whether no member waits. `gone`: sites that do not count."""
        return all(member.is_idle for member in self.members if member.address.site not in gone)

    def judge(self, records: Iterable[Data], gone: Collection[str] = ()) -> None:
        """Blame lost and repeated messages. `records`: of DATA; `gone`: sites that do not count."""
        times = Counter(each.payload for each in records)
        for member in self.members:
            if again := [payload for payload in member.sent if times[payload] > 1]:
                self.world.blame(DUPLICATE, f"of {member.address}, these are ordered again: {again}")
            if member.address.site in gone:
                continue
            if lost := [payload for payload in member.owed if not times[payload]]:
                self.world.blame(LOST, f"{member.address} has lost {lost}.")
            if not member.is_idle:
                self.world.blame(LOST, f"{member.address} waits: {dict(self.world.seen)}")
