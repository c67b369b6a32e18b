"""The last task of a runbook, however that ended: who can write where, what is pending, and which command is next.

A teardown without a set-up task: it runs when all before it has ended, also when a plan was rejected or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator

from mirror_core.model.errors import MirrorError
from mirror_core.model.text import escape_invisible_lines
from mirrorbook_airflow.errors import airflow_errors
from mirrorbook_airflow.mirror_lookup import find_mirror, find_set
from mirrorbook_airflow.operators import TASK_DEFAULTS, MirrorOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from mirror_core.state.state_records import State

LAST_WORDS: Final = "last_words"


class LastWords(MirrorOperator):
    """How this mirror stands, by the run that `begin` opened; by its newest one, where nothing was begun."""

    def __init__(self, *, begin: BaseOperator, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.begin_task = begin.task_id

    def execute(self, context: Context) -> str:
        run = context["ti"].xcom_pull(task_ids=self.begin_task)
        return _logged(self, _words(self.mirror, lambda state: run))


class LastWordsOfSet(BaseOperator):
    """The same of each mirror of this set. One whose destination does not answer hides no other."""

    template_fields: Sequence[str] = ("set_name",)

    def __init__(self, *, set_name: str, begin: BaseOperator, **kwargs: Any) -> None:
        super().__init__(**{**TASK_DEFAULTS, **kwargs})
        self.set_name = set_name
        self.begin_task = begin.task_id

    def execute(self, context: Context) -> str:
        attempt = context["ti"].xcom_pull(task_ids=self.begin_task)
        with airflow_errors():
            mirrors = find_set(self.set_name).mirrors

        def own(state: State, mirror: str) -> str | None:
            runs = (run for run in state.runs.values() if run.plan.mirror == mirror)
            return next((run.id for run in runs if attempt and run.set_run == attempt), None)

        said = {name: _words(name, lambda state, name=name: own(state, name)) for name in mirrors}  # type: ignore[misc]
        return _logged(self, [f"{name}: {line}" for name, lines in said.items() for line in lines])


def _words(mirror: str, run_of: Callable[[State], str | None]) -> Sequence[str]:
    from mirror_core.runbook.run_outcome import read_mirror_status

    try:
        link, state = find_mirror(mirror)
    except MirrorError as error:
        return (f"Who can write where is not known here: {error}",)
    return read_mirror_status(link, run_of(state))


def _logged(task: BaseOperator, lines: Iterable[str]) -> str:
    """Into the task's log, which shows colours: names in it are anybody's."""
    said = [escape_invisible_lines(line) for line in lines]
    for line in said:
        task.log.info("%s", line)
    return "\n".join(said)
