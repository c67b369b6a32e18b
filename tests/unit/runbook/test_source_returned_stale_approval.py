"""A word, and an approval, for a source that answers again: for what people were told, and for now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.cli import failover as command
from mirror_core.model.errors import BadRequest, MirrorError, Refused, Unreachable
from mirror_core.model.findings import Finding
from mirror_core.model.run import RunMode, StepRecord, StepState
from mirror_core.model.timing import now_ms
from mirror_core.runbook import unplanned_steps
from mirror_core.runbook.fence_recheck import PromotionProbe
from mirror_core.runbook.run_outcome import format_run_outcome
from mirror_core.runbook.unplanned_steps import UnplannedSteps
from mirror_core.state.point_of_no_return import awaits_confirmation
from tests.support import quiescence, silent_sources
from tests.support.fence_commands import MIRROR
from tests.support.quiescence import agree
from tests.support.silent_sources import ANSWERS, approved_when_silent, looked
from tests.support.source_returns import TAKEN

west, journal, steps = quiescence.west, quiescence.journal, quiescence.steps
fluent = silent_sources.fluent


def give(acts: UnplannedSteps, before: Callable[[], None]) -> dict[str, str]:
    before()
    return {}


def test_a_fence_that_is_up_only_at_the_second_try_asks_as_well(
    fluent: UnplannedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer of a source that comes back is late; the next one is not."""
    approved_when_silent(fluent)
    tries: list[int] = []

    def paid_again(acts: UnplannedSteps, *_: object) -> dict[str, str]:
        tries.append(1)
        if len(tries) == 1:
            return {"fence": "pending", "source": "no answer within 2 s"}
        acts.writer.put(replace(acts.writer.state.pending_fences[MIRROR.name], applied_at_ms=now_ms(), log_ends=TAKEN))
        return {"fence": "applied"}

    monkeypatch.setattr(unplanned_steps, "probe_source", lambda *_, **__: ANSWERS)
    monkeypatch.setattr(unplanned_steps, "reapply_fence", paid_again)
    monkeypatch.setattr(UnplannedSteps, "_grant_rights", give)
    with pytest.raises(Refused, match="--leave-behind"):
        fluent.journal.perform("promote", fluent.get_action("promote"))
    assert not fluent.journal.is_done("promote")


def test_who_was_told_nothing_gives_no_word(fluent: UnplannedSteps, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be fenced, and stops nobody; then the destination fails, before anything is given."""
    approved_when_silent(fluent)
    looked(monkeypatch, PromotionProbe(unknowns=("not authorized",)), can_be_fenced=False)

    def fail(acts: UnplannedSteps, before: Callable[[], None]) -> dict[str, str]:
        raise Unreachable("west does not answer")

    monkeypatch.setattr(UnplannedSteps, "_grant_rights", fail)
    with pytest.raises(MirrorError, match="west does not answer"):
        fluent.journal.perform("promote", fluent.get_action("promote"))
    said = " ".join(format_run_outcome(fluent.link, fluent.writer.state, "r"))
    assert not awaits_confirmation(fluent.writer.state, fluent.journal.run)
    assert "--leave-behind" not in said, said
    assert not agree(fluent), "3 before the run has stopped for it"
    with pytest.raises(Refused, match="could not be fenced, so both clusters would take writes"):
        fluent.check_before_promotion()
    assert agree(fluent)
    fluent.check_before_promotion()


def test_one_fenced_by_stand_that_is_silent_for_the_look(
    fluent: UnplannedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    approved_when_silent(fluent)
    monkeypatch.setattr(
        unplanned_steps,
        "apply_fence",
        lambda acts, debt, *_: (
            acts.writer.put(replace(debt, applied_at_ms=now_ms(), log_ends=TAKEN)) or {"fence": "applied"}
        ),
    )
    monkeypatch.setattr(unplanned_steps, "LiftFile", lambda acts, needed: SimpleNamespace(write_for_command=set))
    monkeypatch.setattr(unplanned_steps, "refuse_if_lifted", lambda acts: False)
    fluent.stand()
    monkeypatch.setattr(
        unplanned_steps, "probe_source", lambda *_, **__: PromotionProbe(silent_because="no answer within 2.5 s")
    )
    with pytest.raises(Refused, match="--leave-behind"):
        fluent.check_before_promotion()


def test_a_word_beside_an_unfenced_one_is_for_now(fluent: UnplannedSteps, monkeypatch: pytest.MonkeyPatch) -> None:
    """West's grant was missing: two days later somebody mends that, and resumes. East has taken writes all the time."""
    fluent.writer.put(StepRecord(run="r", step="stand", state=StepState.DONE, attempt=1, started_ms=0, ended_ms=1))
    looked(monkeypatch, PromotionProbe(unknowns=("not authorized",)), can_be_fenced=False)
    with pytest.raises(Refused, match="could not be fenced"):
        fluent.check_before_promotion()
    assert agree(fluent)
    fluent.check_before_promotion()
    failed = StepRecord(run="r", step="promote", state=StepState.FAILED, attempt=1, started_ms=1, ended_ms=2)
    fluent.writer.put(failed)
    later = now_ms() + 2 * 86_400_000
    monkeypatch.setattr(fluent.writer, "now_ms", lambda: later)
    with pytest.raises(Refused, match="could not be fenced"):
        fluent.check_before_promotion()


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("silent", [False, True])
def test_yes_gives_up_a_silent_source_and_never_one_that_answers(
    monkeypatch: pytest.MonkeyPatch, silent: bool, hashed: bool
) -> None:
    """Whichever option approves the plan: a hash does not tell whether the source answered, either."""
    from mirror_core.decide.failover_plan import decide_failover
    from mirror_core.decide.mirror_snapshot import UnseenCluster
    from tests.support.cluster_names import LINK
    from tests.support.failover_views import healthy_view

    lost = replace(healthy_view(), mode=RunMode.UNPLANNED)
    dead, back = decide_failover(replace(lost, source=UnseenCluster("dead"))), decide_failover(lost)
    begun: list[bool] = []

    def begin(by: Any, decision: Any, mode: RunMode, *, silent: bool, as_json: bool) -> None:
        begun.append(silent)
        raise Refused("begun", [])

    by: Any = SimpleNamespace(decide_unplanned=lambda: (dead if silent else back, silent), started_by="me")
    monkeypatch.setattr(command, "find_mirror", lambda config, name: (LINK, None))
    monkeypatch.setattr(command, "make_conductor", lambda *arguments, **options: by)
    monkeypatch.setattr(command, "begin_run", begin)
    with pytest.raises(Refused) as refused:
        command.run("m", mode=RunMode.UNPLANNED, plan_hash=dead.plan.hash if hashed else None, take_over=True, yes=True)
    assert begun == ([True] if silent else [])
    if not silent:
        [finding] = refused.value.findings
        assert isinstance(finding, Finding)
        assert (finding.code, finding.subject) == ("living_source_needs_person", "east")
    given_up: dict[str, Any] = {"mode": RunMode.UNPLANNED, "take_over": True, "yes": True, "give_up_source": True}
    with pytest.raises(Refused, match="begun"):
        command.run("m", plan_hash=dead.plan.hash, **given_up)
    with pytest.raises(Refused, match="out of date"):
        command.run("m", plan_hash="0" * 64, **given_up)
    for unbound in (given_up, {**given_up, "mode": RunMode.PLANNED, "plan_hash": dead.plan.hash, "take_over": False}):
        with pytest.raises(BadRequest, match="--give-up-source"):
            command.run("m", **unbound)
    assert begun == [silent] * (2 if silent else 1)
