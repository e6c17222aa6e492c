"""Each command that says something says it as JSON, too."""

from __future__ import annotations

import pytest

from jobs.cli import command
from tests.cli.process import commands

OF_LOG = "its lines are a log: --log-format json"
WITHOUT = {
    ("run",): OF_LOG,
    ("sequence",): OF_LOG,
    ("ledger",): OF_LOG,
    ("relay",): OF_LOG,
    ("demo",): "it is a show for people; its parts have commands of their own",
}
"""The commands without --json, each with the reason."""

COMMANDS = dict(commands(command()))


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_each_command_has_the_option(name: tuple[str, ...]) -> None:
    assert any("--json" in option.opts for option in COMMANDS[name].params) != (name in WITHOUT)


def test_no_reason_is_left_over() -> None:
    assert WITHOUT.keys() <= COMMANDS.keys()
