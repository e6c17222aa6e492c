"""Notices of a site that agrees with others, in words for an operator."""

from __future__ import annotations

import logging

from ordering.agreement.messages import Hindrance, Installed, NotExcluded, Outside
from ordering.agreement.site_state import Dropped, Notice, OtherLog

_ADVICE = {
    Hindrance.OUTSIDE: "this site is outside the view. Give the command for a site of the view",
    Hindrance.NOT_OTHERS: "the view has no other site of that name",
    Hindrance.TOO_FEW: "too few sites would be left. Bring another site back first",
}


def describe(notice: Notice) -> tuple[int, str]:
    """Return the level of logging of a notice, and its text."""
    if isinstance(notice, Installed):
        return logging.INFO, f"view {notice.view.id} of sites: {', '.join(site.name for site in notice.view.members)}"
    if isinstance(notice, Outside):
        return logging.WARNING, "the other sites go on without this one; it asks to join again"
    if isinstance(notice, NotExcluded):
        return logging.WARNING, f"the exclusion of {', '.join(notice.names)} has no effect: {_ADVICE[notice.hindrance]}"
    if isinstance(notice, OtherLog):
        return logging.WARNING, (
            f"site {notice.site} has lost its log and begun another, whose entries do not count here. Exclude the site"
        )
    if isinstance(notice, Dropped):
        return logging.WARNING, (
            f"retention has dropped the next message in the order here, at {notice.place}: the site waits until a "
            "relay brings it again"
        )
    reached = ", ".join(site.name for site in notice.reached)
    return logging.WARNING, f"the site waits for other sites: {notice.needed} must answer, and only these do: {reached}"
