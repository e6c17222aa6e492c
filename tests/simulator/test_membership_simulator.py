"""Members in the simulator: every rule of the participant is needed. tests/ordering/membership/test_membership.py has
more."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from ordering.participant.participant_table import TRANSITIONS, Cause
from tests.ordering.participants import Watched
from tests.simulator.membership_mutations import no_answer, run
from tests.simulator.script import rewrite


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Watched:
    watched = Watched(TRANSITIONS)
    monkeypatch.setattr("ordering.participant.participant.TRANSITIONS", watched)
    return watched


def test_a_forgotten_answer_is_seen_by_its_trace() -> None:
    """A process that starts again and forgets its FLUSH_OK takes messages behind it. Histories show it rarely."""
    trace = (Path(__file__).parents[1] / "traces" / "member_restart_in_a_flush.txt").read_text(encoding="utf-8")
    assert rewrite(trace) == trace
    with patch("tests.simulator.membership.newest_answer", no_answer):
        assert "send a not-now\n    it may not now" not in rewrite(trace)


@pytest.mark.slow
def test_the_histories_take_the_rows_of_the_table(table: Watched) -> None:
    """Only rows of an application that asks twice, or too late, and of coincidences, are left to the unit tests."""
    for seed in range(30):
        assert run(seed) == []
    in_vain = {(phase, cause) for phase, cause in TRANSITIONS if cause in (Cause.CLOSE, Cause.RENEW)}
    assert len(table.taken - in_vain) >= 40
