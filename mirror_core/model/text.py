from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def visible(text: str) -> str:
    r"""One line, with invisible characters and cursor controls written out: `\x1b`, `\n`, `\u202e`.

    Not reversible: a backslash stays one.
    """
    if text.isprintable():  # the common case
        return text
    return "".join(char if char.isprintable() else _written_out(char) for char in text)


def visible_lines(text: str) -> str:
    """Keeps line breaks."""
    return "\n".join(visible(line) for line in text.split("\n"))


def _written_out(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def suggestion(name: str, known: Iterable[str]) -> str:
    found = get_close_matches(name, list(known), n=1, cutoff=0.75)
    return f"; is {found[0]} meant?" if found else ""


def format_address(host: str, port: int) -> str:
    """`host:port`; `[::1]:9092` for IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
