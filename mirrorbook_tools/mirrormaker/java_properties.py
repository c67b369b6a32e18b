"""Java's properties files, as `java.util.Properties` reads them: comments, escapes, continued lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mirror_core.model.errors import BadRequest
from mirror_core.model.text import format_bytes

MAX_FILE_BYTES: Final = 1 << 20
_BLANKS: Final = " \t\f"
_LINE_END: Final = re.compile(r"\r\n|\n|\r")
_TOKEN: Final = re.compile(r"\\u([0-9a-fA-F]{4})|\\(.)|([^\\])", re.DOTALL)
_CONTROL_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True)
class Property:
    key: str
    value: str
    line: int
    """Where it begins, from 1."""


def read_properties(path: Path) -> tuple[Property, ...]:
    """All in the file's order, repeated keys too. Latin-1, as Java reads it. Raises BadRequest."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadRequest(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise BadRequest(f"{path}: larger than {format_bytes(MAX_FILE_BYTES)}: give MirrorMaker's properties file")
    if b"\0" in data:
        line = len(_LINE_END.findall(data[: data.index(b"\0")].decode("latin-1"))) + 1
        raise BadRequest(f"{path} line {line}: holds a zero byte: give MirrorMaker's properties file")
    return tuple(parse_properties(data.decode("latin-1"), str(path)))


def parse_properties(text: str, where: str) -> Iterator[Property]:
    """`where` begins error messages."""
    for number, line in _join_continued_lines(text):
        try:
            key, value = _split_property(line)
            yield Property(_unescape(key), _unescape(value), number)
        except UnicodeError:
            raise BadRequest(
                f"{where} line {number}: malformed \\u escape: write \\u and the four hexadecimal digits of a character"
            ) from None


def _join_continued_lines(text: str) -> Iterator[tuple[int, str]]:
    """With the number of the first of its lines, without comments and blank lines."""
    joined, first = "", 0
    for number, natural_line in enumerate(_LINE_END.split(text), start=1):
        line = natural_line.lstrip(_BLANKS)
        if not first and (not line or line[0] in "#!"):
            continue
        first = first or number
        is_continued = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        joined += line[:-1] if is_continued else line
        if not is_continued:
            yield first, joined
            joined, first = "", 0
    if joined:
        yield first, joined


def _split_property(line: str) -> tuple[str, str]:
    """Still escaped. The key ends at the first `=`, `:` or blank that no backslash precedes."""
    end = 0
    while end < len(line) and line[end] not in f"=:{_BLANKS}":
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_BLANKS)
    return line[:end], (rest[1:] if rest[:1] in ("=", ":") else rest).lstrip(_BLANKS)


def _unescape(text: str) -> str:
    """UnicodeError: a \\u without four digits, or half a character."""
    units = list[str]()
    for match in _TOKEN.finditer(text):
        code, escaped, plain = match.groups()
        if escaped == "u":
            raise UnicodeError
        units.append(chr(int(code, 16)) if code else plain or _CONTROL_ESCAPES.get(escaped, escaped))
    return "".join(units).encode("utf-16-le", "surrogatepass").decode("utf-16-le")
