"""Copying on executors. Must not import Spark."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from mirror_core.model import logs
from mirror_core.model.errors import (
    BadRequest,
    Indeterminate,
    LostOwnership,
    MirrorError,
    MissingPermission,
    PartitionFailed,
    RemoteFault,
    Unreachable,
)
from mirror_core.model.gc_tuning import reduced_gc_frequency
from mirror_core.model.task_messages import Assignment, TaskReport

TaskFunction = Callable[[bytes], bytes]
"""JSON in, JSON out."""

_ERRORS_BY_NAME: Final = {
    kind.__name__: kind
    for kind in (BadRequest, Indeterminate, LostOwnership, MissingPermission, PartitionFailed, RemoteFault, Unreachable)
}
"""Others become the nearest base class."""


class TaskCrashed(MirrorError):
    """Unexpected error: a defect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """An error is a value: Spark would retry an exception and log its text."""

    report: TaskReport | None = None
    error_class: str = ""
    error: str = ""


_OUTCOME_DECODER: Final = msgspec.json.Decoder(TaskOutcome)
"""Made at import: msgspec 0.22 crashes when two threads build a decoder."""


def run_task(work: TaskFunction, payloads: Iterable[bytes]) -> Iterator[bytes]:
    return map(work, payloads)


def run_copy_task(log: logs.LogSettings, payload: bytes) -> bytes:
    """Copies an `Assignment`. Returns a `TaskOutcome`."""
    from mirror_core.copy import task as copy_task  # late: the driver does not need it

    logs.configure_logging(log)  # goes to the executor's standard error
    assignment = msgspec.json.decode(payload, type=Assignment)
    try:
        with reduced_gc_frequency():
            report = copy_task.run(assignment)
        outcome = TaskOutcome(report=report)
    except MirrorError as error:
        known_type = next((kind for kind in type(error).__mro__ if kind.__name__ in _ERRORS_BY_NAME), type(error))
        outcome = TaskOutcome(error_class=known_type.__name__, error=f"task {assignment.task}: {error}")
    except Exception as error:  # noqa: BLE001 - its text may hold secrets
        outcome = TaskOutcome(
            error_class=type(error).__name__, error=f"task {assignment.task}: {_format_location(error)}"
        )
    return msgspec.json.encode(outcome)


def preload_copy_task(payload: bytes) -> bytes:
    """Imports for `run_copy_task`. Returns the interpreter's version."""
    from mirror_core.copy import task as copy_task

    return f"{sys.version_info.major}.{sys.version_info.minor} {copy_task.__name__}".encode()


def encode_task_death(task: int, reason: str) -> bytes:
    """Its worker died each time."""
    error = (
        f"task {task} left no report and no receipts: {reason}; the next epoch goes on from the destination's log ends"
    )
    return msgspec.json.encode(TaskOutcome(error_class=RemoteFault.__name__, error=error))


def parse_task_report(result: bytes) -> TaskReport:
    """Retriable errors become `retry_reason`; others are raised."""
    outcome = _OUTCOME_DECODER.decode(result)
    if outcome.report is not None:
        return outcome.report
    error = _ERRORS_BY_NAME.get(outcome.error_class, TaskCrashed)
    if issubclass(error, RemoteFault):
        return TaskReport(receipts=(), failures=(), cpu_s=0.0, retry_reason=outcome.error, comparisons_unknown=True)
    raise error(outcome.error)


def _format_location(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{type(error).__name__} in {Path(last.filename).name} line {last.lineno}: a defect of Mirrorbook; "
        "`--runner local --debug` shows all of it"
    )
