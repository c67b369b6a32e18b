"""A run that was approved too long ago, and has changed nothing for applications: somebody is asked again."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import UNSET

from mirror_core.cli import failback as command
from mirror_core.cli.runs import to_plan_document
from mirror_core.model.config_sections import MirrorSet
from mirror_core.model.errors import Refused
from mirror_core.model.names import MirrorName
from mirror_core.model.run import Approval, Run, RunKind, StepRecord, StepState
from mirror_core.model.timing import now_ms
from mirror_core.runbook import failback_conductor
from mirror_core.runbook.failback_conductor import Failback
from mirror_core.runbook.set_conductor import MemberRun
from mirror_core.runbook.set_failover import SetFailover
from mirror_core.state.state_records import State
from tests.support.cluster_names import LINK
from tests.support.mirror_views import RUN
from tests.support.sentences import format_sentence

LONG_AGO = now_ms() - 2 * 3_600_000
HOME = replace(
    RUN,
    id="m-failback-1",
    plan=replace(RUN.plan, kind=RunKind.FAILBACK, discarded=7),
    approvals=(Approval(id="a", name="ann", at_ms=LONG_AGO),),
)


def conductor(monkeypatch: pytest.MonkeyPatch, run: Run, *begun: str) -> Failback:
    state = State()
    state.runs[run.id] = run
    for step in begun:
        state.steps[run.id, step] = StepRecord(
            run=run.id, step=step, state=StepState.STARTED, attempt=1, started_ms=LONG_AGO
        )
    monkeypatch.setattr(failback_conductor, "read_state", lambda cluster: state)
    monkeypatch.setattr("mirror_core.runbook.conductor.read_state", lambda cluster: state)
    for module in ("runbook.conductor", "cli.run_commands"):
        monkeypatch.setattr(f"mirror_core.{module}.read_broker_time_ms", lambda cluster: now_ms())
    return Failback(LINK, cast("Any", None), started_by="ben")


@pytest.mark.parametrize("begun", [(), ("salvage",)])
def test_a_failback_of_yesterday_takes_no_log_back_unasked(monkeypatch: pytest.MonkeyPatch, begun: tuple[str]) -> None:
    by = conductor(monkeypatch, HOME, *begun)
    with pytest.raises(Refused, match=format_sentence("failback_takes_logs_back")) as refused:
        by.refuse_expired(HOME.id, ())
    assert refused.value.reason_code == "approval_expired"
    by.refuse_expired(HOME.id, (Approval(id="b", name="ben", at_ms=now_ms()),))
    asked = list[str]()

    def agree(question: str, yes: bool) -> None:
        asked.append(question)

    monkeypatch.setattr(command, "require_confirmation", agree)
    assert command._confirm_again(by, HOME, yes=False, as_json=True) == "ben"
    assert asked == [format_sentence("go_on_and_discard_question", 7, "east")]


def test_a_failback_that_has_begun_to_take_logs_back_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    by = conductor(monkeypatch, HOME, "salvage", "align")
    by.refuse_expired(HOME.id, ())
    assert command._confirm_again(by, HOME, yes=False, as_json=True) == ""


def test_each_mirror_of_a_set_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def refuse(run_id: str, agreed: object) -> None:
        asked.append(run_id)
        if run_id == "n-1":
            raise Refused("run n-1 stops applications", ["it was approved long ago"], "approval_expired")

    names = (MirrorName("m"), MirrorName("n"))
    link = SimpleNamespace(mirror=LINK.mirror)
    one: Any = SimpleNamespace(link=link, refuse_expired=refuse)
    several = SetFailover(MirrorSet("shop", names), dict.fromkeys(names, one), print_line=lambda line: None)
    found = {name: MemberRun(replace(RUN, id=f"{name}-1"), ()) for name in names}
    monkeypatch.setattr(SetFailover, "_read_member_runs", lambda self, attempt: found)
    with pytest.raises(Refused, match="run n-1 stops applications"):
        several.refuse_expired("shop-1", ())
    assert asked == ["m-1", "n-1"]


def test_rights_that_are_not_known_are_not_none() -> None:
    assert to_plan_document(replace(RUN.plan, rights=UNSET), ()).rights is None
    assert to_plan_document(replace(RUN.plan, rights=()), ()).rights == ()
