"""The way from the pure core in `ordering` to the world: Kafka, Delta, Java, Spark's jars.

Importing this package loads nothing else; `from connectors import Member` loads the client when asked for it,
and never Spark. (`make setup` runs `connectors.local.java` before any dependency is installed.)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connectors.client.api.async_member import AsyncMember
    from connectors.client.api.member import Member
    from connectors.client.values.delivery import Delivery
    from connectors.client.values.letter import Letter
    from connectors.client.values.receipt import Receipt

__all__ = ["AsyncMember", "Delivery", "Letter", "Member", "Receipt"]

_MODULES = {
    "AsyncMember": "api.async_member",
    "Delivery": "values.delivery",
    "Letter": "values.letter",
    "Member": "api.member",
    "Receipt": "values.receipt",
}


def __getattr__(name: str) -> object:
    """Load the names of `__all__` on first use."""
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.client.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
