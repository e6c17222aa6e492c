"""Objects that a fork has from its parent, and must never end, since the parent goes on with them."""

from __future__ import annotations

import ctypes


def keep_for_ever(kept: object) -> None:
    """Keep the object in this process for ever, even beyond the end of the interpreter."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))  # this reference is never given back
