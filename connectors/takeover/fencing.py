"""Checks that a group still belongs to a sequencer: EPOCH has its claim, and no newer one; no other site is its home.

EPOCH may lose its end (a power failure, an unclean election). Then it may give the epochs of lost claims once more. A
sequencer that runs finds that its claim is gone, and takes over again, with a higher epoch (`survey`).
"""

from __future__ import annotations

from connectors.kafka.codec.epochs import IS_RESTORED
from connectors.kafka.log.data_log import DataLog
from ordering.base.errors import AbcastError, Fenced, UsageError


class ClaimLost(AbcastError):
    """EPOCH no longer has the claim of a running sequencer, which has to take over anew."""

    retriable = True


def check_is_home(data: DataLog) -> None:
    """Raise UsageError if another site was made the home of the group, or a restore is under way."""
    move, topic = data.epochs.read().move, data.topic
    if data.epochs.known.is_restored_now():
        raise UsageError(f"group {topic.group} {IS_RESTORED}.")
    if move is not None and move.home != topic.site:
        raise UsageError(
            f"the home of group {topic.group} is {move.home} now, not {topic.site}: give this site the new sites' "
            f"file. To make it a copy, delete its topics of the group, then run `abcast site add {topic.site}`."
        )


def check_not_fenced(data: DataLog, epoch: int) -> None:
    """Raise Fenced if a sequencer with an epoch newer than `epoch` has begun to take over.

    Raises UsageError if another site was made the home.
    """
    check_is_home(data)
    newest = data.epochs.read().newest_claim
    if newest is not None and newest.epoch > epoch:
        if newest.is_planned:
            raise Fenced(f"group {data.topic.group}: handed over to {newest.who}, epoch {newest.epoch}, by request.")
        raise Fenced(
            f"group {data.topic.group}: a newer sequencer took over with epoch {newest.epoch} ({newest.who}). This one "
            f"(epoch {epoch}) stops. Run one sequencer per site; to hand over on purpose, stop this one first."
        )


def check_is_claimed(data: DataLog, epoch: int) -> None:
    """Raise ClaimLost if EPOCH, as it was read last, does not have this process's claim of the epoch."""
    if not any(claim.epoch == epoch and claim.is_own for claim in reversed(data.epochs.known.claims)):
        raise ClaimLost(
            f"{data.epochs.topic} no longer has this sequencer's claim (epoch {epoch}): has a broker lost its end? "
            "A takeover finds out whether this sequencer may go on."
        )
