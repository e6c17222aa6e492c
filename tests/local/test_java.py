"""Find Java by its answer, and tell other answers from it."""

from __future__ import annotations

from pathlib import Path

from connectors.local.java import java_version


def test_a_signal_is_no_answer(tmp_path: Path) -> None:
    """SIGTERM to all processes of a job kills `java -version`, too: it is asked again, and the job stops in order."""
    java, was_killed = tmp_path / "java", tmp_path / "was-killed"
    java.write_text(
        f"""#!/bin/sh
if [ ! -e {was_killed} ]; then touch {was_killed}; kill -TERM $$; fi
echo 'openjdk version "21.0.1"' >&2
"""
    )
    java.chmod(0o755)
    assert java_version(java) == 21
