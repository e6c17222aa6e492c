"""Help, mistakes and the sources of values: the command line without a broker."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jobs.acl import Role
from jobs.cli import app, command
from jobs.inspection.doctor import Checked
from tests.cli.here import abcast_here
from tests.cli.process import ABCAST, ROOT, abcast, commands, environment
from tests.waiting import WAIT

COMMANDS = [
    *("run", "demo", "sequence", "ledger", "publish", "deliver", "check", "query", "status"),
    *("broker start", "broker stop", "broker status", "topics create", "topics list", "topics delete"),
    *("dead-letters list", "dead-letters show"),
]

COMMAND_PARAMETERS = {name: found.params for name, found in commands(command())}


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str) -> None:
    """Each command explains itself."""
    shown = CliRunner().invoke(app, [*command.split(), "--help"])
    assert shown.exit_code == 0
    assert "Usage:" in shown.output
    assert "--help" in shown.output


@pytest.mark.parametrize("name", COMMAND_PARAMETERS, ids=" ".join)
def test_help_at_80_columns(name: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The help names every option in full."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, [*name, "--help"]).output
    assert [o for each in COMMAND_PARAMETERS[name] for o in each.opts if o.startswith("--") and o not in shown] == []
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("name", "option"),
    [
        *[("publish", "json"), ("query", "format"), ("isis", "id"), ("demo", "sites"), ("bench", "for")],
        *[("acl print", "from"), ("topics create", "partitions")],
    ],
)
def test_the_help_names_the_variable_of_an_option(tmp_path: Path, name: str, option: str) -> None:
    """The variable has the option's name, also where the parameter has another."""
    shown = abcast_here(*name.split(), "--help", cwd=tmp_path).stdout
    assert f"[env var: ABCAST_{name.replace(' ', '_').upper()}_{option.upper()}" in re.sub(r"\s+", " ", shown)


@pytest.mark.parametrize("variable", ["ABCAST_CONFIG_SHOW_JSON", "ABCAST_CONFIG_SHOW_AS_JSON"])
def test_a_parameters_name_works_too(tmp_path: Path, variable: str) -> None:
    done = abcast_here("config", "show", cwd=tmp_path, variables={variable: "1"})
    assert (done.returncode, done.stderr) == (0, "")
    rows = {row["name"] for row in map(json.loads, done.stdout.splitlines())}
    assert {name for name in rows if "json" in name} == {variable.removeprefix("ABCAST_").lower()}


def test_the_doctor_checks_each_role_but_a_relay(tmp_path: Path) -> None:
    """A relay's rights are at two sites: `acl print` lists them."""
    assert [role.value for role in Checked] == [role.value for role in Role if role is not Role.relay]
    done = abcast_here("doctor", "--role", "relay", cwd=tmp_path)
    assert (done.returncode, "'relay' is not one of 'member'" in done.stderr) == (2, True)


@pytest.mark.parametrize("group", ["", "acl", "broker", "config", "dead-letters", "members", "site", "topics"])
def test_no_command_is_explained_by_half_a_sentence(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, [*group.split(), "--help"]).output
    listed = shown[shown.index("Commands:") :].splitlines()[1:]
    assert [line for line in listed if line.endswith("...")] == []


