"""Whatever a user types, no command answers with a stack trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs.cli import command
from tests.cli.process import abcast, commands
from tests.random_examples import examples

NONSENSE = st.sampled_from(
    [
        *(
            "",
            "-",
            "--",
            "-1",
            "0",
            "1",
            "7",
            "65536",
            "99999999999999999999",
            "1e400",
            "nan",
            "inf",
            "banana",
            "%",
            "~",
        ),
        *(
            "foo:bar",
            "[::1",
            "a/b/c",
            "../..",
            "/proc/x",
            "/dev/null",
            "x" * 300,
            "a b",
            "ü",
            "\x1b[2J",
            "DELETE FROM ledger",
        ),
        *("SELECT 1", "SELEC", "'", "\\", "g", "nyc/alice", "nowhere.toml", ".", "sites.toml", "127.0.0.1:1"),
    ]
) | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
VALUES = NONSENSE | st.integers() | st.floats() | st.booleans() | st.lists(st.integers() | NONSENSE, max_size=2)
ENDLESS = ("isis",)
"""Commands that run until they are stopped if all options are right, among them a valid file."""


COMMANDS = dict(commands(command()))
WRITES_FILES = ("directory", "output", "data", "work_dir", "outbox")
"""Options and arguments that name what a command makes: only below its own directory."""
BELOW = NONSENSE.filter(lambda name: not name.startswith("/") and ".." not in name)


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A command with some of its options, each with a value that is nonsense, or fits another option."""
    name = draw(st.sampled_from(sorted(COMMANDS)))
    line = list(name)
    for option in draw(
        st.lists(st.sampled_from(COMMANDS[name].params), unique_by=lambda option: option.name, max_size=5)
    ):
        if option.name in ("help", "watch", "until_healthy"):
            continue
        names = [*option.opts, *option.secondary_opts]
        is_flag = getattr(option, "is_flag", False)
        if option.param_type_name == "argument":
            line.append(draw(BELOW if option.name in WRITES_FILES else NONSENSE))
        else:
            value = BELOW if option.name in WRITES_FILES else NONSENSE
            line += [draw(st.sampled_from(names))] if is_flag else [draw(st.sampled_from(names)), draw(value)]
    if draw(st.booleans()):
        line += [part for needed in COMMANDS[name].params if needed.required for part in (*needed.opts[:1], "g")]
    return line


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(command_lines())
def test_any_command_line(run: Callable[[list[str]], str], line: list[str]) -> None:
    if line[0] not in ENDLESS:
        run(line)


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_configuration_file(run: Callable[[list[str]], str], data: st.DataObject) -> None:
    """Keys that there are, with values of any type."""
    name = data.draw(st.sampled_from(sorted(set(COMMANDS) - {ENDLESS})))
    keys = st.sampled_from([option.name for option in COMMANDS[name].params if option.name != "help"])
    drawn = data.draw(st.dictionaries(keys, VALUES, max_size=3))
    values = {key: data.draw(BELOW) if key in WRITES_FILES else value for key, value in drawn.items()}
    lines = [
        f"[{'.'.join(name)}]",
        *(f"{key} = {toml(value)}" for key, value in values.items() if key not in ("watch", "until_healthy")),
    ]
    Path("abcast.toml").write_text("\n".join(lines), encoding="utf-8")
    run(list(name))


def toml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, float):
        return str(value)
    return json.dumps(value).replace("\\u007f", "")


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=40))
def test_any_bytes_as_a_file(run: Callable[[list[str]], str], raw: bytes) -> None:
    """Bytes of a configuration, a sites' file or a delivery log."""
    Path("nonsense").write_bytes(raw)
    run(["site", "list", "--sites", "nonsense"])
    run(["isis", "--hostfile", "nonsense", "--id", "0", "--count", "1", "--port", "70000"])
    Path("abcast.toml").write_bytes(raw)
    run(["status"])
    Path("abcast.toml").unlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (["status", "--bootstrap-servers", "foo:bar"], {}, "'foo:bar' is no Kafka server"),
        (["status"], {"ABCAST_LOG_LEVEL": "banana"}, "ABCAST_LOG_LEVEL is one of DEBUG, INFO"),
        (["publish", "-g", "g", "-m", "a", "/"], {"ABCAST_BOOTSTRAP_SERVERS": "127.0.0.1:1"}, "/ can't be read"),
        (["check", "-g", "g", "--sites", "/"], {}, "Is a directory"),
        (["support", ""], {}, "'' is no name of a directory"),
        (["package", "a\tb"], {}, "'a\\tb' is no name of a directory"),
        (["broker", "start", "--port", "65535", "--nodes", "3"], {}, "There are no 3 ports from 65535 on"),
    ],
)
def test_as_a_process(tmp_path: Path, arguments: list[str], variables: dict[str, str], said: str) -> None:
    done = abcast(*arguments, cwd=tmp_path, variables=variables)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.rglob("cluster.json")) == []
