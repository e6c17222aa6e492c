"""The one site of ABCAST_SITE or abcast.toml, for commands that take several; and their other lists of one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ordering.base.errors import UsageError
from ordering.base.names import Topic
from tests.cli.here import abcast_here

IN_ACL = ("--role", "ledger", "--principal", "User:x")
COMMANDS = {
    "topics create": (),
    "topics upgrade": (),
    "topics delete": ("--yes",),
    "acl print": IN_ACL,
    "acl apply": IN_ACL,
    "check": (),
}
EVERYWHERE = {"topics delete": ["local", "nyc", "sfo"]}
SITES = '[sites.nyc]\nbootstrap_servers = "127.0.0.1:1"\n[sites.sfo]\nbootstrap_servers = "127.0.0.1:2"\n'


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace what asks a broker; return the list to which a command adds the sites where it does its work."""
    sites: list[str] = []

    def create(_: object, __: str, names: Iterable[str], *___: object) -> list[str]:
        sites.extend(names)
        return []

    def upgrade(_: object, __: str, name: str, *___: object) -> Any:
        sites.append(name)
        return SimpleNamespace(before=3, after=3)

    def delete(_: object, topics: Iterable[Topic]) -> None:
        sites.extend(topic.site for topic in topics)

    def grant(_: object, __: str, rights: Iterable[Any]) -> None:
        sites.extend(right.name.rpartition(".")[2] for right in rights if ".data." in right.name)

    def read(_: str, connections: Iterable[str], **__: object) -> Any:
        sites.extend(connections)
        raise SystemExit(0)

    found = [Topic("g", "data", name) for name in EVERYWHERE["topics delete"]]
    for where, by in {
        "topics.topics.check_layout": lambda *_: None,
        "topics.topics.create_topics": create,
        "topics.upgrade.upgrade": upgrade,
        "topics.topics.find_topics": lambda _: found,
        "topics.topics.delete_topics": delete,
        "topics.rights.grant": grant,
    }.items():
        monkeypatch.setattr(f"connectors.kafka.{where}", by)
    monkeypatch.setattr("connectors.diagnosis.report.check_sites", read)
    return sites


def sites_of(at: list[str], name: str, cwd: Path, *options: str | Path, **variables: str) -> list[str]:
    """Return the sites where a command does its work."""
    at.clear()
    done = abcast_here(*name.split(), "-g", "g", *COMMANDS[name], *options, cwd=cwd, variables=variables)
    assert done.returncode == 0, done.stderr
    if name == "acl print":
        at += [line.partition(".data.")[2].split()[0] for line in done.stdout.splitlines() if ".data." in line]
    return sorted(set(at))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_site(at: list[str], name: str, tmp_path: Path) -> None:
    """The option goes before the variable, the variable before the context, the context before the file."""
    assert sites_of(at, name, tmp_path) == EVERYWHERE.get(name, ["local"])
    assert sites_of(at, name, tmp_path, ABCAST_SITE="nyc") == ["nyc"]
    assert sites_of(at, name, tmp_path, "--site", "sfo", ABCAST_SITE="nyc") == ["sfo"]
    assert sites_of(at, name, tmp_path, "--site", "sfo", "--site", "local", ABCAST_SITE="nyc") == ["local", "sfo"]
    file = tmp_path / "abcast.toml"
    file.write_text('site = "nyc"\n[contexts.c]\nsite = "sfo"\n')
    assert sites_of(at, name, tmp_path) == ["nyc"]
    assert sites_of(at, name, tmp_path, ABCAST_CONTEXT="c") == ["sfo"]
    assert sites_of(at, name, tmp_path, ABCAST_CONTEXT="c", ABCAST_SITE="nyc") == ["nyc"]
    table = f"[{name.replace(' ', '.')}]"
    file.write_text(f'site = "nyc"\n{table}\nsite = "sfo"\n')
    assert sites_of(at, name, tmp_path) == ["sfo"]
    file.write_text(f'site = "nyc"\n{table}\nsite = ["sfo", "local"]\n')
    assert sites_of(at, name, tmp_path) == ["local", "sfo"]


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    ("variables", "text", "told"),
    [
        ({"ABCAST_SITE": " "}, "", "ABCAST_SITE is blank"),
        ({"ABCAST_SITE": ""}, "", "ABCAST_SITE is blank"),
        ({"ABCAST_SITE": "a.b"}, "", "site name 'a.b' can't be used"),
        ({}, 'site = ""', "site name '' can't be used"),
    ],
)
def test_a_mistake_is_not_all_sites(
    at: list[str], name: str, variables: dict[str, str], text: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "abcast.toml").write_text(text)
    done = abcast_here(*name.split(), "-g", "g", *COMMANDS[name], cwd=tmp_path, variables=variables)
    assert (done.returncode, done.stdout, at) == (2, "", [])
    assert told in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_two_variables_name_different_sites(at: list[str], name: str, tmp_path: Path) -> None:
    variables = {"ABCAST_SITE": "nyc", f"ABCAST_{name.upper().replace(' ', '_')}_SITE": "sfo"}
    done = abcast_here(*name.split(), "-g", "g", *COMMANDS[name], cwd=tmp_path, variables=variables)
    assert (done.returncode, done.stdout, at) == (2, "", [])
    assert "differ: unset one of them" in done.stderr


def test_no_topics_at_the_site(at: list[str], tmp_path: Path) -> None:
    done = abcast_here("topics", "delete", "-g", "g", "-y", cwd=tmp_path, variables={"ABCAST_SITE": "rome"})
    assert (done.returncode, at) == (2, [])
    assert "no topics of group g at rome:" in done.stderr


def test_a_check_of_sites_is_of_all(at: list[str], tmp_path: Path) -> None:
    """The site of all commands is where this machine is: a check there alone would pass over what others lack."""
    file = tmp_path / "sites.toml"
    file.write_text(SITES)
    assert sites_of(at, "check", tmp_path, ABCAST_SITES=str(file), ABCAST_SITE="nyc") == ["nyc", "sfo"]
    assert sites_of(at, "check", tmp_path, "--site", "nyc", ABCAST_SITES=str(file), ABCAST_SITE="nyc") == ["nyc"]
    assert sites_of(at, "check", tmp_path, ABCAST_SITES=str(file), ABCAST_CHECK_SITE="sfo") == ["sfo"]
    (tmp_path / "abcast.toml").write_text(f'site = "nyc"\nsites = "{file}"\n')
    assert sites_of(at, "check", tmp_path) == ["nyc", "sfo"]
    (tmp_path / "abcast.toml").write_text(f'site = "nyc"\nsites = "{file}"\n[check]\nsite = "sfo"\n')
    assert sites_of(at, "check", tmp_path) == ["sfo"]


def test_the_group_of_a_restore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's one group is a list of one for the command that takes several."""

    def plan(_: object, name: str, *__: object) -> None:
        raise UsageError(f"it would restore {name}.")

    monkeypatch.setattr("connectors.relay.restore.plan", plan)
    (tmp_path / "abcast.toml").write_text('group = "orders"\n')
    done = abcast_here("restore", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "abcast: it would restore orders.\n")
