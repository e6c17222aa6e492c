"""Choose the groups of a site that a job serves: all, or the ones that match its patterns.

A job never sees a topic of any other group: `connectors.kafka.groups.topic_finder` drops these.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import NamedTuple

from ordering.base.errors import UsageError

LOOK_EVERY_S = 10.0
"""The default interval at which a job looks for new topics."""

_ALL = "*"
_PATTERN = re.compile(r"[A-Za-z0-9._*?\[\]!-]+")


class GroupChoice(NamedTuple):
    """`patterns`: shell patterns; a group's whole name must match one. () chooses all groups."""

    patterns: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> GroupChoice:
        """Parse patterns with commas between them, at least one. Raises UsageError."""
        patterns = tuple(part.strip() for part in text.split(","))
        for pattern in patterns:
            if not _PATTERN.fullmatch(pattern):
                raise UsageError(f"the groups {text!r} are not names and patterns: write them like 'orders,pay-*'.")
        return cls(() if patterns == (_ALL,) else patterns)

    def __str__(self) -> str:
        return ",".join(self.patterns or (_ALL,))

    def has(self, group: str) -> bool:
        """Whether the job serves that group."""
        return not self.patterns or any(fnmatchcase(group, pattern) for pattern in self.patterns)


ALL_GROUPS = GroupChoice()
