"""The wheel, installed beside an application whose modules have the names of ours in the repository."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from connectors.local.broker import EmbeddedBroker
from connectors.local.jars import jars_directory
from tests.cli.process import ROOT, background, environment
from tests.papers import doc, fences

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

OF_JOBS = ("pyspark", "delta", "deltalake", "pandas", "pyarrow")
EXAMPLE = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)[0]


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel and some dependencies, and an application's directory to start from."""

    python: Path
    application: Path

    def run(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run a program of the environment to its end."""
        command = [str(self.python.parent / arguments[0]), *arguments[1:]]
        return subprocess.run(
            command, input=text, capture_output=True, text=True, cwd=self.application, env=self.variables(), timeout=150
        )

    def output(self, *arguments: str, text: str = "") -> str:
        """Return the output of a command. It must succeed."""
        done = self.run(*arguments, text=text)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def variables(self) -> dict[str, str]:
        """Return variables without the repository and its environment; the jars, which both use, are not fetched
        again.
        """
        path = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        return environment(PATH=path, PYTHONPATH="", ABCAST_TRANSPORT="", ABCAST_JARS=str(jars_directory()))


def install(wheel: Path, application: Path, directory: Path, extra: str) -> Installed:
    """Install the wheel and what it requires, as links to what these tests run with. No network is needed."""
    venv.create(directory, symlinks=True)
    python = directory / "bin" / "python"
    packages = next(directory.glob("lib/python*/site-packages"))
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    [metadata] = packages.glob("abcast-*.dist-info")
    for requirement in required_by(Distribution.at(metadata), extra):
        for file in requirement.files or ():
            link, known = packages / file.parts[0], Path(str(requirement.locate_file(file.parts[0])))
            # What an old pip has installed names files of its source, too.
            if file.parts[0] not in ("..", "__pycache__") and known.exists() and not link.exists():
                link.symlink_to(known)
    return Installed(python, application)


def required_by(wheel: Distribution, extra: str) -> list[Distribution]:
    """Return each distribution that is installed with it."""
    found: dict[str, Distribution] = {}
    asked = [(wheel, extra)]
    while asked:
        asking, for_extra = asked.pop()
        for requirement in map(Requirement, asking.requires or ()):
            if requirement.marker and not requirement.marker.evaluate({"extra": for_extra}):
                continue
            if requirement.name not in found:
                found[requirement.name] = distribution(requirement.name)
                asked.append((found[requirement.name], ",".join(requirement.extras)))
    return list(found.values())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel with hatchling."""
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    [built] = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return an application's directory. It comes first on Python's path, and has modules with the names of ours."""
    directory = tmp_path_factory.mktemp("application")
    for name in ("connectors", "jobs", "ordering"):
        (directory / name).mkdir()
        (directory / name / "__init__.py").write_text("OWN = True\n")
    (directory / "conf.py").write_text("OWN = True\n")
    yield directory
    assert {path.name for path in directory.glob("*.py")} == {"conf.py"}


@pytest.fixture(scope="module")
def base(wheel: Path, application: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """`pip install abcast`."""
    return install(wheel, application, tmp_path_factory.mktemp("base"), extra="")


@pytest.fixture(scope="module")
def with_jobs(wheel: Path, application: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """`pip install 'abcast[jobs]'`."""
    return install(wheel, application, tmp_path_factory.mktemp("jobs"), extra="jobs")


MOVED = """from __future__ import annotations
from abcast.connectors import Member
from abcast.ordering.base.names import (  # as ordering.base.names has them
    Topic,
)
from ordering_of_others import ordering
def late():
    from abcast.jobs.cli import main; import json
    return "from connectors import Member"
"""


def test_what_moves() -> None:
    """Imports of our packages go below `abcast`, in their lines; texts stay. What would break there ends the build."""
    move_imports = runpy.run_path(str(ROOT / "conf" / "hatch_build.py"))["move_imports"]
    assert move_imports(MOVED.replace("from abcast.", "from "), "code.py") == MOVED
    for code in ("import json, ordering.base.names as names", "import connectors", "start('connectors.spark.session')"):
        with pytest.raises(ValueError, match=r"^code\.py:2: "):
            move_imports(f"# first line\n{code}\n", "code.py")


def test_alerts_and_a_dashboard_are_in_the_package(tmp_path: Path) -> None:
    runpy.run_path(str(ROOT / "conf" / "hatch_build.py"))["lay_out"](ROOT, tmp_path)
    files = {file.name for file in (tmp_path / "conf" / "monitoring").iterdir()}
    assert files == {file.name for file in (ROOT / "conf" / "monitoring").iterdir()}
    assert len(files) > 1


def test_names(base: Installed) -> None:
    """The public names exist beside the application's own modules, with their types, and load only Kafka."""
    code = """
import sys
import abcast
before = "kafka" in sys.modules
from abcast import *
from abcast import AbcastError, Delivery, Letter, Member, Receipt, UsageError
import conf, connectors, jobs, ordering
assert conf.OWN and connectors.OWN and jobs.OWN and ordering.OWN
assert issubclass(UsageError, AbcastError) and "Member" in dir(abcast)
print(before, Member.__module__, set(abcast.__all__) <= set(globals()))
try:
    from abcast import Nonsense
except ImportError as error:
    print(error.name)
"""
    assert base.output("python", "-c", code) == "False abcast.connectors.client.api.member True\nabcast\n"
    packages = next(base.python.parents[1].glob("lib/python*/site-packages"))
    assert (packages / "abcast" / "py.typed").exists()
    assert not any((packages / name).exists() for name in ("connectors", "jobs", "ordering", "conf", "tests", *OF_JOBS))


def test_in_memory(base: Installed) -> None:
    """An application that has installed the wheel tests its use of `Member` without a broker, as its page shows."""
    [code] = fences(doc("testing"), "python")
    assert base.output("python", "-c", f"{code}\ntest_everybody_sees_the_order()") == ""


def test_version(base: Installed) -> None:
    """The command and the metadata say the same."""
    version = base.output("python", "-c", "from importlib.metadata import version; print(version('abcast'))")
    assert base.output("abcast", "--version") == base.output("python", "-m", "abcast", "--version")
    assert base.output("abcast", "--version") == f"abcast {version}"


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        ("run", "Spark"),
        ("sequence", "Spark"),
        ("ledger", "Spark"),
        ("demo", "Spark"),
        ("query SELECT", "DuckDB"),
        ("relay --sites sites.toml", "Spark"),
        ("site add b --group g --ledger abcast-data/ledger --sites sites.toml", "pyarrow"),
    ],
    ids=lambda text: str(text).split(" --")[0],
)
def test_without_the_extra(base: Installed, arguments: str, needed: str) -> None:
    """A command that lacks its extra says which one, before anything is started or asked."""
    (base.application / "abcast-data" / "ledger" / "_delta_log").mkdir(parents=True, exist_ok=True)
    sites = "".join(f'[sites.{name}]\nbootstrap_servers = "127.0.0.1:1"\n' for name in "ab")
    (base.application / "sites.toml").write_text(f'mode = "hub"\nhome = "a"\n{sites}')
    done = base.run("abcast", *arguments.split(" ", 10))
    said = f"abcast: this command needs {needed}: pip install 'abcast[jobs]'.\n"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr in (said, f"starting Spark (about 5 s) …\n{said}")


