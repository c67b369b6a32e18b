"""The task that a failback and the failover of a set end with, however they end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.model.config_sections import MirrorSet
from mirror_core.model.errors import Unreachable
from mirror_core.model.names import MirrorName
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import State
from tests.support.cluster_names import LINK
from tests.support.mirror_views import RUN
from tests.support.sentences import format_sentence

pytestmark = [pytest.mark.dag, pytest.mark.filterwarnings("ignore")]  # Airflow's own warnings

A, B = MirrorName("m"), MirrorName("n")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """Of which mirror, and which run of it, the last words were wanted."""
    from mirrorbook_airflow import runbook

    found = list[tuple[str, str | None]]()

    def say(link: MirrorLink, run: str | None) -> tuple[str, ...]:
        found.append((link.mirror.name, run))
        return ("Applications write on east.", "Next: \x1b[31mthis.")

    def find(mirror: str) -> tuple[MirrorLink, State]:
        if mirror == B:
            raise Unreachable("cluster south does not answer")
        state = State()
        state.runs[RUN.id] = RUN
        state.runs["of-set"] = SimpleNamespace(id="of-set", set_run="shop-1", plan=RUN.plan)  # type: ignore[assignment]
        return LINK, state

    monkeypatch.setattr("mirror_core.runbook.run_outcome.read_mirror_status", say)
    monkeypatch.setattr(runbook, "find_mirror", find)
    monkeypatch.setattr(runbook, "find_set", lambda *_: MirrorSet("shop", (A, B)))
    return found


def context(begun: str | None) -> Any:
    ti = SimpleNamespace(xcom_pull=lambda task_ids: begun if task_ids == "begin" else None)
    return {"ti": ti, "dag_run": SimpleNamespace(dag_id="mirror_failover_set", run_id="r1")}


@pytest.mark.parametrize("begun", [RUN.id, None])
def test_they_are_of_the_run_that_was_begun_if_one_was(
    asked: list[tuple[str, str | None]], begun: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    from airflow.providers.standard.operators.empty import EmptyOperator
    from mirrorbook_airflow.runbook import LogStatus

    task = LogStatus(task_id="last_words", mirror="m", begin=EmptyOperator(task_id="begin"))
    said = task.execute(context(begun))
    assert asked == [("m", begun)]
    assert said.splitlines()[0] == "Applications write on east."
    assert "\x1b" not in said
    assert "Applications write on east." in capsys.readouterr().out


@pytest.mark.parametrize(("begun", "run"), [("shop-1", "of-set"), ("shop-2", None), (None, None)])
def test_of_a_set_they_are_of_each_mirror_and_a_silent_one_hides_no_other(
    asked: list[tuple[str, str | None]], begun: str | None, run: str | None
) -> None:
    from airflow.providers.standard.operators.empty import EmptyOperator
    from mirrorbook_airflow.runbook import LogStatus

    task = LogStatus(task_id="last_words", set_name="shop", begin=EmptyOperator(task_id="begin"))
    lines = task.execute(context(begun)).splitlines()
    assert asked == [("m", run)]
    assert lines[0] == "m: Applications write on east."
    assert lines[-1] == format_sentence("writers_unknown_of_silent_cluster", "south")
