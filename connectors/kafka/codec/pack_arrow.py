"""A pack as an Arrow array, without a copy of its payloads (`ordering.base.packs`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ordering.base.packs import offsets

if TYPE_CHECKING:
    from pyarrow import Array


def payloads_in(value: bytes, count: int) -> Array:
    """Return the payloads of the pack as a binary array that refers to `value`.

    Raises ProtocolViolation if the value is no pack of `count` messages.
    """
    import pyarrow as pa  # late: the base install has no Arrow

    begins = np.array(offsets(value, count), dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(begins), pa.py_buffer(value)])
