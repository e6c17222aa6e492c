"""Which groups of a site a job serves: those whose names match one of its patterns, or all; and how often it looks.

A job sees no topic of any other group: what looks for topics drops them (`connectors.kafka.groups.topic_finder`).
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import NamedTuple

from ordering.base.errors import UsageError

LOOK_EVERY_S = 10.0
"""How often a job looks for new topics, unless it is told otherwise."""

_PATTERN = re.compile(r"[A-Za-z0-9._*?\[\]!-]+")


class GroupChoice(NamedTuple):
    """`patterns`: as a shell's, of which one must match the whole name; none for all groups."""

    patterns: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> GroupChoice:
        """Inverse of `str`: patterns with commas between them. Raises UsageError."""
        patterns = tuple(part.strip() for part in text.split(","))
        for pattern in patterns:
            if not _PATTERN.fullmatch(pattern):
                raise UsageError(f"the groups {text!r} are no names and patterns, as 'orders,pay-*' has them.")
        return cls(patterns)

    def __str__(self) -> str:
        return ",".join(self.patterns)

    def has(self, group: str) -> bool:
        """Whether the job serves that group."""
        return not self.patterns or any(fnmatchcase(group, pattern) for pattern in self.patterns)


ALL_GROUPS = GroupChoice()
