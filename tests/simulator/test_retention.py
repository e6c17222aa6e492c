"""`tests.simulator.retention`: a whole DATA always starts, and no number is given twice, whatever was deleted when."""

from __future__ import annotations

import pytest

from connectors.kafka.topics.data_purge import deletable, missing_note
from ordering.base.errors import HistoryUnavailable, NoSnapshot
from tests.simulator.broker import SimulatedLog
from tests.simulator.dice import Dice
from tests.simulator.retention import Retained
from tests.simulator.rules import Rules
from tests.simulator.sequencers import Sequencer

SEEDS = 300


@pytest.mark.slow
def test_a_whole_data_always_starts() -> None:
    purged = lost = 0
    for seed in range(SEEDS):
        history = Retained(seed)
        assert history.run() == [], seed
        assert history.broker.wrong_states == [], seed
        purged += history.purged
        lost += not history.is_whole
    assert purged > SEEDS / 2
    assert lost > SEEDS / 20


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_claim_that_was_on_its_way(is_noted: bool) -> None:
    """Its floor is below the snapshot that stays, so that claims alone no longer tell that this one counts."""
    history = Retained(1)
    history.do_send()
    first, late, second = (Sequencer(history.broker, Rules(), Dice(1), zombie=True, batch_rows=9) for _ in range(3))
    for sequencer, steps in ((first, 40), (late, 1), (second, 10)):
        for _ in range(steps):
            sequencer.advance()
    history.in_ledger = len(history.effective())
    log = SimulatedLog(history.broker)
    snapshot = deletable(log, log.end(), history.in_ledger)
    assert snapshot is not None
    note = missing_note(log, snapshot)
    assert note is not None
    history.broker.notes += [note] if is_noted else []
    history.broker.beginning = snapshot.offset
    with pytest.raises(HistoryUnavailable, match="dropped offset"):
        list(iter(late.advance, None))
    assert log.epochs.read().newest_epoch == 3
    if is_noted:
        assert log.state().seqno == history.in_ledger
    else:
        with pytest.raises(NoSnapshot):
            log.state()
