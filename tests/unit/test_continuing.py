"""What an unplanned failover may take over from a planned run whose source has died."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.model.errors import Refused
from mirror_core.model.offsets import Offsets
from mirror_core.model.run import Fact
from mirror_core.runbook.checkpoints import Drained, Fenced
from mirror_core.runbook.failover import drained_behind_fence
from mirror_core.runbook.failover_steps import Steps
from mirror_core.state.journal import checkpoint
from mirror_core.state.records import State
from tests.memory import journal_of
from tests.unit.test_decide_verbs import RUN
from tests.unit.test_refusals import LINK


@pytest.mark.parametrize(
    ("authorizer", "drained", "nothing_lost"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_nothing_is_lost_only_when_all_was_copied_from_behind_a_fence(
    authorizer: bool, drained: bool, nothing_lost: bool
) -> None:
    """Without an authorizer nobody kept applications from writing on, after the drain and until the source died."""
    bound = (Fact("authorizer of the source", str(authorizer)),)
    run, state = replace(RUN, plan=replace(RUN.plan, bound=bound)), State()
    if drained:
        kept = checkpoint(run.id, "drain", Drained(positions=Offsets()))
        state.checkpoints[run.id, "drain", Drained.__name__] = kept
    assert drained_behind_fence(state, run) is nothing_lost


@pytest.mark.parametrize("authorizer", [True, False])
def test_a_silent_source_that_was_not_fenced_is_not_promoted_as_if_it_had_stood_still(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, authorizer: bool
) -> None:
    journal, anything = journal_of(RUN.id, "fence", "promote"), cast("Any", SimpleNamespace(evidence_dir=tmp_path))
    journal.keep("fence", Fenced(ends=Offsets(), authorizer=authorizer))
    monkeypatch.setattr(Steps, "check_approval", lambda self, what, source_needed: False)
    steps = Steps(LINK, anything, anything, journal)
    with nullcontext() if authorizer else pytest.raises(Refused, match=r"could not be fenced, .* --mode unplanned"):
        steps.check_before_promotion()