@pytest.mark.slow
def test_what_is_not_loaded() -> None:
    """`--help` and `import Member` answer at once because neither loads Spark, Delta or pandas; help not even Kafka
    or numpy.
    """
    code = """
import sys
from jobs.cli import command
command()
heavy = ("pyspark", "delta", "deltalake", "pandas", "pyarrow", "kafka", "numpy")
print([name for name in heavy if name in sys.modules])
import ordering.sequencer.sequencer, ordering.checker.checker
from connectors import Member
print([name for name in ("pyspark", "delta", "deltalake", "pandas", "pyarrow") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=WAIT, check=True
    )
    assert done.stdout.split("\n") == ["[]", "[]", ""]


@pytest.mark.parametrize(
    "arguments",
    [
        ["publish", "--grup", "g"],
        ["publish", "--member", "a"],  # no group
        ["deliver", "--group", "g", "--member", "a", "--count", "many"],
        ["deliver", "--group", "g", "--member", "a", "--from-seqno", "0"],
        ["check", "--group", "g", "--deliveries", "nowhere"],
        ["demo", "--port", "-1"],
        ["nonsense"],
        [],
    ],
    ids=" ".join,
)
def test_wrong_usage(tmp_path: Path, arguments: list[str]) -> None:
    """Wrong usage ends with exit code 2 and the usage, not with a stack trace."""
    done = abcast_here(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "Usage: abcast" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [["publish", "--grup", "g"], ["query", "SELECT 1"], ["config", "show"]], ids=" ".join
)
def test_a_process_says_and_ends_the_same(tmp_path: Path, arguments: list[str]) -> None:
    """Most tests run a command in their own process, which is much faster: it says and does the same."""
    here, there = abcast_here(*arguments, cwd=tmp_path), abcast(*arguments, cwd=tmp_path)
    assert (here.returncode, here.stdout, here.stderr) == (there.returncode, there.stdout, there.stderr)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["publish", "--group", "a b", "--member", "nyc/alice"], "group name 'a b' can't be used"),
        (["deliver", "--group", "g", "--member", "nyc/al/ice"], "write SITE/NAME"),
        (["publish", "--group", "g", "--member", "nyc/" + "x" * 129], "up to 32 characters for the site and 128"),
        (["topics", "create", "--group", "g", "--site", "a.b"], "site name 'a.b' can't be used"),
        (["sequence", "--site", "a.b"], "site name 'a.b' can't be used"),
        (["query", "SELECT 1", "--data", "nowhere"], "there is no ledger in nowhere"),
        (["demo", "--mode", "mesh"], "--mode mesh is for a demo of several sites"),
        (
            ["demo", "--sites", "nyc,sfo", "--stay"],
            "--port and --stay are for a demo of one site",
        ),
        (["run", "--standby"], "add --engine process"),
        (["run", "--standby", "--engine", "process", "--maintain-every", "1h"], "a standby starts no JVM"),
    ],
    ids=["group", "member", "long member", "site", "job at a site", "no ledger", "mode", "stay", "standby", "jvm"],
)
def test_bad_names(tmp_path: Path, broker_is_not_asked: dict[str, str], arguments: list[str], said: str) -> None:
    """A name that can't be used is refused with one sentence and exit code 2."""
    done = abcast_here(*arguments, cwd=tmp_path, variables=broker_is_not_asked)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.startswith("abcast: ")
    assert done.stderr.count("\n") == 1


@pytest.fixture
def broker_is_not_asked() -> dict[str, str]:
    """Use a port on which nothing listens."""
    return {"ABCAST_BOOTSTRAP_SERVERS": "127.0.0.1:1"}


def data_in_use(cwd: Path, *arguments: str, **variables: str) -> str:
    """Return the value of --data that a command works with: `query` names it when no ledger is there."""
    done = abcast_here("query", "SELECT 1", *arguments, cwd=cwd, variables=variables)
    assert done.returncode == 2
    return done.stderr.partition("there is no ledger in ")[2].partition(":")[0]


def test_where_a_value_comes_from(tmp_path: Path) -> None:
    """The option wins over the environment, that over the file's table, that over its top, that over the default."""
    assert data_in_use(tmp_path) == "abcast-data"
    file = tmp_path / "abcast.toml"
    file.write_text('data = "from-top"\ngroup = "g"\n[topics.create]\npartitions = 3\n')
    assert data_in_use(tmp_path) == "from-top"
    file.write_text('data = "from-top"\n[query]\ndata = "from-table"\n')
    assert data_in_use(tmp_path) == "from-table"
    assert data_in_use(tmp_path, ABCAST_DATA="from-environment") == "from-environment"
    assert data_in_use(tmp_path, "--data", "from-option", ABCAST_DATA="from-environment") == "from-option"
    other = tmp_path / "other.toml"
    other.write_text('data = "from-other"\n')
    assert data_in_use(tmp_path, ABCAST_CONFIG=str(other)) == "from-other"


