"""The task that judges readiness and drift on a schedule: only what passed is green."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from airflow.sdk.execution_time.context import OutletEventAccessors
from mirrorbook_airflow import operators

from mirror_core.decide.expectation_config import JudgedTable, TopicTier, UserExpectations
from mirror_core.decide.filters import parse_topic_filter
from mirror_core.evidence import expectations
from mirror_core.evidence.expectations import ExpectationResult, TableJudgement, combine_verdicts
from mirror_core.model.errors import BadRequest, Unreachable
from mirror_core.model.run import Run
from mirror_core.runbook import expectation_check
from mirror_core.runbook.expectation_check import MirrorCheck
from mirror_core.state import mirror_link
from mirror_core.state.state_records import State
from tests.support.check_runs import BEGUN, NAME
from tests.support.cluster_names import LINK
from tests.support.mirror_views import RUN

CONTEXT: Any = {
    "dag_run": SimpleNamespace(start_date=BEGUN),
    "params": {},
    "outlet_events": OutletEventAccessors(),
}
WELL = ExpectationResult(what="expect_a(lag)", by="", held=True)
FAILED = ExpectationResult(what="expect_b(behind_s)", by="tier mine: max_lag_s 5", held=False, where="t-0: 9.0")
UNKNOWN = ExpectationResult(what="expect_c(lag)", by="", held=False, known=False, where="t-1: unknown")
TIER = TopicTier(name="mine", topics=parse_topic_filter(["t"]), limits={"max_lag_s": 5.0})


@pytest.fixture
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The task, when these were found of these expectations."""

    def executed(*held: ExpectationResult, trouble: tuple[str, ...] = (), run: Run | None = None) -> str:
        def checked(_link: object, _state: object, more: UserExpectations, output: Path) -> MirrorCheck:
            assert more.tiers == (TIER,), "what the user's file says of this mirror"
            return MirrorCheck(
                mirror=NAME,
                verdict=combine_verdicts(held),
                tiers=("mine",),
                rows={JudgedTable.READINESS: 1},
                judged={JudgedTable.READINESS: TableJudgement(held=held)},
                trouble=trouble,
                report=str(output / "data-docs" / "index.html"),
            )

        state = State()
        if run is not None:
            state.put(run)
        monkeypatch.setattr(operators, "provide_mirror_config", lambda name: tmp_path / f"{name}.yaml")
        monkeypatch.setattr(operators, "get_home_folder", lambda name: tmp_path / name)
        monkeypatch.setattr(mirror_link, "load_clusters", lambda path: None)
        monkeypatch.setattr(mirror_link, "find_mirror_link", lambda config, name: (LINK, state))
        monkeypatch.setattr(expectations, "load_expectations", lambda *_: UserExpectations(tiers=(TIER,)))
        monkeypatch.setattr(expectation_check, "check_mirror", checked)
        return operators.CheckMirror(task_id="check", mirror=NAME).execute(CONTEXT)

    return executed


def test_what_passed_is_green_and_its_data_docs_lie_beside_the_comparisons(
    execute: Callable[..., str], tmp_path: Path
) -> None:
    report = execute(WELL)
    assert report == str(tmp_path / "evidence" / NAME / "check-20260102T030405Z" / "data-docs" / "index.html")


def test_its_log_and_its_error_say_where_airflow_shows_the_report(
    execute: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = f"report: /mirrorbook/mirrors/{NAME}/reports/check-20260102T030405Z/data-docs/index.html, on this worker /"
    execute(WELL)
    assert shown in capsys.readouterr().out
    with pytest.raises(AirflowFailException, match=shown):
        execute(FAILED)


@pytest.mark.parametrize(
    ("held", "trouble", "said"),
    [
        ((WELL, FAILED), (), ("failed", "readiness: tier mine: max_lag_s 5: expect_b(behind_s): t-0: 9.0")),
        ((WELL, UNKNOWN), ("sync: east is silent",), ("indeterminate", "not looked at: sync: east is silent")),
        ((UNKNOWN,), (), ("indeterminate", "readiness: not known: expect_c(lag): t-1: unknown")),
    ],
    ids=["not as expected", "not looked at", "not known"],
)
def test_whatever_else_is_red_and_not_tried_again(
    execute: Callable[..., str], held: tuple[ExpectationResult, ...], trouble: tuple[str, ...], said: tuple[str, ...]
) -> None:
    with pytest.raises(AirflowFailException) as red:
        execute(*held, trouble=trouble)
    for words in (NAME, *said):
        assert words in str(red.value)


def test_it_is_skipped_while_a_run_holds_the_mirror(execute: Callable[..., str]) -> None:
    with pytest.raises(AirflowSkipException, match=RUN.id):
        execute(FAILED, run=RUN)


def test_a_mistake_in_the_users_file_is_red_at_once_and_a_silent_cluster_is_tried_again(
    execute: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def raised(error: Exception) -> Callable[..., MirrorCheck]:
        def check(*_: object) -> MirrorCheck:
            raise error

        return check

    task = operators.CheckMirror(task_id="check", mirror=NAME)
    execute(WELL)
    monkeypatch.setattr(expectation_check, "check_mirror", raised(BadRequest("tiers[0].name: must be text")))
    with pytest.raises(AirflowFailException, match="must be text"):
        task.execute(CONTEXT)
    monkeypatch.setattr(expectation_check, "check_mirror", raised(Unreachable("west: no answer")))
    with pytest.raises(Unreachable):
        task.execute(CONTEXT)
