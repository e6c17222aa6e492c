"""Choose the groups of a site that a job serves: all, or by patterns, or a share of them.

A job never sees a topic of any other group: `connectors.kafka.groups.topic_finder` drops these.
"""

from __future__ import annotations

import re
import zlib
from fnmatch import fnmatchcase
from typing import NamedTuple

from ordering.base.errors import UsageError

LOOK_EVERY_S = 10.0
"""The default interval at which a job looks for new topics."""

_ALL = "*"
_PATTERN = re.compile(r"[A-Za-z0-9._*?\[\]!-]+")
_SHARE = re.compile(r"([1-9][0-9]{0,3})/([1-9][0-9]{0,3})")


class GroupChoice(NamedTuple):
    """`patterns`: shell patterns; a group's whole name must match one. () chooses all groups.

    `share`: (I, N) chooses the I-th of N disjoint shares of these, by a hash of the name that is the same everywhere.
    """

    patterns: tuple[str, ...] = ()
    share: tuple[int, int] = (1, 1)

    @classmethod
    def parse(cls, text: str) -> GroupChoice:
        """Parse patterns and at most one share, I/N, with commas between them. Raises UsageError."""
        parts = [part.strip() for part in text.split(",")]
        shares = [found for part in parts if (found := _SHARE.fullmatch(part))]
        patterns = tuple(part for part in parts if not _SHARE.fullmatch(part))
        number, of = map(int, shares[0].groups()) if shares else (1, 1)
        if len(shares) > 1 or number > of or not all(map(_PATTERN.fullmatch, patterns)):
            raise UsageError(
                f"the groups {text!r} are not names and patterns: write them like 'orders,pay-*', and a share of them "
                "like '1/4'."
            )
        return cls(() if patterns == (_ALL,) else patterns, (number, of))

    def __str__(self) -> str:
        share = (f"{self.share[0]}/{self.share[1]}",) if self.share != (1, 1) else ()
        return ",".join((*self.patterns, *share) or (_ALL,))

    def has(self, group: str) -> bool:
        """Whether the job serves that group."""
        number, of = self.share
        if zlib.crc32(group.encode("ascii")) % of != number - 1:
            return False
        return not self.patterns or any(fnmatchcase(group, pattern) for pattern in self.patterns)


ALL_GROUPS = GroupChoice()
