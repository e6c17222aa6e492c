"""The promotion of a copy to the home of a hub, when the home is lost or is to be replaced.

1. If another site answers and was a home, it is fenced: a *move* in its EPOCH topic, so that its sequencer stops and
   none starts there again; a claim behind the move; and that claim's seal in its DATA, so that readers ignore whatever
   is still written there.
2. Records that the new home lacks are copied: from the old home up to its seal, or from the copy that reaches furthest.
   The home of the highest epoch has the order that counts. A site with other messages is no source (`_sources`). If the
   new home itself is such a site, the promotion ends before step 1.
3. A move is appended to the EPOCH topic of the new home. From there on the topic is claimed as every home's is
   (`connectors.takeover.takeover`): claim, seal, opening snapshot.

Invariant. The new home goes on after every record that any reachable site has, in an epoch that no former home had or
will have: each move begins a new thousand million of epochs. A sequencer starts only at a site with the move. So a
crash before the move leaves a copy, and another promotion makes it the home.

Each step may be cut off at any point and done again. A site is fenced once its DATA has the seal of a claim behind the
move, and not before. After a crash before the seal, the old home's DATA counts up to the next try, which copies it.
After a crash behind the last step, the site is the home.

If the old home does not answer, records that only it had are no longer in the order, as `Promotion.not_copied` says.
Its members may have delivered them. So when the old home answers again, the first relay towards it fences it (1), and
refuses to fill its topics, as with any copy that has another message under a seqno: they must be made anew.

If two sites were made homes while neither knew of the other, the later one is the home: the thousand millions grow
with the time, so its epochs are the higher ones.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import NamedTuple

from connectors.kafka.codec.codec import encode_data
from connectors.kafka.codec.epochs import Move, encode_claim, encode_move
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sending import append, producing
from connectors.kafka.connection.sites import Sites
from connectors.kafka.log.acts import Act, act_header, act_of_this_user
from connectors.kafka.log.data_log import DataLog, Start
from connectors.relay.copy_beginning import check_beginning, let_it_join_again
from ordering.base import reader
from ordering.base.errors import BrokerUnreachable, HistoryUnavailable, TopicMissing, UsageError
from ordering.base.records import EPOCH, STRAY
from ordering.sequencer.sequencer import seal
from ordering.sequencer.state import SequencerState

EPOCHS_OF_A_HOME = 10**9
_SHARE_S = 10
"""The seconds whose moves share a thousand million of epochs. MAX_NUMBER is reached in thousands of years."""
_MOST_SHARES = 10**8 * 5
"""The highest share that a clock can give. If a clock is far ahead, as many more are left for later moves."""

_logger = logging.getLogger(__name__)


class Promotion(NamedTuple):
    """The result of a promotion: the order goes on after `last_seqno`; the last `copied` seqnos were copied just now.

    `not_copied`: sites that did not answer, have no DATA or not its beginning, or have other messages; after an earlier
    promotion also sites with more messages than the home. Records that only they have are not in the order.
    """

    last_seqno: int
    copied: int
    not_copied: tuple[str, ...]


def promote(sites: Sites, group: str, site: str, why: str = "") -> Promotion:
    """Make `site`, which must be the home in the sites' file, the home of the group. May be done again.

    EPOCH records the user, and `why`.

    Raises UsageError (it has a sequencer, or another order than a site that reaches further), BrokerUnreachable.
    """
    if sites.home != site:
        raise UsageError(f'write home = "{site}" into the sites\' file first, and give that file to all sites.')
    act = act_of_this_user("promote", f"{site} is the home", why)
    with ExitStack() as open_logs:
        copy = open_logs.enter_context(DataLog(sites.connection(site), group, site))
        epochs = copy.epochs.read()
        is_done = epochs.is_promoted()
        if epochs.has_decided() and not is_done:
            raise UsageError(f"{site} is not a copy of group {group}: it has a sequencer of its own.")
        others: list[DataLog] = []
        silent: list[str] = []
        for name in sites.connections:
            if name != site:
                try:
                    others.append(open_logs.enter_context(DataLog(sites.connection(name), group, name)))
                except (BrokerUnreachable, TopicMissing) as error:
                    _logger.warning("%s does not answer: %s", name, error)
                    silent.append(name)
        former = [other for other in others if other.epochs.read().has_decided()]
        others = [other for other in others if _is_whole(other, silent)]
        if not (is_done or former or any(known.is_copy() for known in (copy, *others))):
            raise UsageError(f"{site} has no history of group {group}, and no site with one answers: promote a copy.")
        sources: list[DataLog] = []
        if not is_done:  # else nobody would be the home
            check_beginning(copy)
            sources = _sources(copy, others, silent)
            _check_can_follow(copy, sources)
        for other in former:
            if is_done:
                _check_is_later(copy, other)
            fence(other, site, act)
        if is_done:
            silent += [other.topic.site for other in others if _has_more(other, copy)]
            return Promotion(copy.state().seqno, 0, tuple(silent))
        before = copy.state().seqno
        for other in sorted(sources, key=lambda known: known.state().seqno):  # anew: some may have grown
            copy_rest(other, copy)
        state = copy.state()
        silent += [other.topic.site for other in sources if not _leads_on(other.state(), state)]
        above = epochs_above(max([state.epoch, *(other.epochs.read().highest_epoch for other in former)]))
        move_home(copy.connection, copy.epochs.topic, Move(site, above), act)
        return Promotion(state.seqno, state.seqno - before, tuple(silent))


def _is_whole(other: DataLog, silent: list[str]) -> bool:
    """Whether the site's state is known, and it is no copy without its beginning. Add any other to the silent ones."""
    try:
        if not other.epochs.read().has_decided():
            check_beginning(other)
        other.state()
    except (UsageError, HistoryUnavailable) as error:
        _logger.warning("%s is left out: %s", other.topic.site, error)
        silent.append(other.topic.site)
        return False
    return True


