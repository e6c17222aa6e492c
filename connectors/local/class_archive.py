"""Archives of the classes that Java has read and checked before: most of a start otherwise (`jobs.class_archive`)."""

from __future__ import annotations

from pathlib import Path

from connectors.local.jars import jars_directory


def class_archive(name: str) -> Path:
    """Return the path of the archive for `broker` or `spark`, whether or not it was made."""
    return jars_directory() / f"{name}.jsa"


def archive_options(name: str, archive_to: Path | None = None) -> list[str]:
    """Return Java's options to use the archive, if it was made; or to write one to `archive_to` at the end."""
    archive = class_archive(name)
    if archive_to is not None:
        option = f"-XX:ArchiveClassesAtExit={archive_to}"
    elif archive.exists():
        option = f"-XX:SharedArchiveFile={archive}"
    else:
        return []
    # Java complains on standard output about classes left out, and about an archive of another Java.
    return [option, "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
