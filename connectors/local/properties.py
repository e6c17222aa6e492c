"""Escape names and values for Java's properties files, such as Kafka's and Spark's."""

from __future__ import annotations

_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", **{c: f"\\{c}" for c in "\\=: #!"}}


def escaped(text: str) -> str:
    """Return the text escaped for Java, in ASCII: some Java programs read such a file as Latin-1, others as UTF-8."""
    return "".join(_ESCAPES.get(c) or (c if c.isascii() else _in_units(c)) for c in text)


def _in_units(character: str) -> str:
    raw = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{raw[at : at + 2].hex()}" for at in range(0, len(raw), 2))