def _sources(copy: DataLog, others: Iterable[DataLog], silent: list[str]) -> list[DataLog]:
    """Return the sites whose records the new home takes, ordered by their last seqnos.

    The site of the highest epoch has the order that counts. Sites with other messages stayed behind when the home
    moved, or have lost records: add them to the silent ones. Raises UsageError, before any site is fenced, if the copy
    is such a site, also if it has as many messages.
    """
    known, left = copy.state(), sorted(others, key=_rank)
    while left:
        newest = left.pop()
        order = newest.state()
        differing = first_difference(known, order)
        if differing is None:
            unfit = [other for other in left if not _leads_on(other.state(), order)]
            silent += [other.topic.site for other in unfit]
            return sorted((newest, *(each for each in left if each not in unfit)), key=lambda each: each.state().seqno)
        if order.seqno > known.seqno or _rank(newest) > _rank(copy):
            raise UsageError(
                f"{copy.topic} has another seqno {differing} than {newest.topic}: it stayed behind when the home "
                f"moved, or has lost records. Promote another site; or {let_it_join_again(copy)}"
            )
        silent.append(newest.topic.site)
    return []


def _leads_on(theirs: SequencerState, order: SequencerState) -> bool:
    """Whether a site has messages of the order only: none of an epoch that is sealed off behind the order's end."""
    after = order.seqno + 1
    epoch = reader.epoch_of(theirs.seals, after) if theirs.seqno >= after else 0
    is_sealed_off = 0 < epoch < reader.epoch_of(order.seals, after)
    return first_difference(theirs, order) is None and not is_sealed_off


def _rank(log: DataLog) -> tuple[int, bool, int]:
    epochs, state = log.epochs.read(), log.state()
    return max(state.epoch, epochs.highest_epoch), epochs.has_decided(), state.seqno


def _has_more(other: DataLog, home: DataLog) -> bool:
    """Whether a site has messages that the home lacks, or has others."""
    theirs, known = other.state(), home.state()  # in this order: a copy is never ahead of its home
    return theirs.seqno > known.seqno or first_difference(theirs, known) is not None


