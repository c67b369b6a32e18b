"""Structured log on standard error.

`log_context` sets fields for the current thread; others are keyword arguments. Unknown fields are rejected, even
below the log level. Lines never hold secrets: errors are checked where they are made.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, TypedDict, Unpack

import msgspec

from mirror_core.model.text import visible

ROOT: Final = "mirror_core"


class Fields(TypedDict, total=False):
    """In display order."""

    mirror: object
    run: object
    step: object
    cluster: object
    group: object
    partition: object
    epoch: object
    task: object


FIELDS: Final = tuple(Fields.__annotations__)


class Level(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    level: Level = Level.WARNING
    format: Format = Format.TEXT

    def options(self) -> tuple[str, ...]:
        """Command line options for a child process."""
        return ("--log-level", self.level, "--log-format", self.format)


_NONE: Final[MappingProxyType[str, object]] = MappingProxyType({})
_about: ContextVar[MappingProxyType[str, object]] = ContextVar("about", default=_NONE)


@contextmanager
def about(**fields: Unpack[Fields]) -> Iterator[None]:
    before = _about.set(MappingProxyType({**_about.get(), **_known(fields)}))
    try:
        yield
    finally:
        _about.reset(before)


class Logger:
    __slots__ = ("_to",)

    def __init__(self, to: logging.Logger) -> None:
        self._to = to

    def debug(self, words: str, *args: object, exc_info: bool = False, **fields: Unpack[Fields]) -> None:
        self._write(logging.DEBUG, words, args, exc_info, fields)

    def info(self, words: str, *args: object, exc_info: bool = False, **fields: Unpack[Fields]) -> None:
        self._write(logging.INFO, words, args, exc_info, fields)

    def warning(self, words: str, *args: object, exc_info: bool = False, **fields: Unpack[Fields]) -> None:
        self._write(logging.WARNING, words, args, exc_info, fields)

    def error(self, words: str, *args: object, exc_info: bool = False, **fields: Unpack[Fields]) -> None:
        self._write(logging.ERROR, words, args, exc_info, fields)

    def _write(self, level: int, words: str, args: tuple[object, ...], exc_info: bool, fields: Fields) -> None:
        own = _known(fields)
        if self._to.isEnabledFor(level):
            self._to.log(level, words, *args, exc_info=exc_info, extra={"fields": {**_about.get(), **own}})


def logger(name: str) -> Logger:
    return Logger(logging.getLogger(name))


class _Handler(logging.StreamHandler[Any]):
    """Writes to the current `sys.stderr`, which a progress line may replace."""

    def __init__(self, settings: Settings) -> None:
        logging.Handler.__init__(self)
        self.settings = settings
        self.setFormatter(JsonFormatter() if settings.format is Format.JSON else TextFormatter())

    @property
    def stream(self) -> Any:
        return sys.stderr


def configure(settings: Settings) -> None:
    """Logs to standard error from now on, only warnings for libraries.

    Not for processes with their own logging, such as Airflow's.
    """
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, _Handler)]:
        root.removeHandler(handler)
    root.addHandler(_Handler(settings))
    root.setLevel(logging.WARNING)  # libraries such as py4j log too much
    logging.getLogger(ROOT).setLevel(settings.level.upper())


def current() -> Settings:
    """For child processes."""
    return next((h.settings for h in logging.getLogger().handlers if isinstance(h, _Handler)), Settings())


class TextFormatter(logging.Formatter):
    """One line without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={visible(str(value))}" for name, value in _fields(record).items())
        line = f"{_when(record)} {record.levelname} {record.name}{fields}: {visible(record.getMessage())}"
        return "\n  ".join([line, *map(visible, _traceback(record).splitlines())])


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": _when(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _encodable(record.getMessage()),
            **{name: _plain(value) for name, value in _fields(record).items()},
        }
        if told := _traceback(record):
            document["traceback"] = _encodable(told)
        return msgspec.json.encode(document).decode()


def _known(fields: Fields) -> dict[str, object]:
    unknown = fields.keys() - set(FIELDS)
    if unknown:
        raise TypeError(f"no fields of a log line: {', '.join(sorted(unknown))}")
    return {**fields}


def _fields(record: logging.LogRecord) -> dict[str, object]:
    given: dict[str, object] = getattr(record, "fields", {})
    return {name: given[name] for name in FIELDS if given.get(name) is not None}


def _plain(value: object) -> object:
    return value if isinstance(value, int) else _encodable(str(value))


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _when(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _traceback(record: logging.LogRecord) -> str:
    return "" if not record.exc_info else "".join(traceback.format_exception(*record.exc_info))
