"""What a site that agrees with others tells an operator."""

from __future__ import annotations

import logging

from ordering.agreement.messages import Installed, NotExcluded, Outside
from ordering.agreement.site_state import Dropped, Notice, OtherLog


def told(notice: Notice) -> tuple[int, str]:
    """A notice in words, behind a level of logging."""
    if isinstance(notice, Installed):
        return logging.INFO, f"view {notice.view.id} of sites: {', '.join(life.name for life in notice.view.members)}"
    if isinstance(notice, Outside):
        return logging.WARNING, "the other sites go on without this one; it asks to join again"
    if isinstance(notice, NotExcluded):
        return logging.WARNING, f"without {', '.join(notice.names)} too few sites are left"
    if isinstance(notice, OtherLog):
        return logging.WARNING, (
            f"the log of site {notice.site} was lost, and begun anew: what it says does not count here. Exclude it"
        )
    if isinstance(notice, Dropped):
        return logging.WARNING, (
            f"what comes next in the order stood in {notice.place}, and retention has dropped it here: it waits until "
            "a relay brings it again"
        )
    reached = ", ".join(life.name for life in notice.reached)
    return logging.WARNING, f"it waits for more sites: {notice.needed} must answer, and these do: {reached}"
