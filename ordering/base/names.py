"""Names: groups, sites, members, and the topics they map to.

A name is checked once, where it enters: the client, the command line, the sequencer's input. Behind that point it is
simply a string. Topic names are built and parsed only here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ordering.base.errors import UsageError

MAX_GROUP_LENGTH = 128
MAX_SITE_LENGTH = 32
MAX_MEMBER_NAME_LENGTH = 128
MAX_ADDRESS_LENGTH = MAX_SITE_LENGTH + len("/") + MAX_MEMBER_NAME_LENGTH
DEFAULT_SITE = "local"
RESERVED_PREFIX = "abcast."
"""The prefix of abcast's own sender names, such as the ones for ticks and settings."""
RELAY_NAME = f"{RESERVED_PREFIX}relay"
"""The name under which a relay sends for the site it reads from. No member can have it."""

TICK_NAME = f"{RESERVED_PREFIX}tick"
"""The name under which the sequencer's job writes ticks. No member can have it."""

ADMIN_NAME = f"{RESERVED_PREFIX}admin"
"""The name under which an operator changes a group's settings. No member can have it."""

Role = Literal["forward", "data", "epoch", "dead-letter", "inbox", "memory", "cast", "relayed", "entries"]
ROLES: tuple[Role, ...] = ("forward", "data", "epoch", "dead-letter", "inbox", "memory", "cast", "relayed", "entries")
BY_RELAYS: tuple[Role, ...] = ("relayed", "entries")
"""The roles that a relay fills. Their topics' names have the relay's source site, too."""

_GROUP = re.compile(rf"[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{MAX_GROUP_LENGTH - 1}}}")
SITE_PATTERN = rf"[A-Za-z0-9_-]{{1,{MAX_SITE_LENGTH}}}"
_SITE = re.compile(SITE_PATTERN)
_MEMBER_NAME_PATTERN = rf"[A-Za-z0-9._-]{{1,{MAX_MEMBER_NAME_LENGTH}}}"
_MEMBER_NAME = re.compile(_MEMBER_NAME_PATTERN)
ADDRESS_PATTERN = f"{SITE_PATTERN}/{_MEMBER_NAME_PATTERN}"
_LETTERS = "letters, digits, '_' and '-'"


def check_group(group: str) -> str:
    """Return `group`, or raise UsageError if Kafka could not carry it in a topic name."""
    if not _GROUP.fullmatch(group):
        raise UsageError(
            f"group name {group!r} can't be used: take 1 to {MAX_GROUP_LENGTH} {_LETTERS} (and '.' inside)."
        )
    return group


def check_site(site: str) -> str:
    """Return `site`, or raise UsageError."""
    if not _SITE.fullmatch(site):
        raise UsageError(f"site name {site!r} can't be used: take 1 to {MAX_SITE_LENGTH} {_LETTERS}.")
    return site


@dataclass(frozen=True, slots=True)
class Address:
    """A member's address, written `site/name`."""

    site: str
    name: str

    def __str__(self) -> str:
        return f"{self.site}/{self.name}"

    @classmethod
    def parse(cls, text: str, default_site: str | None = None) -> Address:
        """Parse `site/name`, or `name` alone if there is a default site. Raises UsageError, not for a reserved name."""
        site, slash, name = text.partition("/")
        if not slash and default_site is not None:
            site, name = default_site, text
        if not _SITE.fullmatch(site) or not _MEMBER_NAME.fullmatch(name):
            raise UsageError(
                f"member {text!r} can't be used: write SITE/NAME, with up to {MAX_SITE_LENGTH} characters for the site "
                f"and {MAX_MEMBER_NAME_LENGTH} for the name, of {_LETTERS} (and '.' in the name)."
            )
        return cls(site, name)


def is_address(text: str) -> bool:
    """Whether `text` is a well-formed `site/name`."""
    site, slash, name = text.partition("/")
    return bool(slash and _SITE.fullmatch(site) and _MEMBER_NAME.fullmatch(name))


def is_relay(address: str) -> bool:
    """Whether `address` is a relay's."""
    return address.endswith(f"/{RELAY_NAME}")


def is_tick(address: str) -> bool:
    """Whether `address` is a tick's."""
    return address.endswith(f"/{TICK_NAME}")


def is_reserved(address: str) -> bool:
    """Whether `address` has a name that no member can have: a relay's, a tick's, or another of abcast's own."""
    return address.partition("/")[2].startswith(RESERVED_PREFIX)


def relay_of(site: str) -> str:
    """Return the address of the relays that read from `site`."""
    return f"{site}/{RELAY_NAME}"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of a group at a site: `abcast.<group>.<role>.<site>`.

    Records that a relay brings from a neighbouring site have a topic of their own,
    `abcast.<group>.relayed-<neighbour>.<site>`. So have the entries of the neighbour's log:
    `abcast.<group>.entries-<neighbour>.<site>`.
    """

    group: str
    role: Role
    site: str
    neighbour: str = ""

    def __str__(self) -> str:
        role = f"{self.role}-{self.neighbour}" if self.neighbour else self.role
        return f"abcast.{self.group}.{role}.{self.site}"

    @classmethod
    def of(cls, name: str) -> Topic:
        """Parse the name of a topic that is abcast's. Raises ValueError for another one."""
        topic = cls.parse(name)
        if topic is None:
            raise ValueError(f"{name} is no topic of abcast")
        return topic

    @classmethod
    def parse(cls, text: str) -> Topic | None:
        """Parse a topic's name; None if it is not one of abcast's. A site has no dot, so this is unambiguous."""
        parts = text.rsplit(".", 2)
        if len(parts) != 3 or not parts[0].startswith("abcast."):
            return None
        group, role, site, neighbour = parts[0].removeprefix("abcast."), parts[1], parts[2], ""
        if role.startswith(tuple(f"{known}-" for known in BY_RELAYS)):
            role, _, neighbour = role.partition("-")
        if bool(neighbour) != (role in BY_RELAYS) or (neighbour and not _SITE.fullmatch(neighbour)):
            return None
        for known in ROLES:
            if role == known and _GROUP.fullmatch(group) and _SITE.fullmatch(site):
                return cls(group, known, site, neighbour)
        return None
