"""One run of a DAG, as the person who started it follows it: what it says, what it asks, how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from demo.airflow import ASKING_STATES, Airflow, AirflowFailed
from mirror_core.model.figures import FigureKey, find_definition
from mirrorbook_tools.demo.terminal_screen import Screen

RUN_TIMEOUT_S: Final = 900.0
FINAL: Final = ("success", "failed")
PLAN_SAYS: Final = tuple(
    f"| {find_definition(key).label} |" for key in (FigureKey.LOST_OFFSETS, FigureKey.DISCARDED_OFFSETS)
)
"""Rows of a plan that are told before it is approved."""
WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "mirror_create": {
        "create": "the topics are on west, with the same partitions and settings",
        "sync": "settings, ACLs and the groups' offsets are on west, too",
    },
    "mirror_failover_unplanned": {
        "cut_over": "west is open for writes, and east is to be closed as soon as it is back",
        "switch": "the applications are told to use west",
        "canary": "a record that was written to west came back",
        "report": "the report is written and signed",
    },
    "mirror_failback": {
        "salvage": "what only east has is saved to files",
        "align": "it is taken off east's log",
        "catch_up": "east has what west has, but for the last moment",
        "home.prove": "Spark has compared both sides record by record: they are equal",
        "home.cut_over": "west is closed, east has every record, and is open for writes",
        "home.switch": "the applications are told to use east",
        "home.report": "the report is written and signed",
        "reprotect": "east is copied to west again",
    },
}
"""What it means that a task has succeeded, for somebody who has never seen a runbook. Other tasks are not told."""


class Conducted:
    """Started at once. `approvals`: the tasks whose questions are answered with yes."""

    def __init__(
        self,
        airflow: Airflow,
        screen: Screen,
        tick: Callable[[], None],
        dag: str,
        conf: Mapping[str, object],
        approvals: Sequence[str] = (),
    ) -> None:
        self._airflow = airflow
        self._screen = screen
        self._tick = tick
        self._dag = dag
        self._approvals = approvals
        self._seen = dict[str, str]()
        self._answered = set[str]()
        self._deadline = time.monotonic() + RUN_TIMEOUT_S
        airflow.unpause(dag)
        self._run = airflow.trigger(dag, conf, note="demo")
        screen.say(f"Airflow: DAG {dag} is started")

    def until(self, task: str) -> None:
        """Follow it until this task has succeeded. AirflowFailed when it has ended without."""
        while self._seen.get(task) != "success":
            state = self._look()
            if state in FINAL and self._seen.get(task) != "success":
                raise AirflowFailed(f"{self._dag} run {self._run} is {state} before {task}: {self._reasons()}")
            self._wait()

    def end(self) -> None:
        """Follow it to its end."""
        while (state := self._look()) not in FINAL:
            self._wait()
        if state != "success":
            raise AirflowFailed(f"{self._dag} run {self._run} is red: {self._reasons()}")
        self._screen.say(f"Airflow: DAG {self._dag} has ended well")

    # -- inside -------------------------------------------------------------------------------------------------

    def _look(self) -> str:
        """The run's state; what is new is told, what is asked is answered."""
        state, tasks = self._airflow.run_state(self._dag, self._run), self._airflow.tasks(self._dag, self._run)
        for task, words in WORDS.get(self._dag, {}).items():
            if tasks.get(task) == "success" != self._seen.get(task):
                self._screen.say(f"{words} ({task})")
        self._seen = tasks
        asked = {task for task in self._approvals if tasks.get(task) in ASKING_STATES}
        for task in asked - self._answered:
            self._approve(task)
        self._answered = asked  # one that is asked again later (see ApprovePlan) is answered again
        return state

    def _approve(self, task: str) -> None:
        self._airflow.await_question(self._dag, self._run, task, RUN_TIMEOUT_S)
        subject, body = self._airflow.question(self._dag, self._run, task)
        for line in body.splitlines():
            if line.startswith(PLAN_SAYS):
                self._screen.say(f"the plan says: {line.strip('| ').replace(' | ', ': ')}")
        self._airflow.answer(self._dag, self._run, task, "Approve")
        self._screen.say(f"asked and approved: {subject}")

    def _wait(self) -> None:
        if time.monotonic() > self._deadline:
            raise AirflowFailed(f"{self._dag} run {self._run} has not ended within {RUN_TIMEOUT_S:.0f} s: {self._seen}")
        self._tick()

    def _reasons(self) -> str:
        failed = [task for task, state in self._seen.items() if state == "failed"]
        logs = (f"task {task}:\n{self._airflow.log_of(self._dag, self._run, task)[-3000:]}" for task in failed)
        return "\n".join(logs) or f"no task failed: {self._seen}"
