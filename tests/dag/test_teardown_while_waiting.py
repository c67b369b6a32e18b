"""A teardown behind a run that waits for a person's word: given up, nobody would be asked for it any more."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.model.config_sections import MirrorSet
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.model.run import RunKind, RunMode, RunState
from mirror_core.runbook import set_conductor
from mirror_core.runbook.set_failover import SetFailover
from mirror_core.state.journal import make_checkpoint
from mirror_core.state.point_of_no_return import SourceReturned
from mirror_core.state.state_records import State
from tests.support.cluster_names import LINK
from tests.support.mirror_views import RUN
from tests.support.sentences import format_sentence

pytestmark = [pytest.mark.dag, pytest.mark.filterwarnings("ignore")]  # warnings of Airflow are not ours to mend

WAITING = replace(RUN, plan=replace(RUN.plan, mode=RunMode.UNPLANNED), state=RunState.RUNNING)


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize(
    ("returned", "answers", "said"),
    [
        (SourceReturned(), False, format_sentence("kept_since_source_answered", "east")),
        (SourceReturned(), True, "given up: lifted. .* its plan says that east answers"),
        (SourceReturned(loss_confirmed=True), False, "given up: lifted$"),
        (None, False, "given up: lifted$"),
    ],
)
def test_an_unplanned_run_that_waits_for_a_word_is_kept_while_its_source_is_silent(
    monkeypatch: pytest.MonkeyPatch, returned: SourceReturned | None, answers: bool, said: str, copied: bool
) -> None:
    from airflow.providers.standard.operators.empty import EmptyOperator
    from mirrorbook_airflow import runbook

    state = State()
    state.put(WAITING)
    if returned is not None:
        state.put(make_checkpoint(WAITING.id, "promote", returned))
    if copied:  # it is fenced, and has nothing that was not copied: whatever failed, no word is waited for
        owed = PendingFence(
            mirror=MirrorName("m"), cluster=ClusterName("east"), action=FenceAction.APPLY, run=WAITING.id, since_ms=1
        )
        state.put(replace(LINK.mirror, name=MirrorName("m")))
        state.put(replace(owed, applied_at_ms=2, uncopied=()))
        said = "given up: lifted$"
    aborted = list[str]()

    def abort(run_id: str, *, only_mine: bool) -> Any:
        aborted.append(run_id)
        return replace(WAITING, note="lifted")

    engine: Any = SimpleNamespace(link=LINK, abort=abort, can_reach_source=lambda: answers)
    name = MirrorName("m")
    alone = SetFailover(MirrorSet("", (name,)), {name: engine}, RunMode.UNPLANNED, print_line=print)
    monkeypatch.setattr(set_conductor, "read_state", lambda cluster, timeout_s=0.0: state)
    monkeypatch.setattr(set_conductor, "read_mirror_status", lambda link, run: ())
    monkeypatch.setattr(runbook.RunOperator, "make_conductor", lambda self, context: alone)
    common: dict[str, Any] = {"mirror": "m", "kind": RunKind.FAILOVER, "mode": RunMode.UNPLANNED}
    task = runbook.AbortRun(task_id="abort", begin=EmptyOperator(task_id="begin"), steps=(), **common)
    ti = SimpleNamespace(xcom_pull=lambda task_ids, key="return_value": WAITING.id)
    outcome = task.execute({"ti": ti})  # type: ignore[typeddict-item]  # as much as the task asks for
    kept = said.startswith("kept")
    assert re.match(f"m: {said}", outcome), outcome
    assert ("`mirrorbook failover resume m --leave-behind` goes on" in outcome) is kept
    assert aborted == ([] if kept else [WAITING.id])
