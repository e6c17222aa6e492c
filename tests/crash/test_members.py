"""kill -9 of members between `broadcast` and the ordering of their messages."""

from __future__ import annotations

import pytest

from ordering.base.records import MessageId
from tests.crash.processes import Process
from tests.crash.scenario import Scenario
from tests.waiting import eventually

pytestmark = [pytest.mark.crash, pytest.mark.broker, pytest.mark.timeout(300)]

COUNT = 200


def accepted(process: Process, address: str) -> dict[MessageId, str]:
    """Return the payloads of accepted broadcasts by message id."""
    rows = [line.split() for line in process.stdout().splitlines() if line.startswith("accepted ")]
    return {MessageId(address, int(row[1]), int(row[2])): row[3] for row in rows if len(row) == 4}


def ordered(process: Process) -> set[int]:
    """Return the local seqnos whose receipt has a seqno."""
    rows = [line.split() for line in process.stdout().splitlines() if line.startswith("ordered ")]
    return {int(row[1]) for row in rows if len(row) == 3}


@pytest.mark.long
@pytest.mark.usefixtures("on_either_engine")
def test_killed_before_their_messages_are_ordered(scenario: Scenario) -> None:
    """With an outbox everything accepted is ordered once, in its order; without one, all that had a receipt is.

    Neither restart is taken for a duplicate: the outbox continues its incarnation, the other starts a new one at 1.
    """
    outbox = scenario.directory / "ada.outbox"
    sequencer = scenario.sequencer()
    ada, bob = scenario.sender("ada", outbox, "early-", COUNT), scenario.sender("bob", None, "early-", COUNT)
    for process in (ada, bob):
        eventually(lambda process=process: len(ordered(process)) == COUNT, 60, "the first messages are ordered")  # type: ignore[misc]
        process.kill()
    sequencer.kill()

    # No sequencer runs now.
    later = [scenario.sender("ada", outbox, "late-", COUNT), scenario.sender("bob", None, "late-", COUNT)]
    for process in later:
        eventually(lambda process=process: len(accepted(process, "any")) == COUNT, 30, "accepted")  # type: ignore[misc]
        process.kill()
        assert not ordered(process)
    last = [scenario.sender("ada", outbox, "last-", COUNT), scenario.sender("bob", None, "last-", COUNT)]
    scenario.sequencer()
    for process in last:
        eventually(lambda process=process: "\nall" in process.stdout(), 60, "everything is ordered")  # type: ignore[misc]

    ada_sent = [
        message for process in (ada, later[0], last[0]) for message in accepted(process, scenario.address("ada"))
    ]
    bob_runs = [accepted(process, scenario.address("bob")) for process in (bob, later[1], last[1])]
    assert len({message.incarnation for message in ada_sent}) == 1, "the outbox continues its incarnation"
    assert [min(run).local_seqno for run in bob_runs] == [1, 1, 1]
    assert len({message.incarnation for run in bob_runs for message in run}) == 3
    # Of bob's second run nothing had a receipt; what had reached Kafka is ordered all the same, in order.
    receipted = [*ada_sent, *bob_runs[0], *bob_runs[2]]
    highest = scenario.verify(receipted)
    effective = scenario.effective()
    payloads = [data.payload.decode() for data in effective if data.sender == scenario.address("ada")]
    assert payloads == [f"{word}-{number}" for word in ("early", "late", "last") for number in range(1, COUNT + 1)]
    lost = set(bob_runs[1]) - {data.id for data in effective}
    assert highest == len(receipted) + COUNT - len(lost)
    print(f"bob lost {len(lost)} of {COUNT} messages without a receipt")