def test_no_jars_without_the_extra(base: Installed, tmp_path: Path) -> None:
    """pyspark's Ivy fetches the embedded broker's jars."""
    code = f"import os; os.environ['ABCAST_JARS'] = {str(tmp_path)!r}; from abcast.jobs.cli import main; main()"
    done = base.run("python", "-c", code, "broker", "start")
    assert done.returncode == 2
    assert done.stderr.endswith("is not installed: pip install 'abcast[jobs]'.\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.long
@pytest.mark.broker
def test_readme_example(base: Installed, with_jobs: Installed, broker: EmbeddedBroker) -> None:
    """With one process that has the jobs, members need no more than the base: the README's example and the commands
    that only talk to Kafka. All of them start in the application's directory, also Spark's Python workers.
    """
    group, site = "of-the-wheel", "wheel"
    example = EXAMPLE.replace('"orders", "alice"', f'"{group}", "{site}/alice"')
    example = example.replace("127.0.0.1:9092", broker.bootstrap_servers)
    assert group in example
    assert broker.bootstrap_servers in example
    at = ("--bootstrap-servers", broker.bootstrap_servers)
    base.output("abcast", "topics", "create", "--group", group, "--site", site, *at)
    job: list[str | Path] = [with_jobs.python.parent / "abcast", "run", "--site", site, *at]
    with background(*job, cwd=with_jobs.application, **with_jobs.variables()) as running:
        running.wait_for("ready")
        assert base.output("python", "-c", f"import conf, connectors\n{example}") == f"1 {site}/alice b'buy 100'\n"
        member = ("--group", group, "--member", f"{site}/bob", *at)
        assert "2 messages ordered, last seqno 3" in base.output("abcast", "publish", *member, text="a\nb\n")
        assert base.output("abcast", "deliver", *member, "--count", "3").splitlines()[2] == f"3\t{site}/bob\tb"
        status = base.run("abcast", "status", "--group", group, "--site", site, "--json", *at)
        assert json.loads(status.stdout)["last_seqno"] == 3
        assert status.stderr in ("", "abcast: the ledger needs pyarrow: pip install 'abcast[jobs]'.\n")
        assert base.output("abcast", "check", "--group", group, "--site", site, "--data", "none", *at)
        assert running.terminate() == 0, "".join(running.lines)
    assert "Traceback" not in "".join(running.lines)


@pytest.mark.broker
def test_a_sequencer_without_the_extra(base: Installed, broker: EmbeddedBroker) -> None:
    """The process engine orders with what the base has: no Spark, no Delta."""
    group, site = "of-the-base", "base"
    at = ("--bootstrap-servers", broker.bootstrap_servers)
    base.output("abcast", "topics", "create", "--group", group, "--site", site, *at)
    job: list[str | Path] = [base.python.parent / "abcast", "sequence", "--engine", "process", "--site", site, *at]
    with background(*job, cwd=base.application, **base.variables()) as running:
        running.wait_for("ready")
        member = ("--group", group, "--member", f"{site}/bob", *at)
        assert "2 messages ordered, last seqno 2" in base.output("abcast", "publish", *member, text="a\nb\n")
        assert running.terminate() == 0, "".join(running.lines)
    assert "Traceback" not in "".join(running.lines)
