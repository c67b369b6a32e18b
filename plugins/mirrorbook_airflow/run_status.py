"""The last task of a runbook, however that ended: who can write where, what is pending, and which command is next.

A teardown without a set-up task: it runs when all before it has ended, also when a plan was rejected or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator

from mirror_core.model.errors import MirrorError
from mirror_core.model.run import RunKind
from mirror_core.model.text import escape_invisible_lines
from mirrorbook_airflow.approvals import find_planned_set
from mirrorbook_airflow.errors import airflow_errors
from mirrorbook_airflow.mirror_lookup import find_mirror, find_set
from mirrorbook_airflow.operators import TASK_DEFAULTS, MirrorOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from mirror_core.state.state_records import State

LAST_WORDS_TASK: Final = "last_words"


class LogMirrorStatus(MirrorOperator):
    """By the run that `begin` opened, else by the newest one."""

    def __init__(self, *, begin: BaseOperator, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.begin_task = begin.task_id

    def execute(self, context: Context) -> str:
        run = context["ti"].xcom_pull(task_ids=self.begin_task)
        return _log_lines(self, _read_status_lines(self.mirror, lambda state: run))


class LogSetStatus(BaseOperator):
    """An unreachable destination hides no other mirror."""

    template_fields: Sequence[str] = ("set_name",)

    def __init__(self, *, set_name: str, begin: BaseOperator, kind: RunKind = RunKind.FAILOVER, **kwargs: Any) -> None:
        super().__init__(**{**TASK_DEFAULTS, **kwargs})
        self.set_name = set_name
        self.kind = kind
        self.begin_task, self.plan_task = begin.task_id, getattr(begin, "plan_task", "")

    def execute(self, context: Context) -> str:
        attempt = context["ti"].xcom_pull(task_ids=self.begin_task)
        with airflow_errors():
            try:
                mirrors = find_planned_set(context, self.plan_task, self.set_name, self.kind).mirrors
            except MirrorError:  # what was planned cannot be told; who writes where can, of those that answer
                mirrors = find_set(self.set_name, self.kind).mirrors

        def find_own_run(state: State, mirror: str) -> str | None:
            runs = (run for run in state.runs.values() if run.plan.mirror == mirror)
            return next((run.id for run in runs if attempt and run.set_run == attempt), None)

        lines_by_mirror = {
            mirror: _read_status_lines(mirror, partial(find_own_run, mirror=mirror)) for mirror in mirrors
        }
        return _log_lines(self, [f"{mirror}: {line}" for mirror, lines in lines_by_mirror.items() for line in lines])


def _read_status_lines(mirror: str, find_run: Callable[[State], str | None]) -> Sequence[str]:
    from mirror_core.runbook.run_outcome import read_mirror_status

    try:
        link, state = find_mirror(mirror)
    except MirrorError as error:
        return (f"Who can write where is not known here: {error}",)
    return read_mirror_status(link, find_run(state))


def _log_lines(task: BaseOperator, lines: Iterable[str]) -> str:
    """Escaped: names may hold control characters."""
    escaped = [escape_invisible_lines(line) for line in lines]
    for line in escaped:
        task.log.info("%s", line)
    return "\n".join(escaped)
