"""Groups that can't be served, while others can: what is wrong with one ends the work on that one alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from ordering.base.errors import (
    AbcastError,
    BrokerUnreachable,
    EnvironmentProblem,
    Fenced,
    HistoryUnavailable,
    KafkaRefused,
    ProtocolViolation,
    TopicMissing,
    UsageError,
)
from ordering.base.names import Topic

Answer = TypeVar("Answer")

OF_THE_JOB = (EnvironmentProblem,)
"""What is wrong with the job: no group can be served."""
OF_ONE_GROUP = (Fenced, UsageError, HistoryUnavailable, ProtocolViolation, KafkaRefused)
"""What may be wrong with a group, and with that one alone."""
BEFORE_ITS_START = (*OF_ONE_GROUP, TopicMissing)
"""The same of a group that is not served yet."""


class UnservableGroups(AbcastError):
    """Some of the groups can't be served. `errors`: what is wrong, by group."""

    def __init__(self, errors: Mapping[str, AbcastError]) -> None:
        super().__init__(_as_text(errors))
        self.errors = errors


def raise_unfit(errors: Mapping[str, AbcastError], groups: Collection[str]) -> None:
    """Raise UnservableGroups, or what is wrong itself if it is wrong with all of the groups; nothing without errors."""
    if not errors:
        return
    if len(errors) < len(groups):
        raise UnservableGroups(errors)
    first = next((error for error in errors.values() if error.retriable), next(iter(errors.values())))
    raise first if len(set(map(str, errors.values()))) == 1 else type(first)(_as_text(errors))


def ask_each(topics: Collection[Topic], ask: Callable[[Topic], Answer]) -> dict[Topic, Answer]:
    """Ask of every topic. Raises, at the end, what is wrong with groups of theirs, as `raise_unfit`.

    Raises BrokerUnreachable at once where nothing is answered of the first groups: then nobody is there.
    """
    answers: dict[Topic, Answer] = {}
    unfit: dict[str, AbcastError] = {}
    for topic in topics:
        if topic.group not in unfit:
            try:
                answers[topic] = ask(topic)
            except OF_THE_JOB:
                raise
            except AbcastError as error:
                unfit[topic.group] = error
                if not answers and len(unfit) > 1 and all(map(_is_away, unfit.values())):
                    raise
    raise_unfit(unfit, {topic.group for topic in topics})
    return answers


def _is_away(error: AbcastError) -> bool:
    return isinstance(error, BrokerUnreachable)


def _as_text(errors: Mapping[str, AbcastError]) -> str:
    return "\n".join(dict.fromkeys(map(str, errors.values())))
