"""The groups that the jobs of a process can't serve, as signs of life tell."""

from __future__ import annotations

from connectors.kafka.groups.troubles import Troubles
from ordering.base.names import Topic


def test_jobs_that_are_over_leave_nothing() -> None:
    """A sequencer on Spark opens a job for each new group, for years; each sign of life reads all entries."""
    troubles = Troubles()
    for number in range(1000):
        name = f"sequence-{number}"
        troubles.put(name, {"g": "it can't be read."})
        troubles.serve(name, ["h"])
        assert troubles.suspended([Topic("g", "epoch", "nyc")], "nyc") == {"g": "not served: it can't be read."}
        troubles.end(name, "it can't be read.")
        troubles.serve(name, ())
        troubles.put(name, {})
    kept = [value for value in vars(troubles).values() if isinstance(value, dict)]
    assert len(kept) == 4
    assert not any(kept)


def test_a_relay_that_has_ended_is_told() -> None:
    troubles = Troubles()
    troubles.end("relay-nyc-sfo-data", "it has no right.")
    troubles.end("sequence-2", "it was fenced.")
    assert troubles.of("g") == "relay-nyc-sfo-data has ended: it has no right."
