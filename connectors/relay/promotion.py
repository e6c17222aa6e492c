"""Making a copy the home of a hub, when the home is lost or is to be replaced.

1. If the old home answers, it is fenced: a *move* in its EPOCH topic, so that no sequencer starts there again; a claim,
   so that the one that runs stops; and a seal in its DATA, so that nothing counts that it still writes.
2. What other sites have and the new home lacks is copied: from the old home up to its seal, or from the copy that
   reaches furthest.
3. A move is appended to the EPOCH topic of the new home. From there on the topic is claimed as every home's is
   (`connectors.sequencer.takeover`): claim, seal, opening snapshot.

Invariant. The new home goes on after everything that any reachable site has, in an epoch that no home before had or
will have: each move begins a new thousand million of them. Its sequencer starts only where the move stands, so a crash
before that leaves a copy, and the same again makes it the home.

If the old home does not answer, what only it had is not in the order any more; `Promotion.not_copied` says so. Its
members may have delivered it. So when the old home answers again, the first relay that is to bring it the order fences
it (1). The relay refuses to fill its topics, as with any copy that has another message under a seqno: they must be made
anew.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import NamedTuple

from connectors.kafka.codec import encode_data
from connectors.kafka.data_log import DataLog
from connectors.kafka.epochs import Move, encode_claim, encode_move
from connectors.kafka.sending import append, producing
from connectors.kafka.sites import Sites
from ordering.errors import BrokerUnreachable, TopicMissing, UsageError
from ordering.reader import epoch_of
from ordering.records import STRAY
from ordering.sequencer import seal

EPOCHS_OF_A_HOME = 10**9

_logger = logging.getLogger(__name__)


class Promotion(NamedTuple):
    """What was done: the order goes on after `last_seqno`, of which `copied` seqnos were copied just now.

    `not_copied`: sites that did not answer, so that what only they had is not in the order.
    """

    last_seqno: int
    copied: int
    not_copied: tuple[str, ...]


def promote(sites: Sites, group: str, site: str) -> Promotion:
    """Make `site`, which must be the home in the sites' file, the home of the group.

    Raises UsageError (it is no copy, or has another order than a site that reaches further), BrokerUnreachable.
    """
    if sites.home != site:
        raise UsageError(f'write home = "{site}" into the sites\' file first, and give that file to all sites.')
    with ExitStack() as open_logs:
        copy = open_logs.enter_context(DataLog(sites.connection(site), group, site))
        if not copy.is_copy():
            raise UsageError(f"{site} is no copy of group {group}: it has a sequencer of its own, or no history.")
        others: list[DataLog] = []
        silent: list[str] = []
        for name in sites.connections:
            if name != site:
                try:
                    others.append(open_logs.enter_context(DataLog(sites.connection(name), group, name)))
                except (BrokerUnreachable, TopicMissing) as error:
                    _logger.warning("%s does not answer: %s", name, error)
                    silent.append(name)
        for other in others:
            if other.claims():
                fence(other, site)
        before = copy.state().seqno
        for other in sorted(others, key=lambda known: known.state().seqno):
            copy_rest(other, copy)
        state = copy.state()
        above = (state.epoch // EPOCHS_OF_A_HOME + 1) * EPOCHS_OF_A_HOME
        append(copy.connection, copy.claims_topic, (None, *encode_move(Move(site, above))))
        return Promotion(state.seqno, state.seqno - before, tuple(silent))


def fence(old_home: DataLog, new_home: str) -> None:
    """No sequencer of the old home decides anything from here on. May be done again."""
    move = old_home.move()
    if move is not None and move.home == new_home:
        return
    above = move.above if move is not None else 0
    connection = old_home.connection
    append(connection, old_home.claims_topic, (None, *encode_move(Move(new_home, above))))
    claimed_at = append(connection, old_home.claims_topic, (None, *encode_claim(old_home.end())))
    append(connection, str(old_home.topic), encode_data(seal(old_home.epoch_of_claim(claimed_at))))
    _logger.warning("group %s: %s is not the home any more, %s is", old_home.topic.group, old_home.topic.site, new_home)


def fence_former_home(home: DataLog, other: DataLog) -> bool:
    """Fence the other site's sequencer, if `home` was made the home in its place; whether it was."""
    was_home = bool(other.claims()) and home.is_promoted()
    if was_home:
        fence(other, home.topic.site)
    return was_home


def copy_rest(other: DataLog, copy: DataLog) -> None:
    """Write what another site's log has beyond the copy's end, as it stands."""
    known, theirs = copy.state(), other.state()
    if theirs.seqno <= known.seqno:
        return
    if known.seqno and epoch_of(known.seals, known.seqno) != epoch_of(theirs.seals, known.seqno):
        raise UsageError(
            f"{copy.topic} and {other.topic} have different messages under seqno {known.seqno}: one of them was left "
            "behind when the home moved. Promote a site that has what the others have."
        )
    start = other.after(known.seqno)
    if start.reader.epoch > known.epoch:
        append(copy.connection, str(copy.topic), encode_data(seal(start.reader.epoch)))
    with producing(copy.connection) as producer:
        for stored in other.records(start.offset, other.end()):  # they are few, and this is done once
            if stored.data.kind != STRAY:
                append(copy.connection, str(copy.topic), encode_data(stored.data), producer=producer)
