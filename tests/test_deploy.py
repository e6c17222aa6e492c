"""The files of conf/deploy/: what they run is there, and nothing in them is misspelt.

Their commands are run by `tests/cli`: its pipeline on Spark is started by that of compose.yaml, the others by
`test_deployed`.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.core import TyperGroup

from jobs.cli import command
from tests import deployment
from tests.cli.process import ABCAST
from tests.papers import ROOT, doc, section
from tests.test_docs import parameters

FILES = sorted(path.name for path in deployment.DIRECTORY.iterdir() if not path.name.endswith("ignore"))


def parse(words: list[str]) -> None:
    """Raise the command line's error for these words."""
    name, below = words[0], command().commands[words[0]]
    rest = words[1:]
    while isinstance(below, TyperGroup):
        name, below, rest = rest[0], below.commands[rest[0]], rest[1:]
    below.make_context(name, list(rest))


@pytest.mark.parametrize("name", FILES)
def test_commands(name: str) -> None:
    """Each is a command of abcast, with options that it has."""
    found = [words for words in deployment.commands(name) if words]
    assert found
    for words in found:
        parse(words)


def test_an_option_that_is_not_there() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse(["run", "--nonsense"])


@pytest.mark.parametrize("name", FILES)
def test_variables(name: str) -> None:
    text = (deployment.DIRECTORY / name).read_text(encoding="utf-8")
    assert set(re.findall(r"\bABCAST_[A-Z_]+", text)) <= set(parameters(command()))


def test_the_image_is_made_of_what_is_here() -> None:
    """The copied files are in the repository, and the commands are modules of the package."""
    text = (deployment.DIRECTORY / "Dockerfile").read_text(encoding="utf-8")
    for source in re.findall(r"^COPY (\S+) ", text, re.MULTILINE):
        assert (ROOT / source).exists(), source
    modules = re.findall(r"-m abcast\.([\w.]+)", text)
    assert modules
    for module in modules:
        assert importlib.util.find_spec(module), module
    targets = set(re.findall(r"^FROM \S+ AS (\S+)", text, re.MULTILINE))
    for name in ("compose.yaml", "kubernetes.yaml", "spark-application.yaml"):
        described = (deployment.DIRECTORY / name).read_text(encoding="utf-8")
        assert set(re.findall(r"\bimage: (abcast\S*)", described)) <= targets


def test_the_versions_of_spark_and_kafka() -> None:
    """The versions are the same as in the lock file and the jars."""
    locked = (ROOT / "conf" / "requirements.lock").read_text(encoding="utf-8")
    [spark] = re.findall(r"^pyspark==(\S+)", locked, re.MULTILINE)
    [kafka] = re.findall(r"kafka_2\.13-(\S+)\.jar", (ROOT / "conf" / "jars.lock").read_text(encoding="utf-8"))
    texts = {name: (deployment.DIRECTORY / name).read_text(encoding="utf-8") for name in FILES}
    assert re.findall(r"apache/spark:([\d.]+)-", texts["Dockerfile"]) == [spark]
    assert re.findall(r"sparkVersion: (\S+)", texts["spark-application.yaml"]) == [spark]
    assert re.findall(r"apache/kafka:(\S+)", texts["compose.yaml"]) == [kafka]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_the_unit_is_one(tmp_path: Path) -> None:
    unit = tmp_path / "abcast-run.service"
    text = (deployment.DIRECTORY / unit.name).read_text(encoding="utf-8")
    unit.write_text(text.replace("/opt/abcast/bin/abcast", ABCAST if Path(ABCAST).exists() else sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_file_is_described() -> None:
    described = section(doc("deployment"), "## Deploying")
    for name in FILES:
        assert f"`conf/deploy/{name}`" in described
