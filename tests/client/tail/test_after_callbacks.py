"""The thread for calls that callbacks of a producer ask for."""

from __future__ import annotations

import threading

import pytest

from connectors.client.tail.after_callbacks import AfterCallbacks
from tests.waiting import WAIT


def test_a_thread_that_can_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has too many threads. The caller learns it, no callback does; the next caller starts it."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    called, after = threading.Event(), AfterCallbacks()
    with monkeypatch.context() as at_the_limit:
        at_the_limit.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            after.begin()
        after.put(called.set)
    after.begin()
    assert called.wait(WAIT)
    after.close()
