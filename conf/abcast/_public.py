"""The names of `from abcast import …`."""

from __future__ import annotations

from connectors.client.api.async_member import AsyncMember, AsyncStream
from connectors.client.api.member import Member
from connectors.client.values.delivery import Delivery
from connectors.client.values.letter import Letter, LetterReceipt
from connectors.client.values.member_metrics import MemberMetrics, OrderSeconds
from connectors.client.values.receipt import Receipt
from connectors.kafka.connection.connection import Connection
from connectors.kafka.login.security import Security
from ordering.base.errors import (
    AbcastError,
    Blocked,
    BrokerUnreachable,
    CastMissing,
    EnvironmentProblem,
    Excluded,
    FlushFailed,
    ForwardTableFull,
    HistoryChanged,
    HistoryRestored,
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
from ordering.participant.events import Block, RemoteView, Unblock, ViewChange

__all__ = [
    "AbcastError",
    "AsyncMember",
    "AsyncStream",
    "Block",
    "Blocked",
    "BrokerUnreachable",
    "CastMissing",
    "Connection",
    "Delivery",
    "EnvironmentProblem",
    "Excluded",
    "FlushFailed",
    "ForwardTableFull",
    "HistoryChanged",
    "HistoryRestored",
    "HistoryUnavailable",
    "KafkaRefused",
    "Letter",
    "LetterReceipt",
    "LetterTableFull",
    "Member",
    "MemberMetrics",
    "NoSnapshot",
    "NotOrderedInTime",
    "NotWrittenInTime",
    "OrderSeconds",
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
