"""Atomic broadcast on Kafka: the members of a group deliver the same messages in the same order.

    from abcast import Member

    with Member("orders", "nyc/alice", bootstrap_servers="127.0.0.1:9092") as alice:
        seqno = alice.broadcast(b"buy 100").result(timeout=30)

`abcast._public` lists the names that applications use. This is also the package that the wheel puts everything into
(`conf/hatch_build.py`).
"""

from __future__ import annotations

TYPE_CHECKING = False
"""That of `typing`, which takes a while to load: the command wants to be ready for Ctrl-C before."""

if TYPE_CHECKING:
    from abcast._public import *  # noqa: F403


def __getattr__(name: str) -> object:
    """Load the client when one of its names is asked for: `abcast --help` needs neither it nor Kafka."""
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
    """The public names, for help() and completion."""
    from abcast import _public

    return sorted(["__version__", *(name for name in globals() if name.startswith("__")), *_public.__all__])