def test_unknown_keys(tmp_path: Path) -> None:
    """A key that no command has is refused, also in a table: a typing error must not be a silent default."""
    (tmp_path / "abcast.toml").write_text(
        'bootstrap-servers = "x"\nsite = "nyc"\n[publish]\ncount = 3\n[publsh]\ntimeout = 1\n[topics]\npartitions = 1\n'
    )
    done = abcast_here("status", cwd=tmp_path)
    assert done.returncode == 2
    told = "bootstrap-servers (bootstrap_servers?), publish.count, publsh (publish?), topics.partitions."
    assert f"unknown keys: {told}" in done.stderr


@pytest.mark.slow
def test_version(tmp_path: Path) -> None:
    """Only the option shows it: a deployment may have a variable ABCAST_VERSION, and a configuration file has no
    such key.
    """
    shown = abcast("--version", cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (0, f"abcast {version('abcast')}\n")
    used = abcast_here("query", "SELECT 1", cwd=tmp_path, variables={"ABCAST_VERSION": "7"})
    assert (used.returncode, used.stdout) == (2, "")
    assert "there is no ledger" in used.stderr
    (tmp_path / "abcast.toml").write_text("version = true\n")
    assert "unknown keys: version." in abcast_here("status", cwd=tmp_path).stderr


@pytest.mark.slow
def test_scripts(tmp_path: Path) -> None:
    """A module that is run alone takes its own part of the file, and leaves it to `abcast` to judge the rest."""

    def run(text: str, **variables: str) -> str:
        (tmp_path / "abcast.toml").write_text(text)
        command = [sys.executable, str(ROOT / "jobs" / "inspection" / "query.py"), "SELECT 1"]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=environment(**variables), timeout=60
        )
        assert (done.returncode, done.stdout) == (2, "")
        return done.stderr

    assert "no ledger in here:" in run('data = "here"\ngroup = "g"\n[topics.create]\npartitions = 3\n')
    assert "no ledger in here:" in run('data = "there"\n[query]\ndata = "here"\n')
    assert "no ledger in here:" in run("", ABCAST_DATA="here")
    assert "unknown keys: query.dta (query.data?)." in run('[query]\ndta = "here"\n')


@pytest.mark.parametrize("text", [b"data = ", b"\xff\xfe"])
def test_unreadable_configuration(tmp_path: Path, text: bytes) -> None:
    """The error names a file that is no TOML, and one that does not exist."""
    (tmp_path / "abcast.toml").write_bytes(text)
    done = abcast_here("status", cwd=tmp_path)
    assert done.returncode == 2
    assert "abcast.toml can't be read" in done.stderr
    missing = abcast_here("status", cwd=tmp_path, variables={"ABCAST_CONFIG": "missing.toml"})
    assert missing.returncode == 2
    assert "missing.toml can't be read: No such file or directory.\n" in missing.stderr


@pytest.mark.slow
def test_unreachable_broker(tmp_path: Path) -> None:
    """Every command that needs a broker says within its 10 s that none answers, and exits 1."""
    commands = {
        "status": [],
        "run": [],
        "topics list": [],
        "check": ["--group", "g"],
        "publish": ["--group", "g", "--member", "alice"],
        "deliver": ["--group", "g", "--member", "alice"],
    }
    started = {
        name: subprocess.Popen(
            [ABCAST, *name.split(), *options, "--bootstrap-servers", "127.0.0.1:1"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environment(),
        )
        for name, options in commands.items()
    }
    try:
        for name, process in started.items():
            _, said = process.communicate(timeout=WAIT)
            assert process.returncode == 1, name
            assert re.match(r"abcast: no Kafka broker answers at 127\.0\.0\.1:1 \(waited 1\d s\)\.", said), name
            assert said.count("\n") == 1, name
    finally:
        for process in started.values():
            process.kill()
