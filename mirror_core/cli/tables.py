"""Tables: columns, blocks on narrow terminals, plain lines in pipes."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import typer
from rich.cells import cell_len

from mirror_core.cli.output import MAX_LINE_WIDTH, format_block, get_terminal_width, list_wrapped_lines, split_unbroken
from mirror_core.model.findings import Finding
from mirror_core.model.text import escape_invisible

MIN_TABLE_WIDTH: Final = 100
"""Narrower terminals get a table only if no cell has to wrap."""
_COLUMN_GAP: Final = "  "
_BAD_CELLS: Final = frozenset({"FAILED", "NOT READY", "NOT COPIED", "NOWHERE", "refusal", "failed", "indeterminate"})
"""Red on a terminal, if whole cells."""


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], silent: Collection[str] = ()
) -> None:
    """On a terminal without the columns that have no value. No word, name or command is broken."""
    title = escape_invisible(title)
    if not rows:
        typer.echo(f"{title}: {Finding('list_unread', clusters=silent) if silent else 'none'}")
        return
    is_terminal = sys.stdout.isatty()
    filled = [
        n for n in range(len(columns)) if n == 0 or not is_terminal or any(row[n] not in (None, "") for row in rows)
    ]
    names = [columns[n] for n in filled]
    cells = [[_format_cell(row[n], is_terminal) for n in filled] for row in rows]
    typer.echo(typer.style(title, bold=True) if is_terminal else title)
    lines = _lay_out(names, cells, get_terminal_width()) if is_terminal else list_columns(names, cells)
    for line in lines:
        typer.echo(line)
    if is_terminal:
        typer.echo("")


def fits_terminal(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> bool:
    """As a table of which no cell wraps."""
    cells = [[_format_cell(cell, True) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(columns, *cells, strict=True)]
    return sum(widths) + len(_COLUMN_GAP) * (len(columns) - 1) <= get_terminal_width()


def _format_cell(value: object, is_terminal: bool) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and is_terminal:
        return f"{value:,}"
    return "" if value is None else escape_invisible(" ".join(str(value).split("\n")))


def _lay_out(columns: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> Iterable[str]:
    if len(columns) == 1:
        return [
            line for row in cells for line in list_wrapped_lines(row[0], width=width, first_indent="- ", indent="  ")
        ]
    widths = _choose_widths(columns, cells, width)
    return list_blocks(columns, cells, width) if widths is None else _list_rows(columns, cells, widths)


def _choose_widths(columns: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """None if they do not fit. The first column stays whole."""
    by_column = list(zip(columns, *cells, strict=True))
    widths = [max(map(cell_len, column)) for column in by_column]
    available = width - len(_COLUMN_GAP) * (len(columns) - 1)
    if sum(widths) <= available:
        return widths
    if width < MIN_TABLE_WIDTH:
        return None
    least = [
        widths[n] if n == 0 else max((cell_len(word) for cell in column for word in split_unbroken(cell)), default=0)
        for n, column in enumerate(by_column)
    ]
    if sum(least) > available:
        return None
    while sum(widths) > available:
        widest = max((n for n in range(len(widths)) if widths[n] > least[n]), key=lambda n: widths[n])
        widths[widest] -= 1
    return widths


def _list_rows(columns: Sequence[str], cells: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    yield _join(columns, widths)
    yield _COLUMN_GAP.join("-" * width for width in widths)
    for row in cells:
        wrapped = [list_wrapped_lines(cell, width=width) or [""] for cell, width in zip(row, widths, strict=True)]
        for n in range(max(map(len, wrapped))):
            line = [lines[n] if n < len(lines) else "" for lines in wrapped]
            yield _join(line, widths, is_styled=True)


def list_columns(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """One whole line a row, two blanks between columns, `-` for no value: for `grep` and `awk -F '  +'`."""
    shown = [[cell or "-" for cell in row] for row in cells]
    widths = [max(map(cell_len, column)) for column in zip(columns, *shown, strict=True)]
    yield _join(columns, widths)
    for row in shown:
        yield _join(row, widths)


def _join(cells: Sequence[str], widths: Sequence[int], *, is_styled: bool = False) -> str:
    padded = (
        (_style(cell) if is_styled else cell) + " " * (width - cell_len(cell))
        for cell, width in zip(cells, widths, strict=True)
    )
    return _COLUMN_GAP.join(padded).rstrip()


def _style(cell: str) -> str:
    return typer.style(cell, fg=typer.colors.RED, bold=True) if cell in _BAD_CELLS else cell


def list_blocks(columns: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """A row of two cells is one paragraph; of more, a heading and a line for each value."""
    width = min(width, MAX_LINE_WIDTH)
    for row in cells:
        if len(row) == 2:
            yield from list_wrapped_lines(f"{row[0]}: {row[1]}" if row[0] else row[1], width=width, indent="    ")
            continue
        yield from list_wrapped_lines(row[0], width=width)
        yield from format_block(
            [(column, cell) for column, cell in zip(columns[1:], row[1:], strict=True) if cell], width=width
        )
