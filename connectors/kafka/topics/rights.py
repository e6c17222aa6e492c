"""The rights of each role in a Kafka that grants none by default: exactly these, for one group at one site.

READ and WRITE include DESCRIBE. Committing an offset of a topic needs READ on it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from kafka.admin import ACL, ACLOperation, ACLPermissionType, ACLResourcePatternType, ResourcePattern, ResourceType
from kafka.errors import SecurityDisabledError

from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sites import Direction, Sites
from ordering.base.errors import KafkaRefused, UsageError
from ordering.base.names import Role, Topic, check_group, check_site

Who = Literal["member", "observer", "sequencer", "ledger", "maintainer", "archivist", "relay"]

_READ, _WRITE, _CONFIGS = "READ", "WRITE", "DESCRIBE_CONFIGS"
_OF_TOPICS: Mapping[str, Mapping[Role, tuple[str, ...]]] = {
    "member": {
        "forward": (_READ, _WRITE),  # its incarnation is an offset committed there
        "data": (_READ,),
        "epoch": (_READ,),
        "inbox": (_READ, _WRITE),
        "memory": (_READ, _WRITE),
        "cast": (_WRITE,),  # reading casts of all sites needs a prefix, see below
    },
    "observer": {
        "forward": ("DESCRIBE",),
        "data": (_READ,),
        "epoch": (_READ,),
        "memory": (_READ, _WRITE),  # notes that its name has a position
    },
    "sequencer": {
        "forward": (_READ, _WRITE, _CONFIGS),  # it writes ticks
        "data": (_READ, _WRITE, _CONFIGS),
        "epoch": (_READ, _WRITE, _CONFIGS),
        "dead-letter": (_READ, _WRITE, _CONFIGS),  # --listen shows the newest
    },
    "ledger": {"data": (_READ,), "epoch": (_READ,)},
    "maintainer": {
        "forward": ("DELETE",),  # deletes records, like every role that purges
        "inbox": (_READ, "DELETE"),
        "memory": (_READ, _WRITE),  # notes what it deletes of letters
        "dead-letter": ("DELETE",),
        "data": (_READ,),  # shows which records are not needed any more
        "epoch": (_READ,),
    },
    "archivist": {
        "data": (_READ, "DELETE"),
        "epoch": (_READ, _WRITE),  # notes the snapshot from which on DATA stays
    },
}
_OF_RELAYED = (_READ, _WRITE, _CONFIGS)


class Right(NamedTuple):
    """The right to an operation on the topic or consumer group of that name, or on all with that prefix."""

    operation: str
    kind: Literal["topic", "group"]
    name: str
    is_prefix: bool = False

    def command(self, principal: str, servers: str) -> str:
        """Return the command of Kafka's own tool that grants it."""
        pattern = " --resource-pattern-type prefixed" if self.is_prefix else ""
        operation = "".join(word.capitalize() for word in self.operation.split("_"))
        return (
            f"kafka-acls --bootstrap-server {servers} --add --allow-principal {shlex.quote(principal)} "
            f"--operation {operation} --{self.kind} {self.name}{pattern}"
        )

    def to_acl(self, principal: str) -> ACL:
        """Return the right as kafka-python's ACL."""
        kind = ResourceType.TOPIC if self.kind == "topic" else ResourceType.GROUP
        pattern = ACLResourcePatternType.PREFIXED if self.is_prefix else ACLResourcePatternType.LITERAL
        resource = ResourcePattern(kind, self.name, pattern)
        return ACL(principal, "*", ACLOperation[self.operation], ACLPermissionType.ALLOW, resource)


def rights_of(who: Who, group: str, site: str) -> list[Right]:
    """Return the rights of a role other than the relay, for a group at a site. Raises UsageError."""
    check_group(group)
    check_site(site)
    rights = [
        Right(operation, "topic", str(Topic(group, role, site)))
        for role, operations in _OF_TOPICS[who].items()
        for operation in operations
    ]
    if who in ("member", "observer"):
        rights.append(Right(_READ, "group", f"abcast.member.{group}.{site}.", is_prefix=True))
        rights.append(Right("DESCRIBE", "group", _signs(site)))  # to say why nothing is ordered
    if who == "sequencer":
        # Relayed topics have the names of the sites that their records come from.
        rights += [Right(each, "topic", f"abcast.{group}.relayed-", is_prefix=True) for each in _OF_RELAYED]
        rights.append(Right(_READ, "topic", f"abcast.{group}.entries-", is_prefix=True))
        rights.append(Right(_READ, "group", _signs(site)))  # its signs of life
    elif who == "archivist":
        rights.append(Right("DESCRIBE", "topic", f"abcast.{group}.relayed-", is_prefix=True))
    elif who == "maintainer":
        rights.append(Right("DESCRIBE", "topic", f"abcast.{group}.relayed-", is_prefix=True))
        rights.append(Right("DESCRIBE", "group", f"abcast.member.{group}.{site}.", is_prefix=True))  # taken letters
    else:  # the copies of other sites' casts, too
        rights.append(Right(_READ, "topic", f"abcast.{group}.cast.", is_prefix=True))
    return rights


