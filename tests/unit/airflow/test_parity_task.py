"""The task that compares on a schedule: its log and its error say where Airflow shows the report."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from mirrorbook_airflow import operators

from mirror_core.decide.expectation_config import UserExpectations
from mirror_core.evidence import expectations
from mirror_core.mirrors import incremental_verification
from mirror_core.model.parity_verdict import ParityVerdict
from mirror_core.parity import comparable_ranges
from mirror_core.state import mirror_link
from mirror_core.state.state_records import State
from tests.support.check_runs import BEGUN, NAME
from tests.support.cluster_names import LINK

FOLDER = "parity-20260102T030405Z"
SHOWN = f"report: /mirrorbook/mirrors/{NAME}/reports/{FOLDER}/index.html, on this worker /"


@pytest.fixture
def context() -> Any:
    from airflow.sdk.execution_time.context import OutletEventAccessors

    return {
        "dag_run": SimpleNamespace(start_date=BEGUN),
        "params": {"master": "none", "whole": False, "bytes_per_s": 0},
        "outlet_events": OutletEventAccessors(),
    }


@pytest.fixture
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: Any) -> Callable[..., str]:
    """The task, when a comparison ends like this."""

    def executed(verdict: ParityVerdict, **left_out: str) -> str:
        def check(source: str, destination: str, ranges: object, output: Path, so_far: object) -> SimpleNamespace:
            found = {
                "verdict": verdict,
                "records": 1,
                "chunks": 1,
                "seconds": 1.0,
                "unmet_expectations": (),
                "findings": (),
            }
            return SimpleNamespace(**found, reasons=("a record is missing",), report=str(output / "index.html"))

        def compare(one: object, state: object, ranges: object, compared: Any, **options: object) -> object:
            return compared(ranges, None)

        monkeypatch.setattr(operators, "provide_mirror_config", lambda name: tmp_path / f"{name}.yaml")
        monkeypatch.setattr(operators, "get_home_folder", lambda name: tmp_path / name)
        monkeypatch.setattr(operators, "make_parity_check", lambda *_: check)
        monkeypatch.setattr(mirror_link, "load_clusters", lambda path: None)
        monkeypatch.setattr(mirror_link, "find_mirror_link", lambda config, name: (LINK, State()))
        monkeypatch.setattr(expectations, "load_expectations", lambda *_: UserExpectations())
        monkeypatch.setattr(
            comparable_ranges, "read_parity_scope", lambda *_: SimpleNamespace(ranges=(), left_out=left_out)
        )
        monkeypatch.setattr(incremental_verification, "compare_and_record", compare)
        return operators.CheckParity(task_id="parity", mirror=NAME).execute(context)

    return executed


def test_the_report_of_a_comparison_is_named_as_airflow_shows_it(
    execute: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(ParityVerdict.PASSED) == str(tmp_path / "evidence" / NAME / FOLDER / "index.html")
    assert SHOWN in capsys.readouterr().out
    with pytest.raises(AirflowFailException, match=SHOWN) as red:
        execute(ParityVerdict.FAILED)
    assert "a record is missing" in str(red.value)


@pytest.mark.parametrize("verdict", [*ParityVerdict])
@pytest.mark.parametrize("left_out", [{}, {"t-1": "FAILED"}])
def test_proved_equal_is_told_only_of_what_was_compared_whole_and_found_equal(
    execute: Callable[..., str], context: Any, verdict: ParityVerdict, left_out: dict[str, str]
) -> None:
    from mirrorbook_airflow.asset_events import PROVED_ALIAS

    passed = verdict is ParityVerdict.PASSED
    with nullcontext() if passed else pytest.raises(AirflowFailException):
        execute(verdict, **left_out)
    events = context["outlet_events"][PROVED_ALIAS].asset_alias_events
    assert [event.dest_asset_key.uri for event in events] == [f"mirrorbook://{NAME}/proved"] * (passed and not left_out)
