"""Contexts of the configuration file: `abcast --context prod`, and what goes before what."""

from __future__ import annotations

import json
import os
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from connectors.kafka.connection.client_configuration import ClientConfiguration
from connectors.kafka.login.configuration import configured
from tests.cli.here import abcast_here
from tests.cli.test_usage import data_in_use

FILE = """
bootstrap_servers = "dev:1"
data = "of-the-top"
group = "dev-orders"
[kafka]
protocol = "SASL_SSL"
mechanism = "PLAIN"
username = "dev"
password = "dev-secret"
[topics.create]
partitions = 3
[contexts.prod]
bootstrap_servers = "prod:1"
site = "nyc"
[contexts.prod.publish]
timeout = 5
[contexts.prod.kafka]
protocol = "SSL"
key_password = "prod-secret"
[contexts.test]
data = "of-test"
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "abcast.toml").write_text(FILE)
    (tmp_path / "abcast.toml").chmod(0o600)
    return tmp_path


def shown(cwd: Path, *options: str, **variables: str) -> dict[str, tuple[str, str]]:
    """Return the values in force, and their sources."""
    done = abcast_here(*options, "config", "show", "--json", cwd=cwd, variables=variables)
    assert done.returncode == 0, done.stderr
    assert "secret" not in done.stdout
    return {row["name"]: (row["value"], row["from"]) for row in map(json.loads, done.stdout.splitlines())}


def test_what_a_context_has_goes_before_the_rest_of_the_file(here: Path) -> None:
    """Kafka and the login to it are one: nothing of the rest is used with another server."""
    values = shown(here, "--context", "prod")
    of_prod = "abcast.toml [contexts.prod]"
    assert values["contexts"] == ("prod, test", "abcast.toml")
    assert values["context"] == ("prod", "ABCAST_CONTEXT")
    assert values["bootstrap_servers"] == ("prod:1", of_prod)
    assert values["kafka.protocol"] == ("SSL", f"{of_prod} [kafka]")
    assert values["kafka.key_password"] == ("**********", f"{of_prod} [kafka]")
    assert "kafka.username" not in values
    assert (values["site"], values["data"]) == (("nyc", of_prod), ("of-the-top", "abcast.toml"))
    assert (values["group"], values["publish.timeout"]) == (("dev-orders", "abcast.toml"), ("5", of_prod))
    assert values["topics.create.partitions"] == ("3", "abcast.toml")


def test_without_a_context_the_file_is_as_it_was(here: Path) -> None:
    values = shown(here)
    assert "context" not in values
    assert values["bootstrap_servers"] == ("dev:1", "abcast.toml")
    assert values["kafka.username"] == ("dev", "abcast.toml [kafka]")
    assert "publish.timeout" not in values


def test_the_order_of_sources(tmp_path: Path) -> None:
    """Option, environment, context, file, default; in both parts of the file a command's table before the top."""
    file = tmp_path / "abcast.toml"
    file.write_text('[query]\ndata = "of-the-table"\n[contexts.c]\ndata = "of-the-context"\n')
    in_c = {"ABCAST_CONTEXT": "c"}
    assert data_in_use(tmp_path) == "of-the-table"
    assert data_in_use(tmp_path, **in_c) == "of-the-context"
    assert data_in_use(tmp_path, "--context", "c") == "of-the-context"
    assert data_in_use(tmp_path, "--context=c") == "of-the-context"
    assert data_in_use(tmp_path, ABCAST_DATA="of-the-variable", **in_c) == "of-the-variable"
    assert data_in_use(tmp_path, "--data", "of-the-option", ABCAST_DATA="of-the-variable", **in_c) == "of-the-option"
    file.write_text('context = "c"\n[contexts.c.query]\ndata = "of-its-table"\n[contexts.c]\ndata = "of-its-top"\n')
    assert data_in_use(tmp_path) == "of-its-table"
    file.write_text('context = "c"\n[contexts.c]\ngroup = "g"\n[contexts.d]\ndata = "of-another"\n')
    assert data_in_use(tmp_path) == "abcast-data"
    assert data_in_use(tmp_path, "--context", "d", **in_c) == "of-another"


def test_a_variable_that_goes_before_the_context_is_told(here: Path) -> None:
    """The user may have forgotten the variable."""
    done = abcast_here("config", "show", "--context", "prod", cwd=here, variables={"ABCAST_BOOTSTRAP_SERVERS": "dev:1"})
    told = "abcast: ABCAST_BOOTSTRAP_SERVERS goes before bootstrap_servers of the context prod\n"
    assert (done.returncode, done.stderr.startswith(told)) == (0, True)
    assert "goes to dev:1 (ABCAST_BOOTSTRAP_SERVERS), not to the context's servers, prod:1\n" in done.stderr


def test_so_is_one_that_goes_before_its_login(here: Path) -> None:
    """Each variable is told that hides a key; the rest of the context's login is used with it."""
    variables = {"ABCAST_KAFKA_PROTOCOL": "PLAINTEXT", "ABCAST_KAFKA_USERNAME": "eve"}
    done = abcast_here("config", "show", "--context", "prod", cwd=here, variables=variables)
    assert done.stderr == "abcast: ABCAST_KAFKA_PROTOCOL goes before kafka.protocol of the context prod\n"