def rights_beside(who: Who, sites: Sites, group: str, site: str) -> list[Right]:
    """Return the further rights of a role other than the relay, where there are other sites. Raises UsageError.

    A sequencer reads topics of agreeing sites in the same Kafka. A maintainer deletes letters from the copies of other
    sites' inboxes; in the Kafkas on the way, and in the last one, it reads which of them have arrived.
    """
    sites.connection(site)
    if who == "maintainer":
        copies = [str(Topic(group, "inbox", other)) for other in sites.copied_inboxes(site)]
        return [Right(operation, "topic", name) for name in copies for operation in (_READ, "DELETE")]
    if who != "sequencer" or sites.mode != "isis":
        return []
    shared = [other for other in sites.connections if other != site and sites.shares_kafka(site, other)]
    roles: tuple[Role, ...] = ("forward", "data")
    return [Right(_READ, "topic", str(Topic(group, role, other))) for other in shared for role in roles]


def rights_of_relay(sites: Sites, group: str, direction: Direction) -> list[Right]:
    """Return the rights of the relay of one direction, at both ends. Raises UsageError."""
    check_group(group)
    for site in direction:
        sites.connection(site)
    if direction not in sites.directions():
        raise UsageError(f"{direction.source} and {direction.target} share no link: the sites' file has none.")
    return sorted(set(_of_relay(sites, group, direction)))


def _of_relay(sites: Sites, group: str, direction: Direction) -> Iterator[Right]:
    source, target = direction

    def of(role: Role, site: str, *operations: str, neighbour: str = "") -> Iterator[Right]:
        for operation in operations:
            yield Right(operation, "topic", str(Topic(group, role, site, neighbour)))

    is_apart = not sites.shares_kafka(source, target)
    reads_order, reads_log = sites.home == source or not sites.one_order, sites.mode == "isis"
    for site in sites.connections:
        if (site in direction and reads_order) or (site == source and reads_log):
            yield from of("data", site, _READ)
            yield from of("epoch", site, _READ)
        elif site in direction or is_apart:  # shows the sites and groups in a Kafka
            yield from of("data", site, "DESCRIBE")
        if is_apart and sites.leads_to_inbox(direction, site):  # letters, to sites behind the neighbour too
            yield from of("inbox", site, _READ, _WRITE, "CREATE")
        if is_apart and sites.next_hop(target, site) == source:
            yield from of("cast", site, _READ, _WRITE, "CREATE")
    if sites.home == source:  # a copy of the order
        yield from of("data", target, _WRITE)
        yield from of("epoch", target, _WRITE)
    elif not sites.one_order:  # messages are copied out of DATA; the neighbour's topic shows which ones it has
        yield from of("relayed", target, _WRITE, "CREATE", neighbour=source)
        yield Right("DESCRIBE", "group", _signs(target))  # to know how far the neighbour has considered them
    else:
        yield from of("forward", source, _READ)
        yield from of("relayed", target, _READ, _WRITE, "CREATE", "ALTER", neighbour=source)  # as many partitions
        if sites.mode == "isis":
            yield from of("entries", target, _READ, _WRITE, "CREATE", neighbour=source)


def _signs(site: str) -> str:
    return f"abcast.sequencer.{site}"


def grant(connection: Connection, principal: str, rights: Sequence[Right]) -> None:
    """Grant the rights to a principal. Raises KafkaRefused, BrokerUnreachable."""
    with connection.admin() as admin, connection.reachable("ALTER", "the cluster"):
        failed = admin.create_acls([right.to_acl(principal) for right in rights])["failed"]
        if SecurityDisabledError in failed:
            raise KafkaRefused(
                f"Kafka at {connection.bootstrap_servers} has no authorizer, so everybody may do everything there."
            )
        if failed:
            raise failed[0]


def check_principal(text: str) -> str:
    """Return the text if it is a principal in Kafka's notation. Raises UsageError."""
    kind, colon, name = text.partition(":")
    if not colon or not kind.isalpha() or not name:
        raise UsageError(f"{text!r} is no principal: write User:NAME.")
    return text
