"""The source's tests: real processes over loopback, and the whole output of each compared.

Beyond the source: loss, repeated datagrams, and processes that are killed and come back.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.isis.processes import group

COUNTS = {
    "uniform": [2, 2, 2, 2, 2],
    "different": [0, 1, 2, 3, 4],
    "single_sender": [100, 0, 0, 0, 0],
    "dual_senders": [100, 100, 0, 0, 0],
    "large": list(range(10)),
}
FAULTS: dict[str, dict[str, Any]] = {
    "on_time": {},
    "with_delays": {"delays": True},
    "with_loss": {"drop": 0.2},
    "with_repeats": {"repeat": 0.3},
    "with_all_of_it": {"delays": True, "drop": 0.2, "repeat": 0.3},
}


def all_deliver_the_same(directory: Path, counts: list[int], faults: dict[str, Any]) -> None:
    """Start a process for each count, wait until all have delivered all messages, and compare."""
    with group(directory, len(counts)) as processes:
        for place, count in enumerate(counts):
            processes.start(place, count, **faults)
        processes.wait_for(range(len(counts)), sum(counts))
        printed = [processes.printed(place) for place in range(len(counts))]
    assert [len(lines) for lines in printed] == [sum(counts)] * len(counts)
    assert all(lines == printed[0] for lines in printed)
    expected = {f"message {n} from sender {s}" for s, count in enumerate(counts) for n in range(1, count + 1)}
    assert {line.removeprefix("Processed ").partition(" with seq")[0] for line in printed[0]} == expected


@pytest.mark.slow
@pytest.mark.parametrize("faults", ["on_time", pytest.param("with_delays", marks=pytest.mark.soak)])
@pytest.mark.parametrize("counts", COUNTS)
def test_total_order(tmp_path: Path, counts: str, faults: str) -> None:
    """TestTotalOrderUniform, Different, SingleSender, DualSenders, Large; and each WithDelays, in the soak.

    In `make test`, the random counts are delayed, too.
    """
    all_deliver_the_same(tmp_path, COUNTS[counts], FAULTS[faults])


@pytest.mark.slow
@pytest.mark.parametrize("faults", FAULTS)
def test_total_order_random(tmp_path: Path, faults: str) -> None:
    """TestTotalOrderRandom, TestTotalOrderRandomWithDelays, and what the source has no test for."""
    seed = sum(map(ord, faults))
    dice = random.Random(seed)
    counts = [dice.randrange(20) for _ in range(dice.randrange(2, 8))]
    all_deliver_the_same(tmp_path, counts, FAULTS[faults])


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 6, 10])
def test_loss_and_repeats_at_every_size(tmp_path: Path, size: int) -> None:
    all_deliver_the_same(tmp_path, [8] * size, {"drop": 0.2, "repeat": 0.3})


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("faults", ["with_loss", "with_repeats", "with_all_of_it"])
@pytest.mark.parametrize("counts", COUNTS)
def test_total_order_on_a_bad_network(tmp_path: Path, counts: str, faults: str) -> None:
    """The source's tests on a bad network."""
    all_deliver_the_same(tmp_path, COUNTS[counts], FAULTS[faults])


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("size", [4, 5, 7, 8, 9])
@pytest.mark.parametrize("faults", ["on_time", "with_all_of_it"])
def test_total_order_at_every_other_size(tmp_path: Path, size: int, faults: str) -> None:
    all_deliver_the_same(tmp_path, [8] * size, FAULTS[faults])


@pytest.mark.slow
def test_there_is_no_order_in_which_processes_need_to_be_brought_up(tmp_path: Path) -> None:
    """No message is delivered before the last process is there."""
    with group(tmp_path, 3) as processes:
        processes.start(2, 3)
        processes.start(0, 3)
        processes.wait_for([0, 2], 0)
        assert processes.printed(2) == []
        processes.start(1, 3)
        processes.wait_for([0, 1, 2], 9)
        assert processes.printed(0) == processes.printed(1) == processes.printed(2)


@pytest.mark.slow
def test_a_killed_process_is_suspected_and_comes_back(tmp_path: Path) -> None:
    """The others go on without it; its new incarnation joins, sends, and prints everything from the first seqno on."""
    with group(tmp_path, 3) as processes:
        for place in range(3):
            processes.start(place, 20, suspect_after=2.0)
        processes.wait_for(range(3), 60)
        processes.kill(2)
        processes.wait_until_said(0, r"view \d+: 0, 1\n")
        processes.start(2, 5, suspect_after=2.0)
        processes.wait_for(range(3), 65)
        assert processes.printed(0) == processes.printed(1) == processes.printed(2)
        assert processes.printed(2, start=1) == processes.printed(0)[:60]


@pytest.mark.slow
def test_a_process_is_killed_under_load(tmp_path: Path) -> None:
    """Its deliveries are a prefix of the others'; and all messages of the others are delivered."""
    with group(tmp_path, 4) as processes:
        for place in range(4):
            processes.start(place, 1500, suspect_after=3.0, drop=0.05)
        processes.wait_for([3], 300)
        processes.kill(3)
        processes.wait_for(range(3), 4500)
        processes.wait_until_said(0, r"view \d+: 0, 1, 2\n")
        printed = [processes.printed(place) for place in range(3)]
        ended = processes.printed(3)
        shortest = min(len(lines) for lines in printed)
        assert len({tuple(lines[:shortest]) for lines in printed}) == 1
        assert ended == printed[0][: len(ended)]
        for place in range(3):
            assert sum(f" from sender {place} " in line for line in printed[0]) <= 1500


@pytest.mark.slow
def test_a_process_that_was_suspected_wrongly_comes_back_as_itself(tmp_path: Path) -> None:
    """The process is stopped under load and excluded; it goes on, catches up, and its other messages are ordered
    once.
    """
    with group(tmp_path, 3) as processes:
        for place in range(3):
            processes.start(place, 2000, suspect_after=3.0)
        processes.wait_for([2], 200)
        processes.stop(2)
        processes.wait_until_said(0, r"view \d+: 0, 1\n")
        processes.go_on(2)
        processes.wait_for(range(3), 6000)
        assert len(processes.printed(0)) == 6000
        assert processes.printed(0) == processes.printed(1) == processes.printed(2)


@pytest.mark.slow
def test_a_minority_waits_and_says_so(tmp_path: Path) -> None:
    with group(tmp_path, 2) as processes:
        for place in range(2):
            processes.start(place, 3, suspect_after=0.4)
        processes.wait_for(range(2), 6)
        processes.kill(1)
        processes.wait_until_said(0, "waiting: 1 of the 2 processes of view 1 answer, 2 are needed")
        assert len(processes.printed(0)) == 6
