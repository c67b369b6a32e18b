"""Silent sources, shared by tests."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from mirror_core.model.names import Offset
from mirror_core.model.run import RunMode, StepRecord, StepState
from mirror_core.model.timing import now_ms
from mirror_core.runbook import unplanned_steps
from mirror_core.runbook.fence_recheck import PromotionProbe
from mirror_core.runbook.promotion_steps import PromotionSteps
from mirror_core.runbook.unplanned_steps import UnplannedSteps
from tests.support import quiescence
from tests.support.fence_commands import MIRROR
from tests.support.quiescence import SHORT, WELL, West, settle
from tests.support.source_returns import TAKEN, debt

west, journal, steps = quiescence.west, quiescence.journal, quiescence.steps


@pytest.fixture
def fluent(west: West, steps: UnplannedSteps, monkeypatch: pytest.MonkeyPatch) -> UnplannedSteps:
    """A run that nothing holds up has come to its promotion; what the source has is not copied up to `TAKEN`."""
    scope = SimpleNamespace(drained=[WELL, SHORT], topic_names=["orders"], promoted=[WELL, SHORT])
    monkeypatch.setattr(UnplannedSteps, "scope", scope)
    monkeypatch.setattr(UnplannedSteps, "check_approval", lambda *_, **__: False)
    west.high[SHORT] = Offset(8)
    settle(steps)
    PromotionSteps.record_lmo(steps)
    now, run = now_ms(), steps.journal.run
    done = StepRecord(run="r", step="", state=StepState.DONE, attempt=1, started_ms=now - 500, ended_ms=now)
    steps.writer.put(
        replace(run, plan=replace(run.plan, mode=RunMode.UNPLANNED)),
        replace(debt(TAKEN), applied_at_ms=None),
        *(replace(done, step=step) for step in ("settle", "stand", "record_lmo")),
    )
    return steps


def approved_when_silent(steps: UnplannedSteps) -> None:
    steps.writer.put(replace(steps.journal.run, source_silent=True))


def looked(monkeypatch: pytest.MonkeyPatch, look: PromotionProbe, *, can_be_fenced: bool = True) -> None:
    def paid_again(acts: UnplannedSteps, *_: object) -> dict[str, str]:
        owed = acts.writer.state.pending_fences[MIRROR.name]
        acts.writer.put(replace(owed, applied_at_ms=now_ms() if can_be_fenced else None, log_ends=TAKEN))
        return {}

    monkeypatch.setattr(unplanned_steps, "probe_source", lambda *_, **__: look)
    monkeypatch.setattr(unplanned_steps, "reapply_fence", paid_again)


ANSWERS = PromotionProbe(log_ends=TAKEN.to_mapping())
