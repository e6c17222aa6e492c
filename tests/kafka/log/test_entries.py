"""The entries that a site's state begins with: DATA may have lost one before the job wrote the next."""

from __future__ import annotations

import pytest

from connectors.kafka.log.entries import _since
from ordering.base.records import ENTRY, MAX_NUMBER, Data
from ordering.sequencer.sequencer import seal
from tests.kafka.log.test_data_log import log_of


def entry(epoch: int, number: int) -> Data:
    return Data(ENTRY, epoch, local_seqno=number)


@pytest.mark.parametrize(
    ("records", "begins_at"),
    [
        pytest.param([entry(1, 1), entry(1, 2), entry(1, 3)], 3, id="whole"),
        pytest.param([entry(1, 1), entry(1, 2), entry(1, 4)], 2, id="one is lost"),
        pytest.param([entry(1, 1), entry(1, 2), entry(1, 4), entry(1, 5)], 2, id="one is lost, and two have followed"),
        pytest.param([entry(1, 1), entry(1, 2), entry(1, 2)], 3, id="one is there twice"),
        pytest.param([entry(1, 1), seal(2), entry(2, 2), entry(1, 2), entry(2, 3)], 5, id="one is of a lower epoch"),
    ],
)
def test_an_entry_behind_a_lost_one_does_not_count_for_certain(records: list[Data], begins_at: int) -> None:
    log = log_of(seal(1), *records, floors=(0, 2) if seal(2) in records else (0,))
    assert _since(log, log.end(), MAX_NUMBER)[0] == begins_at
