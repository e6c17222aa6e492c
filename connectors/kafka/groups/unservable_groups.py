"""Errors of single groups: a group that can't be served ends only its own work."""

from __future__ import annotations

import random
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

Key = TypeVar("Key")
Given = TypeVar("Given")
Answer = TypeVar("Answer")

JOB_ERRORS = (EnvironmentProblem,)
"""Errors of the whole job: no group can be served."""
GROUP_ERRORS = (Fenced, UsageError, HistoryUnavailable, ProtocolViolation, KafkaRefused)
"""Errors that may concern one group alone."""
START_ERRORS = (*GROUP_ERRORS, TopicMissing)
"""The same for a group that is not served yet."""


class UnservableGroups(AbcastError):
    """Some of the groups can't be served. `errors`: the error of each."""

    def __init__(self, errors: Mapping[str, AbcastError]) -> None:
        super().__init__(_as_text(errors))
        self.errors = errors


def raise_unservable(errors: Mapping[str, AbcastError], groups: Collection[str]) -> None:
    """Raise UnservableGroups if only some of the groups have errors.

    If all have, raise their common error, or one error of a retriable one's type with all of their sentences.
    """
    if not errors:
        return
    if len(errors) < len(groups):
        raise UnservableGroups(errors)
    first = next((error for error in errors.values() if error.retriable), next(iter(errors.values())))
    raise first if len(set(map(str, errors.values()))) == 1 else type(first)(_as_text(errors))


def each_apart(groups: Mapping[str, Given], ask: Callable[[Given], Answer]) -> dict[str, Answer]:
    """Call `ask` for each group; return the answers. In the end, raises the errors as `raise_unservable` does.

    Raises BrokerUnreachable at once if the first groups all get no answer: then no broker is there, most likely. The
    order is random, as the groups of one broker would else hold up the others for as long as it is away.
    """
    answers: dict[str, Answer] = {}
    unservable: dict[str, AbcastError] = {}
    for group in random.sample(list(groups), len(groups)):
        try:
            answers[group] = ask(groups[group])
        except JOB_ERRORS:
            raise
        except AbcastError as error:
            unservable[group] = error
            if not answers and len(unservable) > 1 and all(map(_is_away, unservable.values())):
                raise
    raise_unservable({group: unservable[group] for group in groups if group in unservable}, groups)
    return {group: answers[group] for group in groups}


def ask_each(topics: Collection[Topic], ask: Callable[[Topic], Answer]) -> dict[Topic, Answer]:
    """Ask about each topic; return the answers. Raises as `each_apart`."""
    of_groups: dict[str, list[Topic]] = {}
    for topic in topics:
        of_groups.setdefault(topic.group, []).append(topic)
    found = each_apart(of_groups, lambda of_group: {topic: ask(topic) for topic in of_group})
    return {topic: found[topic.group][topic] for topic in topics}


def ask_together(names: Collection[str], ask: Callable[[Collection[str]], dict[Key, Answer]]) -> dict[Key, Answer]:
    """Ask about topics of many groups with one question; if that fails, ask about each topic. Return the answers.

    Raises as `ask_each`: Kafka's error about one topic of a question says nothing about the other groups.
    """
    try:
        return ask(names)
    except (BrokerUnreachable, KafkaRefused):
        topics = [topic for topic in map(Topic.parse, names) if topic is not None]
        found = ask_each(topics, lambda topic: ask([str(topic)]))
    return {key: answer for answers in found.values() for key, answer in answers.items()}


def _is_away(error: AbcastError) -> bool:
    return isinstance(error, BrokerUnreachable)


def _as_text(errors: Mapping[str, AbcastError]) -> str:
    return "\n".join(dict.fromkeys(map(str, errors.values())))
