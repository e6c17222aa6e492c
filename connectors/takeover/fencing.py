"""Checks that a group still belongs to a sequencer: no newer one has claimed it, and no other site is its home."""

from __future__ import annotations

from connectors.kafka.log.data_log import DataLog
from ordering.base.errors import Fenced, UsageError


def check_is_home(data: DataLog) -> None:
    """Raise UsageError if another site was made the home of the group."""
    move, topic = data.epochs.read().move, data.topic
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
        raise Fenced(
            f"group {data.topic.group}: a newer sequencer took over with epoch {newest.epoch} ({newest.who}). This one "
            f"(epoch {epoch}) stops. Run one sequencer per site; to hand over on purpose, stop this one first."
        )
