"""A condition that Ctrl-C leaves with its lock given back, wherever it ends a `with`.

`threading.Condition.__enter__` is a function in Python that takes the lock. If Ctrl-C ends that function when it has
the lock, the `with` has not begun yet, and nobody gives the lock back.
"""

from __future__ import annotations

import operator
import threading
from typing import Any


class Condition(threading.Condition):
    """A condition over a `threading.Lock`. `with` calls the lock's methods, which are in C. That costs less, too."""

    __enter__: Any = property(operator.attrgetter("lock.__enter__"))
    __exit__: Any = property(operator.attrgetter("lock.__exit__"))

    def __init__(self) -> None:
        self.lock = threading.Lock()
        super().__init__(self.lock)
