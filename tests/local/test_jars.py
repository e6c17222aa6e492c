"""Find Java and the jars, or say how to get them."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from connectors.local import jars, java
from ordering.base.errors import EnvironmentProblem, UsageError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "configuration",
    [pytest.param(each, marks=[pytest.mark.soak] if each == "s3" else []) for each in jars.CONFIGURATIONS],
)
def test_the_jars_are_those_of_the_lock(configuration: str) -> None:
    assert jars.locked_hashes(configuration)
    jars.jars_of(configuration)  # those for S3 may not have been needed yet
    jars.check_hashes(jars.jars_directory() / configuration, configuration)


def test_other_jars_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed jar, a strange one, a missing one."""
    known = jars.locked_hashes("spark")
    names = sorted(known)
    for name in (*names[1:], "stranger.jar"):
        (tmp_path / name).write_bytes(b"another one")
    with pytest.raises(EnvironmentProblem, match=rf"not expected is stranger\.jar; missing is {re.escape(names[0])}\)"):
        jars.check_hashes(tmp_path, "spark")
    monkeypatch.setenv("ABCAST_JARS", str(tmp_path / "jars"))
    monkeypatch.setattr(jars, "retrieve", lambda *given: (given[2].mkdir(), (given[2] / names[0]).write_bytes(b"bad")))
    with pytest.raises(EnvironmentProblem, match="another content than expected has"):
        jars.resolve(["spark"], progress=lambda _: None)
    assert not (tmp_path / "jars" / "spark").exists(), "nothing of it is left"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "11.0.2" 2019-01-15', 11),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
    ],
)
def test_java_version_is_read_from_what_java_prints(text: str, version: int | None) -> None:
    assert version == java.parse_java_version(text)


def fake_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n", encoding="ascii")
    program.chmod(0o755)
    return program


def test_java_home_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = fake_java(tmp_path, "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    assert program == java.require_java()


def test_old_java_is_refused_with_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(EnvironmentProblem, match=r"is Java 11, which is too old: install a JDK 17"):
        java.require_java()


def test_java_home_without_java_is_an_error_even_with_java_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(EnvironmentProblem, match="no bin/java in it"):
        java.require_java()


def test_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(EnvironmentProblem, match="No Java was found: install"):
        java.require_java()


def test_java_is_checked_without_any_dependency(tmp_path: Path) -> None:
    """make setup checks Java before it has installed anything, so -S (no site-packages) must do."""
    command = [sys.executable, "-S", "-m", "connectors.local.java"]
    answer = subprocess.run(command, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)

    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.startswith("No Java was found: ")
    assert len(answer.stderr.splitlines()) == 1


def test_fetched_jars_are_used_without_asking_anyone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABCAST_JARS", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "b.jar").touch()
    (tmp_path / "spark" / "a.jar").touch()
    (tmp_path / "spark" / ".complete").write_text(jars._wanted_stamp("spark"), encoding="ascii")

    assert [tmp_path / "spark" / "a.jar", tmp_path / "spark" / "b.jar"] == jars.jars_of("spark")


def test_a_changed_ivy_file_replaces_the_jars_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABCAST_JARS", str(tmp_path / "jars"))
    (tmp_path / "jars" / "spark").mkdir(parents=True)
    (tmp_path / "jars" / "spark" / "old.jar").touch()
    (tmp_path / "jars" / "spark" / ".complete").write_text("another ivy.xml", encoding="ascii")

    def ivy(_ivy_file: Path, _configuration: str, target: Path) -> None:
        target.mkdir()
        (target / "new.jar").touch()

    monkeypatch.setattr(jars, "retrieve", ivy)
    monkeypatch.setattr(jars, "locked_hashes", lambda _: {"new.jar": hashlib.sha256(b"").hexdigest()})
    told: list[str] = []

    assert [jar.name for jar in jars.jars_of("spark", told.append)] == ["new.jar"]
    assert [path.name for path in (tmp_path / "jars").iterdir() if not path.name.endswith(".lock")] == ["spark"]
    assert told[0].startswith("Fetching the jars for spark")


@pytest.mark.slow
def test_a_failed_fetch_says_what_to_do_and_leaves_nothing_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ivy uses a mirror that does not exist, which fails as a missing network does."""
    settings = tmp_path / "settings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="r"/><resolvers>'
        '<ibiblio name="r" m2compatible="true" root="http://127.0.0.1:1/"/></resolvers></ivysettings>',
        encoding="ascii",
    )
    monkeypatch.setenv("ABCAST_IVY_SETTINGS", str(settings))
    monkeypatch.setenv("ABCAST_JARS", str(tmp_path / "jars"))

    with pytest.raises(EnvironmentProblem, match=r"could not be fetched .*: check the network") as caught:
        jars.jars_of("broker", lambda _sentence: None)

    assert "the registry does not answer for" in str(caught.value)
    assert not (tmp_path / "jars" / "broker").exists()


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ABCAST_JARS", str(tmp_path / "file" / "jars"))

    with pytest.raises(EnvironmentProblem, match="name another directory in ABCAST_JARS"):
        jars.jars_of("spark", lambda _sentence: None)


def test_an_unknown_configuration_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no jars for flink"):
        jars.resolve(["flink"])


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("java.net.UnknownHostException: registry\n", "the name of the registry can't be resolved"),
        ("\t\t:: io.delta#delta-storage;4.4.0: not found\n", "not found for delta-storage 4.4.0"),
        ("java.io.IOException: No space left on device", "the disk is full"),
        ("", "the download stopped"),
    ],
)
def test_failure_reason_is_short_and_specific(log: str, reason: str) -> None:
    assert reason == jars.failure_reason(log)


def test_a_proxy_for_python_is_one_for_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")

    assert jars._proxy_options() == ["-Dhttps.proxyHost=proxy.example", "-Dhttps.proxyPort=3128"]
