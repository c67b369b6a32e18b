"""The log: what happened, for whoever looks for a cause later. What a command says to a person is not its business.

A line has fields beside its words (`Fields`). Those that hold for a while are given by `about`, for the thread that
enters it; the others with the call. Another field is refused by the type checker, and by the call itself, whether its
level is written or not:

    _log = logger(__name__)
    with about(mirror=name, epoch=7, task=0):
        _log.info("looks at its log end again: %s", error, partition=replicator.partition)

It goes to standard error, and never holds a secret: an error's text is checked for that where it is made.
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
    """What a line may have beside its words, in the order in which it is shown."""

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
    """From which weight on lines are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Format(StrEnum):
    """How a line is written."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is written, and how."""

    level: Level = Level.WARNING
    format: Format = Format.TEXT

    def options(self) -> tuple[str, ...]:
        """The same for another process of the command line."""
        return ("--log-level", self.level, "--log-format", self.format)


_NONE: Final[MappingProxyType[str, object]] = MappingProxyType({})
_about: ContextVar[MappingProxyType[str, object]] = ContextVar("about", default=_NONE)


@contextmanager
def about(**fields: Unpack[Fields]) -> Iterator[None]:
    """All that this thread logs meanwhile has these fields."""
    before = _about.set(MappingProxyType({**_about.get(), **_known(fields)}))
    try:
        yield
    finally:
        _about.reset(before)


class Logger:
    """A module's logger. Its methods take what `logging` takes, and fields as keywords."""

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
    """A module's logger: `logger(__name__)`."""
    return Logger(logging.getLogger(name))


class _Handler(logging.StreamHandler[Any]):
    """Ours: there is one at most. Writes to the standard error of the moment, which a progress line may have taken."""

    def __init__(self, settings: Settings) -> None:
        logging.Handler.__init__(self)
        self.settings = settings
        self.setFormatter(JsonFormatter() if settings.format is Format.JSON else TextFormatter())

    @property
    def stream(self) -> Any:
        return sys.stderr


def configure(settings: Settings) -> None:
    """Write the log of this process to standard error from now on; of libraries, warnings only. Again: changes it.

    Processes that belong to somebody else (Airflow's, an application's) have a log already, and don't call this.
    """
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, _Handler)]:
        root.removeHandler(handler)
    root.addHandler(_Handler(settings))
    root.setLevel(logging.WARNING)  # py4j and others tell a lot, and nobody has looked at what
    logging.getLogger(ROOT).setLevel(settings.level.upper())


def current() -> Settings:
    """How this process was configured, for processes that work for it."""
    return next((h.settings for h in logging.getLogger().handlers if isinstance(h, _Handler)), Settings())


class TextFormatter(logging.Formatter):
    """One line for a person: time, level, where in the code, fields, words. Nothing in it can move the cursor."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={visible(str(value))}" for name, value in _fields(record).items())
        line = f"{_when(record)} {record.levelname} {record.name}{fields}: {visible(record.getMessage())}"
        return "\n  ".join([line, *map(visible, _traceback(record).splitlines())])


class JsonFormatter(logging.Formatter):
    """One JSON object in one line for a machine: time, level, logger, message, the fields, and a traceback if any."""

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
