"""What connects the pure core in `ordering` to the world: Kafka, Delta, Java, Spark's jars.

Importing this package loads nothing else; `from connectors import Member` loads the client when asked for it,
and never Spark. (`make setup` runs `connectors.local.java` before any dependency is installed.)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connectors.client.async_member import AsyncMember
    from connectors.client.delivery import Delivery
    from connectors.client.letter import Letter
    from connectors.client.member import Member
    from connectors.client.receipt import Receipt

__all__ = ["AsyncMember", "Delivery", "Letter", "Member", "Receipt"]

_MODULES = {
    "AsyncMember": "async_member",
    "Delivery": "delivery",
    "Letter": "letter",
    "Member": "member",
    "Receipt": "receipt",
}


def __getattr__(name: str) -> object:
    """Load the names of `__all__` on first use."""
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.client.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
