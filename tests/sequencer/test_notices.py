"""Notices of a site that agrees with others: an operator reads the true cause, and each name."""

from __future__ import annotations

import pytest

from connectors.takeover.notices import describe
from ordering.agreement.formation import ProcessIncarnation, first_view
from ordering.agreement.messages import Exclude, NotExcluded
from ordering.agreement.process import ProcessState, fresh, member
from ordering.agreement.views import Process

NYC, SFO, LAX = map(ProcessIncarnation, ("nyc", "sfo", "lax"))
AT_NYC = member(NYC, first_view([NYC, SFO, LAX]))
CAUSES = TOO_FEW, NOT_OTHERS, OUTSIDE = "too few sites would be left", "no other site of that name", "outside the view"


@pytest.mark.parametrize(
    ("state", "names", "cause"),
    [
        (AT_NYC, ("sfo", "lax"), TOO_FEW),
        (AT_NYC, ("nyc",), NOT_OTHERS),
        (AT_NYC, ("rio",), NOT_OTHERS),
        (fresh(NYC), ("sfo",), OUTSIDE),
    ],
)
def test_an_exclusion_without_effect(state: ProcessState, names: tuple[str, ...], cause: str) -> None:
    process = Process(state)
    process.take(Exclude(names))
    [notice] = [each for each in process.end_batch() if isinstance(each, NotExcluded)]
    _, text = describe(notice)
    assert f"exclusion of {', '.join(sorted(names))} has no effect" in text
    assert [told for told in CAUSES if told in text] == [cause]
