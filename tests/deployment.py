"""Commands that the files of conf/deploy/ have a container, a pod or systemd run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

DIRECTORY = Path(__file__).parent.parent / "conf" / "deploy"
_LISTS = re.compile(r"(?:command:|args:|arguments:|CMD|ENTRYPOINT) (\[.*?\])")
_HERE = re.compile(r"(?:&& |^RUN )((?:python3 -m )?abcast .*?)(?: \\)?$", re.MULTILINE)


def commands(name: str) -> list[list[str]]:
    """Return the arguments of `abcast` in each command of a file; its lists are JSON."""
    text = (DIRECTORY / name).read_text(encoding="utf-8")
    found: list[list[str]] = [json.loads(each) for each in _LISTS.findall(text)]
    found += [shlex.split(line.split("=", 1)[1]) for line in text.splitlines() if line.startswith("ExecStart=")]
    found += [shlex.split(line) for line in _HERE.findall(text)]
    return [list(filter(None, _arguments(words))) for words in found]


def command(name: str, first: str) -> list[str]:
    """Return the command that begins with this word."""
    [words] = {tuple(words) for words in commands(name) if words[:1] == [first]}
    return list(words)


def _arguments(words: list[str]) -> list[str]:
    named = [number for number, word in enumerate(words) if word.rpartition("/")[2] == "abcast"]
    return words[named[0] + 1 :] if named else words
