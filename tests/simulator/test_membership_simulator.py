"""Members in the simulator: every rule of the participant is needed. tests/ordering/membership/test_membership.py has
more."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from ordering.membership.flush import FlushPhase
from ordering.participant.participant_table import TRANSITIONS, Cause
from tests.ordering.participants import Watched
from tests.simulator.script import rewrite
from tests.world.membership import playing, run
from tests.world.membership_mutations import no_answer


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Watched:
    watched = Watched(TRANSITIONS)
    monkeypatch.setattr("ordering.participant.participant.TRANSITIONS", watched)
    return watched


def test_a_forgotten_answer_is_seen_by_its_trace() -> None:
    """A process that starts again and forgets its FLUSH_OK takes messages behind it. Histories show it rarely."""
    trace = (Path(__file__).parents[1] / "traces" / "member_restart_in_a_flush.txt").read_text(encoding="utf-8")
    assert rewrite(trace) == trace
    with patch("connectors.client.incarnation.forwarder.newest_answer", no_answer):
        assert "send a not-now\n    it may not now" not in rewrite(trace)


@pytest.mark.long
@pytest.mark.slow
def test_the_histories_take_the_rows_of_the_table(table: Watched) -> None:
    """Only rows of an application that asks twice, or too late, and of coincidences, are left to the unit tests."""
    for seed in range(20):
        assert run(seed) == []
    in_vain = {(phase, cause) for phase, cause in TRANSITIONS if cause in (Cause.CLOSE, Cause.RENEW)}
    assert len(table.taken - in_vain) >= 40


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_random_history_keeps_every_promise(seed: int) -> None:
    """Joins, leaves, flushes, silences, and crashes of any process."""
    assert run(seed) == [], f"python -m tests.simulator --membership --seed {seed}"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("all_of_them", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_somebody_dies_in_every_phase(all_of_them: bool) -> None:
    """Run further histories until members, requesters and the sequencer have crashed in each phase of a flush."""
    crashes: set[tuple[str, FlushPhase]] = set()
    wanted = {(who, phase) for who in ("member", "requester", "sequencer") for phase in FlushPhase}
    none = {("requester", FlushPhase.RUNNING)}
    for seed in range(20, 100):
        with playing(seed) as world:
            assert world.run() == [], f"python -m tests.simulator --membership --seed {seed}"
            crashes |= set(world.crashes)
        if wanted - crashes == none and not all_of_them:
            break
    assert wanted - crashes == none