def epochs_above(known: int) -> int:
    """Return the number above which the epochs of a new home begin. `known`: the highest epoch of former homes."""
    share = max(known // EPOCHS_OF_A_HOME + 1, min(int(time.time()) // _SHARE_S, _MOST_SHARES))
    return share * EPOCHS_OF_A_HOME


def move_home(connection: Connection, epoch_topic: str, move: Move, act: Act) -> None:
    """Append a move, with the operator's act, to an EPOCH topic. Raises BrokerUnreachable."""
    value, headers = encode_move(move)
    append(connection, epoch_topic, (None, value, [*headers, act_header(act)]))


def fence(old_home: DataLog, new_home: str, act: Act) -> None:
    """Keep every sequencer of the old home from deciding more. May be cut off anywhere, and done again."""
    move = old_home.epochs.read().move
    if move is None or move.home != new_home:
        move_home(old_home.connection, old_home.epochs.topic, Move(new_home, _above_former(old_home)), act)
    elif _is_sealed(old_home):
        return
    of_format = old_home.epochs.read().format
    claim = None, *encode_claim(old_home.end(), of_format=of_format)
    claimed_at = append(old_home.connection, old_home.epochs.topic, claim)
    epoch = old_home.epochs.known.epoch_of_claim(claimed_at)
    append(old_home.connection, str(old_home.topic), encode_data(seal(epoch, of_format)))
    _logger.warning("group %s: the home was %s, and is %s now", old_home.topic.group, old_home.topic.site, new_home)


def _above_former(old_home: DataLog) -> int:
    """Return the number above which the epochs behind the move begin: DATA's epoch, if EPOCH has lost its claim."""
    epochs = old_home.epochs.read()
    with suppress(HistoryUnavailable):
        if (known := old_home.state().epoch) > epochs.highest_epoch:
            return known
    return epochs.above


def _is_sealed(old_home: DataLog) -> bool:
    """Whether DATA has the seal of a claim behind the move; False if retention may have dropped it."""
    for claim in old_home.epochs.read().claims_since_move():
        start, end = max(claim.floor, old_home.beginning()), old_home.end()
        behind = (stored.data for stored in old_home.records(start, end))
        if any(data.kind == EPOCH and not data.payload and data.epoch == claim.epoch for data in behind):
            return True
    return False


def fence_former_home(home: DataLog, other: DataLog) -> bool:
    """Fence the other site's sequencer if `home` was made the home in its place; return whether it was.

    Raises UsageError if it was the other way round: the relay of a home that was replaced has an old sites' file.
    """
    was_home = home.epochs.read().is_promoted() and other.epochs.read().has_decided()
    if was_home:
        _check_is_later(home, other)
        site = home.topic.site
        fence(other, site, act_of_this_user("fence", f"{site} is the home", f"the relay from {site} found it"))
    return was_home


def _check_is_later(home: DataLog, other: DataLog) -> None:
    """Raise UsageError if the other site was made the home after this one."""
    epochs = other.epochs.read()
    if epochs.is_promoted() and epochs.highest_epoch > home.epochs.read().highest_epoch:
        raise UsageError(
            f"{other.topic.site} was made the home of group {home.topic.group} after {home.topic.site}. Give this site "
            "the new sites' file."
        )


def _check_can_follow(copy: DataLog, others: Iterable[DataLog]) -> None:
    """Check that the others, ordered by their last seqnos, still hold the records that the copy lacks.

    Raises UsageError, before any site is fenced.
    """
    known = copy.state()
    for other in others:
        theirs = other.state()
        if theirs.seqno > known.seqno:
            _after(other, copy, known.seqno)
            known = theirs


def _after(other: DataLog, copy: DataLog, seqno: int) -> Start:
    try:
        return other.after(seqno)
    except HistoryUnavailable as gone:
        site = copy.topic.site
        raise UsageError(
            f"{copy.topic} lacks seqno {seqno + 1}, and {other.topic} no longer holds it. Promote a site that has it; "
            f"or write it from a ledger first: `abcast site add {site} --group {copy.topic.group} --ledger "
            "DIR/ledger`, with the sites' file of the former home."
        ) from gone


def copy_rest(other: DataLog, copy: DataLog) -> None:
    """Append another site's records beyond the copy's end, and its format. Raises UsageError if the copy can't follow.

    A copy that a ledger has filled lacks the format (`connectors.relay.bootstrap`).
    """
    known, theirs = copy.state(), other.state()
    if (theirs.seqno, theirs.format) <= (known.seqno, known.format):
        return
    differing = first_difference(known, theirs)
    if differing is not None:
        raise UsageError(
            f"{copy.topic} and {other.topic} have different messages under seqno {differing}: one of them stayed "
            "behind when the home moved. Promote a site with the same messages as the others."
        )
    start = _after(other, copy, known.seqno)
    if start.reader.epoch > known.epoch or theirs.format > known.format:
        learned = seal(max(start.reader.epoch, known.epoch), theirs.format)
        append(copy.connection, str(copy.topic), encode_data(learned))
    with producing(copy.connection) as producer:
        for stored in other.records(start.offset, other.end()):  # one by one: they are few
            if stored.data.kind != STRAY:
                append(copy.connection, str(copy.topic), encode_data(stored.data), producer=producer)


def first_difference(one: SequencerState, other: SequencerState) -> int | None:
    """Return the first seqno from which on two logs differ; None without one (`ordering.base.reader`)."""
    return reader.first_difference(one.seals, other.seals, min(one.seqno, other.seqno))
