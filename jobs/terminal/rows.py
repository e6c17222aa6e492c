"""Rows as text: a table that fits the terminal, JSON lines, CSV. No value can do anything to the terminal."""

from __future__ import annotations

import base64
import csv
import json
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import IO, Any

NARROWEST = 10
"""The least characters of a wide column. If not all columns can have as many, a row becomes several lines."""
_GAP = 3


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], file: IO[str], *, is_folded: bool = False
) -> None:
    """Print a table, never wider than a terminal: long values end in …, and too many columns are shown as lines.

    `is_folded`: long values are wrapped instead.
    """
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len, set_cell_size
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    kept = [list(row) for row in rows]
    texts = [[printable(value) for value in row] for row in kept]
    widths = [max(map(cell_len, column)) for column in zip(columns, *texts, strict=True)]
    gaps = _GAP * len(widths)
    console = Console(file=file, highlight=False, width=None if file.isatty() else sum(widths) + gaps)
    if sum(min(width, NARROWEST) for width in widths) + gaps > console.width:
        _show_below_each_other(columns, texts, file)
        return
    while sum(widths) + gaps > console.width:
        widths[widths.index(max(widths))] -= 1

    def fitted(values: Sequence[str]) -> list[Text]:
        fits = [cell_len(value) <= width for value, width in zip(values, widths, strict=True)]
        pairs = zip(values, widths, [fit or is_folded for fit in fits], strict=True)
        return [Text(value if fit else set_cell_size(value, width - 1) + "…") for value, width, fit in pairs]

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
    for number, name in enumerate(fitted(columns)):
        is_number = bool(kept) and all(isinstance(row[number], int | float | Decimal | None) for row in kept)
        table.add_column(
            name,
            justify="right" if is_number else "left",
            no_wrap=not is_folded,
            overflow="fold",
            width=widths[number] if is_folded else None,
        )
    for row in texts:
        table.add_row(*fitted(row))
    console.print(table)


def show_sentence(text: str, file: IO[str]) -> None:
    """Print a text on one line; on a terminal, wrapped between words, with all lines but the first indented."""
    text = printable(text)
    if file.isatty():
        width = shutil.get_terminal_size().columns
        text = textwrap.fill(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    file.write(text + "\n")


def _show_below_each_other(columns: Sequence[str], texts: Iterable[Sequence[str]], file: IO[str]) -> None:
    width = max(map(len, columns))
    for number, row in enumerate(texts, 1):
        file.write(f"row {number}\n")
        for name, text in zip(columns, row, strict=True):
            file.write(f"  {name:<{width}}  {text}\n")


def write_json(columns: Sequence[str], rows: Iterable[Sequence[Any]], file: IO[str]) -> None:
    """Write a JSON object a line. Bytes that are no text are base64 under NAME_base64, as in `abcast deliver`."""
    for row in rows:
        file.write(json.dumps(_of_json(dict(zip(columns, row, strict=True))), ensure_ascii=False) + "\n")


def write_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]], file: IO[str]) -> None:
    """Write a line of names, then a line a row. Null is empty, and bytes that are no text are `base64:…`."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow("" if value is None else as_text(value) for value in row)


def printable(value: Any) -> str:
    """Return a value on one line, without characters that control a terminal."""
    text = "null" if value is None else as_text(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def harmless(text: str) -> str:
    """Escape control characters but tabs as Python does: the text stays on its line, and can't control the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else ascii(c)[1:-1] for c in text)


def json_line(line: Mapping[str, Any], headers: Iterable[tuple[str, bytes]] = ()) -> str:
    """Return a JSON object on one line, with the headers if there are any, and without control characters."""
    shown = [[key, value.decode("utf-8", "backslashreplace")] for key, value in headers]
    text = json.dumps({**line, "headers": shown} if shown else line, ensure_ascii=False)
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def as_text(value: Any) -> str:
    """Return a value as text; bytes that are no text as `base64:…`."""
    if isinstance(value, bytes | bytearray):
        text = _decoded(value)
        return "base64:" + base64.b64encode(value).decode("ascii") if text is None else text
    if isinstance(value, list | dict | tuple):
        return json.dumps(_of_json(value), ensure_ascii=False)
    return str(value)


def _of_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(json_entry(str(name), below) for name, below in value.items())
    if isinstance(value, list | tuple):
        return [_of_json(below) for below in value]
    if isinstance(value, bytes | bytearray):
        return as_text(value)
    if isinstance(value, Decimal):
        if value == value.to_integral_value():
            return int(value)
        return float(value) if Decimal(repr(float(value))) == value else str(value)  # no digit is lost
    if isinstance(value, float):
        return value if value - value == 0 else None  # JSON has no infinity
    if value is None or isinstance(value, str | int):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def json_entry(name: str, value: Any) -> tuple[str, Any]:
    """Return the name and the value of a field of a JSON object. Bytes that are no text get another name."""
    if isinstance(value, bytes | bytearray) and _decoded(value) is None:
        return f"{name}_base64", base64.b64encode(value).decode("ascii")
    return name, _of_json(value)


def _decoded(value: bytes | bytearray) -> str | None:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return None
