"""Text from others, made safe to show; quantities, addresses and shell commands as text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final


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


def format_items(items: Iterable[object]) -> str:
    """Below a sentence. An item's further lines, as of an error with a list of its own, are indented more."""
    return "".join("\n  - " + escape_invisible_lines(str(item)).replace("\n", "\n    ") for item in items)


def indent_further_lines(text: str) -> str:
    """So that no name with a line break looks like a line of ours."""
    first, *further = text.split("\n")
    return "\n".join([first, *(line if line[:1] in ("", " ") else f"  {line}" for line in further)])


def _escape_char(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def format_suggestion(name: str, known_names: Iterable[str]) -> str:
    matches = get_close_matches(name, list(known_names), n=1, cutoff=0.75)
    return f"; is {matches[0]} meant?" if matches else ""


def format_address(host: str, port: int) -> str:
    """`host:port`; `[::1]:9092` for IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def format_shell_command(program: str, *arguments: str) -> str:
    """All command lines to paste come from here, on one line, so that no name in them is executed."""
    return " ".join(_quote_argument(argument) for argument in (program, *arguments))


def _quote_argument(argument: str) -> str:
    r"""Control characters as `$'\012'`: otherwise they would start a new line, or steer the terminal."""
    if argument.isprintable():
        return shlex.quote(argument)
    chars = (f"\\{char}" if char in "\\'" else char if char.isprintable() else _to_octal(char) for char in argument)
    return f"$'{''.join(chars)}'"


def _to_octal(char: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", "surrogatepass"))


def format_option(name: str, value: str) -> tuple[str, ...]:
    """Joins with `=` when the value begins with a dash."""
    return (f"{name}={value}",) if value.startswith("-") else (name, value)


_DURATION_UNITS_MS: Final[Mapping[str, int]] = MappingProxyType(
    {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}
)
_DURATION_PATTERN: Final = re.compile(r"([0-9]{1,9}) ?([dhms])|0")


def parse_duration_ms(text: str) -> int | None:
    """`24h`, `90 m`, `0`. None: not a duration."""
    match = _DURATION_PATTERN.fullmatch(text.strip())
    if match is None:
        return None
    return int(match[1]) * _DURATION_UNITS_MS[match[2]] if match[1] else 0


def format_duration_ms(duration_ms: int) -> str:
    """`1 d` rather than `24 h`; less than a second is dropped."""
    unit, unit_ms = next(
        ((unit, unit_ms) for unit, unit_ms in _DURATION_UNITS_MS.items() if duration_ms % unit_ms == 0), ("s", 1_000)
    )
    return f"{duration_ms // unit_ms} {unit}"


def format_count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_age(seconds: float) -> str:
    return f"{format_elapsed(seconds)} ago"


def format_elapsed(seconds: float) -> str:
    for unit, unit_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:,.0f} {unit}"
    return f"{seconds:.1f} s"


def format_time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def join_limited(items: Iterable[object], limit: int = 10, total: int | None = None) -> str:
    """On one line. `total`: how many there are, if `items` are only the first."""
    texts = [escape_invisible(str(item)) for item in items]
    more = (len(texts) if total is None else total) - limit
    more_text = f" and {more} more" if more > 0 else ""
    return ", ".join(texts[:limit]) + more_text


def format_bytes(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"
