"""A lost or corrupted checkpoint: the sequencer goes on with the next number, and still knows what it has ordered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ordering.base.records import EPOCH, Data
from ordering.sequencer.sequencer import SNAPSHOT_EVERY_RECORDS
from ordering.sequencer.state import SequencerState
from tests.crash.checkpoint import Checkpoint
from tests.crash.scenario import Scenario
from tests.waiting import WAIT, eventually

pytestmark = [pytest.mark.crash, pytest.mark.broker, pytest.mark.timeout(300)]

WAYS: dict[str, Callable[[Checkpoint], object]] = {
    "corrupt the newest files": Checkpoint.corrupt_newest_files,
    "delete the newest commit": Checkpoint.delete_newest_commit,
    "delete everything": Checkpoint.delete,
}


@pytest.mark.soak
def test_spoilt_while_stopped(scenario: Scenario) -> None:
    """Killed, spoilt, started: no number changes, and a message that is resent by hand is still a duplicate."""
    load = scenario.load("alice")
    observer = scenario.observer("olga")
    process = scenario.sequencer()
    observer.wait(30)
    for way, spoil in WAYS.items():
        checkpoint = Checkpoint(scenario.data)
        eventually(lambda checkpoint=checkpoint: checkpoint.committed() >= 0, 60, "a batch is committed")  # type: ignore[misc]
        process.kill()
        before = scenario.effective()
        assert before
        spoil(checkpoint)
        process = scenario.sequencer()
        for old in (before[0], before[-1]):
            scenario.write_forward(old.id, old.payload)
        # A message ordered behind the resends shows that they were considered.
        scenario.probe()
        after = scenario.effective()
        assert after[: len(before)] == before, f"{way}: a number was reassigned"
    sent = [*scenario.probes, *load.finish()]
    assert scenario.verify(sent, {"olga": observer.wait(len(sent))}) == len(sent)


@pytest.mark.long
def test_spoilt_while_running(scenario: Scenario) -> None:
    """The job goes on without help, with a new query if need be; if the directory itself is gone, it says so."""
    load = scenario.load("alice")
    observer = scenario.observer("olga")
    process = scenario.sequencer()
    observer.wait(30)
    for way in ("corrupt the newest files", "delete the newest commit"):
        WAYS[way](Checkpoint(scenario.data))
        took = [scenario.probe() for _ in range(10)]
        print(f"{way}: ten messages took at most {max(took):.1f} s; epochs {scenario.epochs()}")
        assert process.running()
    Checkpoint(scenario.data).delete()
    assert process.wait_exit(90) == 1
    assert "--data or --work-dir was deleted, moved or replaced while the job ran" in process.stderr().splitlines()[-1]
    scenario.sequencer()
    sent = [*scenario.probes, *load.finish()]
    assert scenario.verify(sent, {"olga": observer.wait(len(sent))}) == len(sent)


@pytest.mark.long
def test_after_a_large_batch_a_successor_reads_back_little(scenario: Scenario) -> None:
    """The group is idle after the batch, and has no members: a snapshot still follows."""
    count = SNAPSHOT_EVERY_RECORDS + 1
    sender = scenario.member("bulk", max_pending_records=count)
    receipts = [sender.broadcast(b"%d" % number) for number in range(count)]
    scenario.sequencer()
    receipts[-1].result(WAIT)

    def last() -> Data:
        return scenario.records(scenario.end() - 1)[0].data

    eventually(lambda: last().kind == EPOCH and last().payload, 20, "a snapshot at the end of DATA")
    assert SequencerState.from_bytes(last().payload).seqno == count
