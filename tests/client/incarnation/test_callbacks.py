"""The application's block() and unblock() may do anything."""

from __future__ import annotations

import sys
import threading

import pytest

from connectors.client.incarnation.callbacks import Callbacks
from tests.waiting import WAIT


@pytest.mark.parametrize("mistake", [lambda: 1 / 0, lambda: sys.exit(3)], ids=["raises", "exits"])
def test_a_callback_that_fails_ends_neither_the_flush_nor_the_calls_after_it(mistake: object) -> None:
    answered, unblocked = threading.Event(), threading.Event()
    callbacks = Callbacks("nyc/a", block=mistake, unblock=unblocked.set)  # type: ignore[arg-type]
    callbacks.block()
    callbacks.then(answered.set)
    callbacks.unblock()
    assert answered.wait(WAIT)
    assert unblocked.wait(WAIT)
    callbacks.close()
