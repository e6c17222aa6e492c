"""Names and values of a properties file of Java's, such as Kafka's and Spark's."""

from __future__ import annotations

_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", **{c: f"\\{c}" for c in "\\=: #!"}}


def escaped(text: str) -> str:
    """The text as Java reads it, in ASCII: some of its readers take a file for Latin-1, others for UTF-8."""
    return "".join(_ESCAPES.get(c) or (c if c.isascii() else _in_units(c)) for c in text)


def _in_units(character: str) -> str:
    raw = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{raw[at : at + 2].hex()}" for at in range(0, len(raw), 2))
