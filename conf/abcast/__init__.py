"""Atomic broadcast on Kafka: the members of a group deliver the same messages in the same order.

    from abcast import Member

    with Member("orders", "nyc/alice", bootstrap_servers="127.0.0.1:9092") as alice:
        seqno = alice.broadcast(b"buy 100").result(timeout=30)

`abcast._public` lists the names that applications use. In the wheel, this package contains all others
(`conf/hatch_build.py`).
"""

from __future__ import annotations

TYPE_CHECKING = False
"""The same as in `typing`, which takes a while to load: the command must be ready for Ctrl-C before."""

if TYPE_CHECKING:
    from abcast._public import *  # noqa: F403


def __getattr__(name: str) -> object:
    """Load the client at the first use of one of its names: `abcast --help` needs neither the client nor Kafka."""
    if name == "__version__":
        from importlib.metadata import version

        return version("abcast")
    if name == "__all__" or not name.startswith("_"):
        from abcast import _public

        if name == "__all__":
            return _public.__all__
        if name in _public.__all__:
            return getattr(_public, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, for help() and completion."""
    from abcast import _public

    return sorted(["__version__", *(name for name in globals() if name.startswith("__")), *_public.__all__])
