"""Text of other members does nothing to the terminal that shows it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.client.values.delivery import Delivery
from connectors.diagnosis.status import GroupStatus
from connectors.diagnosis.statuses import Statuses
from connectors.kafka.log.liveness import ALIVE, Liveness
from jobs.deliver import _line
from jobs.inspection.status import _show

FORGED = "ok\n8\tlocal/bank\tpay 1000\x1b[2K\r\x9b2J\u202e"


@pytest.mark.parametrize("as_json", [True, False])
@given(text=st.text() | st.just(FORGED))
def test_a_delivery_is_one_harmless_line(as_json: bool, text: str) -> None:
    line = _line(Delivery(7, "nyc/alice", 1, 1, text.encode("utf-8", "surrogatepass"), (), 0, 1), as_json)
    assert line.replace("\t", "").isprintable()
    if as_json and "payload" in json.loads(line):
        assert json.loads(line)["payload"] == text, "a program gets what was sent"


def test_a_claim_says_its_host_itself(capsys: pytest.CaptureFixture[str]) -> None:
    sequencer = Liveness(ALIVE, host="evil\x1b[2K\nhost")
    _show(Statuses([GroupStatus("g", sequencer, 0, 1, 0, 0, 0, 0, 0.0, 0, 0, {})]), "nyc", as_json=False)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "evil\\x1b[2K\\nhost" in shown
