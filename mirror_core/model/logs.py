"""Structured log on standard error.

Unknown fields are rejected, even below the log level. Lines never hold secrets: errors are checked where they are made.
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

from mirror_core.model.text import escape_invisible

ROOT_LOGGER: Final = "mirror_core"


class LogFields(TypedDict, total=False):
    """In display order."""

    mirror: object
    run: object
    step: object
    cluster: object
    group: object
    partition: object
    epoch: object
    task: object


LOG_FIELDS: Final = tuple(LogFields.__annotations__)


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    level: LogLevel = LogLevel.WARNING
    format: LogFormat = LogFormat.TEXT

    def to_options(self) -> tuple[str, ...]:
        """For a child process's command line."""
        return ("--log-level", self.level, "--log-format", self.format)


_NO_FIELDS: Final[MappingProxyType[str, object]] = MappingProxyType({})
_context_fields: ContextVar[MappingProxyType[str, object]] = ContextVar("about", default=_NO_FIELDS)


@contextmanager
def log_context(**fields: Unpack[LogFields]) -> Iterator[None]:
    token = _context_fields.set(MappingProxyType({**_context_fields.get(), **_check_fields(fields)}))
    try:
        yield
    finally:
        _context_fields.reset(token)


class Logger:
    __slots__ = ("_wrapped",)

    def __init__(self, target: logging.Logger) -> None:
        self._wrapped = target

    def debug(self, message: str, *args: object, exc_info: bool = False, **fields: Unpack[LogFields]) -> None:
        self._write(logging.DEBUG, message, args, exc_info, fields)

    def info(self, message: str, *args: object, exc_info: bool = False, **fields: Unpack[LogFields]) -> None:
        self._write(logging.INFO, message, args, exc_info, fields)

    def warning(self, message: str, *args: object, exc_info: bool = False, **fields: Unpack[LogFields]) -> None:
        self._write(logging.WARNING, message, args, exc_info, fields)

    def error(self, message: str, *args: object, exc_info: bool = False, **fields: Unpack[LogFields]) -> None:
        self._write(logging.ERROR, message, args, exc_info, fields)

    def _write(self, level: int, message: str, args: tuple[object, ...], exc_info: bool, fields: LogFields) -> None:
        fields_given = _check_fields(fields)
        if self._wrapped.isEnabledFor(level):
            self._wrapped.log(
                level, message, *args, exc_info=exc_info, extra={"fields": {**_context_fields.get(), **fields_given}}
            )


def get_logger(name: str) -> Logger:
    return Logger(logging.getLogger(name))


class _StderrHandler(logging.StreamHandler[Any]):
    """Writes to the current `sys.stderr`, which a progress line may replace."""

    def __init__(self, settings: LogSettings) -> None:
        logging.Handler.__init__(self)
        self.settings = settings
        self.setFormatter(JsonFormatter() if settings.format is LogFormat.JSON else TextFormatter())

    @property
    def stream(self) -> Any:
        return sys.stderr


def configure_logging(settings: LogSettings) -> None:
    """To standard error; of libraries only warnings.

    Not for processes with their own logging, such as Airflow's.
    """
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, _StderrHandler)]:
        root.removeHandler(handler)
    root.addHandler(_StderrHandler(settings))
    root.setLevel(logging.WARNING)  # libraries such as py4j log too much
    logging.getLogger(ROOT_LOGGER).setLevel(settings.level.upper())


def get_log_settings() -> LogSettings:
    return next((h.settings for h in logging.getLogger().handlers if isinstance(h, _StderrHandler)), LogSettings())


class TextFormatter(logging.Formatter):
    """One line without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={escape_invisible(str(value))}" for name, value in _get_fields(record).items())
        line = (
            f"{_format_time(record)} {record.levelname} {record.name}{fields}: {escape_invisible(record.getMessage())}"
        )
        return "\n  ".join([line, *map(escape_invisible, _format_traceback(record).splitlines())])


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": _format_time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _to_encodable(record.getMessage()),
            **{name: _to_json_value(value) for name, value in _get_fields(record).items()},
        }
        if traceback_text := _format_traceback(record):
            document["traceback"] = _to_encodable(traceback_text)
        return msgspec.json.encode(document).decode()


def _check_fields(fields: LogFields) -> dict[str, object]:
    unknown = fields.keys() - set(LOG_FIELDS)
    if unknown:
        raise TypeError(f"no fields of a log line: {', '.join(sorted(unknown))}")
    return {**fields}


def _get_fields(record: logging.LogRecord) -> dict[str, object]:
    recorded: dict[str, object] = getattr(record, "fields", {})
    return {name: recorded[name] for name in LOG_FIELDS if recorded.get(name) is not None}


def _to_json_value(value: object) -> object:
    return value if isinstance(value, int) else _to_encodable(str(value))


def _to_encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _format_time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _format_traceback(record: logging.LogRecord) -> str:
    return "" if not record.exc_info else "".join(traceback.format_exception(*record.exc_info))