def test_so_is_a_file_of_a_login(here: Path) -> None:
    (here / "client.properties").write_text("security.protocol=PLAINTEXT\n")
    variables = {"ABCAST_KAFKA_CONFIG": "client.properties"}
    done = abcast_here("config", "show", "--context", "prod", cwd=here, variables=variables)
    assert done.stderr == "abcast: ABCAST_KAFKA_CONFIG goes before [kafka] of the context prod\n"


@pytest.mark.parametrize(("key", "variable"), [("password", "PASSWORD_FILE"), ("key_password_file", "KEY_PASSWORD")])
def test_so_is_the_other_form_of_a_secret(tmp_path: Path, key: str, variable: str) -> None:
    """A password and its file exclude each other, so either hides both of the context's."""
    (tmp_path / "abcast.toml").write_text(f"[contexts.prod.kafka]\nprotocol = 'SSL'\n{key} = 'x'\n")
    (tmp_path / "abcast.toml").chmod(0o600)
    variables = {f"ABCAST_KAFKA_{variable}": "y"}
    done = abcast_here("config", "show", "--context", "prod", cwd=tmp_path, variables=variables)
    assert done.stderr == f"abcast: ABCAST_KAFKA_{variable} goes before kafka.{key} of the context prod\n"


def test_a_login_that_goes_to_other_servers_is_told(here: Path) -> None:
    line = ("config", "show", "--context", "prod", "--bootstrap-servers")
    told = "the login of the context prod goes to other:1 (argument), not to the context's servers, prod:1\n"
    assert told in abcast_here(*line, "other:1", cwd=here).stderr
    assert abcast_here(*line, "prod:1", cwd=here).stderr == ""
    assert abcast_here("config", "show", "--bootstrap-servers", "other:1", cwd=here).stderr == ""


def test_a_secret_of_a_context_that_is_not_chosen(here: Path) -> None:
    """Other users can read the file, although the chosen context hides these logins."""
    for secret in ("[contexts.prod.kafka]\npassword = 'x'", "[kafka]\npassword = 'x'"):
        file = here / f"{len(secret)}.toml"
        file.write_text(f"{secret}\n[contexts.test]\nbootstrap_servers = 'test:1'\n")
        file.chmod(0o644)
        variables = {"ABCAST_CONFIG": file.name, "ABCAST_CONTEXT": "test"}
        assert f"chmod 600 {file.name}" in abcast_here("config", "show", cwd=here, variables=variables).stderr


def test_headers_are_not_shown(here: Path) -> None:
    """A header may have a token."""
    (here / "abcast.toml").write_text('[send]\nheader = ["authorization=Bearer secret"]\n')
    values = shown(here, ABCAST_PUBLISH_HEADER="authorization=Bearer secret")
    assert [values[name][0] for name in ("send.header", "publish_header")] == ["**********"] * 2


def test_a_member_takes_it_too(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    monkeypatch.delenv("ABCAST_SITE", raising=False)
    monkeypatch.setenv("ABCAST_CONTEXT", "prod")
    assert configured("site", "local") == "nyc"
    assert ClientConfiguration().settings["bootstrap_servers"].value == "prod:1"
    assert ClientConfiguration().security.protocol == "SSL"
    monkeypatch.setenv("ABCAST_CONTEXT", "")
    assert configured("site", "local") == "local"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (None, ["--context", "prod", "status"], "no context 'prod': the configuration file abcast.toml has none."),
        (FILE, ["status", "--context", "prd"], "no context 'prd': the configuration file abcast.toml has prod, test."),
        (FILE, ["status", "--context"], "Option '--context' requires an argument"),
        ("contexts = 3", ["status"], "contexts in the configuration file abcast.toml are tables, [contexts.NAME]."),
        ("[contexts]\nprod = 3", ["status"], "are tables, [contexts.NAME]."),
        ("[contexts.a]\nsit = 'x'", ["status"], "has unknown keys: contexts.a.sit (site?)."),
        ("[contexts.a.publish]\ncount = 1", ["status"], "has unknown keys: contexts.a.publish.count."),
        ("[contexts.a.kafka]\nuser = 'x'", ["status", "--context", "a"], "has unknown keys: kafka.user"),
        ("context = 7", ["status"], "context in the configuration file abcast.toml is the name of a context, not 7."),
        ("context = ['x']", ["status", "--context", "x"], "is the name of a context, not ['x']."),
    ],
)
def test_a_mistake(tmp_path: Path, text: str | None, line: list[str], said: str) -> None:
    if text is not None:
        (tmp_path / "abcast.toml").write_text(text)
    done: CompletedProcess[str] = abcast_here(*line, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_leaves_nothing_behind(here: Path) -> None:
    """The variable is set for processes that the command starts."""
    before = os.environ.get("ABCAST_CONTEXT")
    shown(here, "--context", "prod")
    assert os.environ.get("ABCAST_CONTEXT") == before
