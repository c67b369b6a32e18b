from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def escape_invisible(text: str) -> str:
    r"""One line, with invisible characters and cursor controls written out: `\x1b`, `\n`, `\u202e`.

    Not reversible: a backslash stays one.
    """
    if text.isprintable():  # the common case
        return text
    return "".join(char if char.isprintable() else _escape_char(char) for char in text)


def escape_invisible_lines(text: str) -> str:
    """Keeps line breaks."""
    return "\n".join(escape_invisible(line) for line in text.split("\n"))


def _escape_char(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def format_suggestion(name: str, known_names: Iterable[str]) -> str:
    matches = get_close_matches(name, list(known_names), n=1, cutoff=0.75)
    return f"; is {matches[0]} meant?" if matches else ""


def format_address(host: str, port: int) -> str:
    """`host:port`; `[::1]:9092` for IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
