"""The names of `from abcast import …`."""

from __future__ import annotations

from connectors.client.async_member import AsyncMember, AsyncStream
from connectors.client.delivery import Delivery
from connectors.client.letter import Letter, LetterReceipt
from connectors.client.member import Member
from connectors.client.receipt import Receipt
from connectors.kafka.connection import Connection
from connectors.kafka.security import Security
from ordering.errors import (
    AbcastError,
    Blocked,
    BrokerUnreachable,
    EnvironmentProblem,
    Excluded,
    FlushFailed,
    ForwardTableFull,
    HistoryChanged,
    HistoryUnavailable,
    KafkaRefused,
    LetterTableFull,
    NoSnapshot,
    NotOrderedInTime,
    NotWrittenInTime,
    PositionLost,
    ProtocolViolation,
    StateUnavailable,
    Superseded,
    TopicMissing,
    UsageError,
)
from ordering.events import Block, RemoteView, Unblock, ViewChange

__all__ = [
    "AbcastError",
    "AsyncMember",
    "AsyncStream",
    "Block",
    "Blocked",
    "BrokerUnreachable",
    "Connection",
    "Delivery",
    "EnvironmentProblem",
    "Excluded",
    "FlushFailed",
    "ForwardTableFull",
    "HistoryChanged",
    "HistoryUnavailable",
    "KafkaRefused",
    "Letter",
    "LetterReceipt",
    "LetterTableFull",
    "Member",
    "NoSnapshot",
    "NotOrderedInTime",
    "NotWrittenInTime",
    "PositionLost",
    "ProtocolViolation",
    "Receipt",
    "RemoteView",
    "Security",
    "StateUnavailable",
    "Superseded",
    "TopicMissing",
    "Unblock",
    "UsageError",
    "ViewChange",
]
