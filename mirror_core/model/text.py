"""Text that others chose (topics, groups, principals, records, brokers' words), as a person may be shown it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def visible(text: str) -> str:
    r"""The text in one line. What would not be seen, or would move the cursor, is written out: `\x1b`, `\n`, `\u202e`.

    Control, format (bidirectional marks, zero width) and separator characters, and halves of surrogate pairs. It is for
    the eye, and not reversible: a backslash stays one.
    """
    if text.isprintable():  # all but those; the common case
        return text
    return "".join(char if char.isprintable() else _written_out(char) for char in text)


def visible_lines(text: str) -> str:
    """The same of a message of ours that has several lines."""
    return "\n".join(visible(line) for line in text.split("\n"))


def _written_out(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def suggestion(name: str, known: Iterable[str]) -> str:
    """What may be meant by a name that is not known, for the end of a sentence; empty when nothing is like it."""
    found = get_close_matches(name, list(known), n=1, cutoff=0.75)
    return f"; is {found[0]} meant?" if found else ""


def format_address(host: str, port: int) -> str:
    """`host:port`, and `[::1]:9092` for an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
