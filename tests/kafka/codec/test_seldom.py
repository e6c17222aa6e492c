"""A warning about strangers' records comes now and then, and counts the suppressed ones."""

from __future__ import annotations

import itertools
import logging
from types import SimpleNamespace

import pytest

from connectors.kafka.codec import seldom
from connectors.kafka.codec.seldom import EVERY_S, warn_seldom


def test_a_flood_is_one_line(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(seldom, "_warned", {})
    clock = itertools.chain(range(5), [EVERY_S], itertools.repeat(EVERY_S + 1))
    # Not of the module `time`, which threads of other tests may ask, too.
    monkeypatch.setattr(seldom, "time", SimpleNamespace(monotonic=clock.__next__))
    logger = logging.getLogger("seldom")
    with caplog.at_level(logging.WARNING):
        for number in range(7):
            warn_seldom(logger, "bad at %d", number)
        warn_seldom(logger, "something else")
    assert [record.getMessage() for record in caplog.records] == [
        "bad at 0",
        "bad at 5 (4 more like it were suppressed)",
        "something else",
    ]
