"""Run the commands of conf/deploy that no other test runs, outside of a container and against one pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.spark.packing import UNPACKED
from tests import deployment
from tests.cli.here import abcast_here
from tests.cli.process import abcast


def in_the_place_of(words: list[str], places: dict[str, Path]) -> list[str]:
    return [str(places.get(word, word)) for word in words]


@pytest.mark.parametrize("name", ["kubernetes.yaml", "abcast-run.service"])
def test_what_is_run_is_what_the_pipeline_is(name: str) -> None:
    """`tests/cli/conftest.py` starts the command of compose.yaml."""
    assert deployment.command(name, "run") == deployment.command("compose.yaml", "run")


@pytest.mark.slow
def test_what_compose_runs(tmp_path: Path) -> None:
    """The command gets as far as the broker, which is not there. `make test-long` runs it to its end."""
    command = [*deployment.command("compose.yaml", "run"), "--data", str(tmp_path / "data")]
    done = abcast_here(*command, cwd=tmp_path, variables={"ABCAST_BOOTSTRAP_SERVERS": "127.0.0.1:1"})
    assert done.returncode == 1
    assert "no Kafka broker answers at 127.0.0.1:1" in done.stderr


@pytest.mark.slow
def test_what_sparks_operator_runs(tmp_path: Path) -> None:
    """With the file of the secret; it gets as far as the broker, which is not there."""
    words = deployment.command("spark-application.yaml", "run")
    secret = tmp_path / "kafka.properties"
    secret.write_text("security.protocol=PLAINTEXT\n", encoding="utf-8")
    places = {"/data": tmp_path / "data", "/etc/abcast/kafka.properties": secret}
    command = in_the_place_of(words, places)
    assert set(map(str, places.values())) <= set(command)
    done = abcast_here(*command, cwd=tmp_path, variables={"ABCAST_BOOTSTRAP_SERVERS": "127.0.0.1:1"})
    assert done.returncode == 1
    assert "no Kafka broker answers at 127.0.0.1:1" in done.stderr
    secret.write_text("security.protocol=NONSENSE\n", encoding="utf-8")
    assert abcast_here(*command, cwd=tmp_path).returncode == 2


@pytest.mark.slow
def test_what_the_image_of_executors_has(tmp_path: Path) -> None:
    """The file that Spark's operator starts is in the package, too."""
    package = tmp_path / "package"
    words = deployment.command("Dockerfile", "package")
    done = abcast(*in_the_place_of(words, {"/opt/abcast/package": package}), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "k8s://" in done.stdout
    assert (package / f"{UNPACKED}.tar.gz").exists()
    application = (deployment.DIRECTORY / "spark-application.yaml").read_text(encoding="utf-8")
    [script] = [line.split("local://")[1] for line in application.splitlines() if "mainApplicationFile:" in line]
    assert Path(script).parent == Path("/opt/abcast/package")
    assert (package / Path(script).name).exists()
