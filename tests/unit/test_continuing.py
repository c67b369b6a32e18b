"""What an unplanned failover may take over from a planned run whose source has died."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.decide.acls import denial
from mirror_core.evidence.fence_file import path_of, write
from mirror_core.model.errors import Refused
from mirror_core.model.files import Unwritable
from mirror_core.model.offsets import Offsets
from mirror_core.model.run import Fact
from mirror_core.runbook.checkpoints import Drained, Fenced
from mirror_core.runbook.failover import drained_behind_fence
from mirror_core.runbook.failover_steps import Steps
from mirror_core.runbook.unfencing import LiftFile
from mirror_core.state.journal import checkpoint
from mirror_core.state.records import State
from tests.memory import journal_of
from tests.unit.test_decide_verbs import RUN
from tests.unit.test_fence_file import FENCE
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


IN_DOUBT = r"the file that tells whether its fence stood is not here, .* --mode unplanned"


@pytest.mark.parametrize(
    ("authorizer", "lifted_ms", "refused"),
    [
        (False, None, r"could not be fenced, .* --mode unplanned"),
        (True, None, ""),
        (True, 5, "was lifted by its file at"),
        (True, "no file", IN_DOUBT),
    ],
)
def test_a_silent_source_that_may_have_taken_writes_is_not_promoted_as_if_it_had_stood_still(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, authorizer: bool, lifted_ms: int | str | None, refused: str
) -> None:
    journal, anything = journal_of(RUN.id, "fence", "promote"), cast("Any", SimpleNamespace(evidence_dir=tmp_path))
    journal.keep("fence", Fenced(ends=Offsets(), authorizer=authorizer))
    monkeypatch.setattr(Steps, "check_approval", lambda self, what, source_needed: False)
    if not isinstance(lifted_ms, str):
        write(path_of(tmp_path / f"run-{RUN.id}", RUN.id), replace(FENCE, lifted_ms=lifted_ms), "advice")
    steps = Steps(LINK, anything, anything, journal)
    with pytest.raises(Refused, match=refused) if refused else nullcontext():
        steps.check_before_promotion()


def test_what_needs_no_file_to_be_lifted_by_needs_no_room_for_it(tmp_path: Path) -> None:
    """With a source that is lost, the fence is worth more than its file; one that stands already has had its file."""
    (tmp_path / "full").write_text("no folder")
    acts = cast("Any", SimpleNamespace(
        services=SimpleNamespace(evidence_dir=tmp_path / "full"), journal=journal_of(RUN.id), link=LINK
    ))  # fmt: skip
    lift = LiftFile(acts, needed=False)
    lift([denial("orders")])
    assert lift.words.startswith("no file to lift it by: ")
    with pytest.raises(Unwritable):
        LiftFile(acts)([denial("orders")])
