"""What a Spark executor does for one assignment. No Spark in here: workers import this module, and must start fast."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from mirror_core.model import logs
from mirror_core.model.copying import Assignment, TaskReport
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
from mirror_core.model.garbage import seldom_sought

Work = Callable[[bytes], bytes]
"""One task's work: JSON in, JSON out."""

_BY_NAME: Final = {
    kind.__name__: kind
    for kind in (BadRequest, Indeterminate, LostOwnership, MissingPermission, PartitionFailed, RemoteFault, Unreachable)
}
"""Others travel as the nearest of these that they are a kind of."""


class TaskCrashed(MirrorError):
    """A copying task met an error that it does not know: a defect of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a task ended. An error travels as a value: an exception would be retried by Spark, whatever its cause, and
    its text would show in Spark's UI, event log and logs."""

    report: TaskReport | None = None
    error_class: str = ""
    error: str = ""


_OUTCOME: Final = msgspec.json.Decoder(Outcome)
"""Made by the thread that imports this: two that meet a type for the first time crash msgspec (0.22)."""


def each(work: Work, payloads: Sequence[bytes], number: int, _: Iterator[int]) -> Iterator[bytes]:
    """The work of the task with this number."""
    yield work(payloads[number])


def copy(stop_file: str, log: logs.Settings, payload: bytes) -> bytes:
    """Copy by one `Assignment`, or until `stop_file` (a path; empty: none) is there. Answers an `Outcome`."""
    from mirror_core.copy import task as copy_task  # late: reading a result on the driver needs none of it

    logs.configure(log)  # a worker is a process of its own; what it logs is in its executor's standard error
    assignment = msgspec.json.decode(payload, type=Assignment)
    try:
        with seldom_sought():
            report = copy_task.run(assignment, lambda: bool(stop_file) and os.path.exists(stop_file))
        outcome = Outcome(report=report)
    except MirrorError as error:
        known = next((kind for kind in type(error).__mro__ if kind.__name__ in _BY_NAME), type(error))
        outcome = Outcome(error_class=known.__name__, error=f"task {assignment.task}: {error}")
    except Exception as error:  # noqa: BLE001 - told to the driver, without a text that nobody checked for secrets
        outcome = Outcome(error_class=type(error).__name__, error=f"task {assignment.task}: {_where(error)}")
    return msgspec.json.encode(outcome)


def warm(payload: bytes) -> bytes:
    """Import what `copy` will need, so that no epoch waits for it. Answers with the interpreter's version."""
    from mirror_core.copy import task as copy_task

    return f"{sys.version_info.major}.{sys.version_info.minor} {copy_task.__name__}".encode()


def report_of(result: bytes) -> TaskReport:
    """The report in a task's answer. An error that may pass becomes a report's `retry`; any other is raised."""
    outcome = _OUTCOME.decode(result)
    if outcome.report is not None:
        return outcome.report
    error = _BY_NAME.get(outcome.error_class, TaskCrashed)
    if issubclass(error, RemoteFault):
        return TaskReport(receipts=(), failures=(), cpu_s=0.0, retry=outcome.error, untold=True)
    raise error(outcome.error)


def _where(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{type(error).__name__} in {Path(last.filename).name} line {last.lineno}: a defect of Mirrorbook; "
        "`--runner local --debug` shows all of it"
    )
