"""What an unplanned failover may take over from a planned run whose source has died."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.decide.failover_scope import EMPTY_SCOPE, FailoverScope, TopicScope
from mirror_core.evidence.fence_file import fence_file_path, write_fence_file
from mirror_core.model import timing
from mirror_core.model.errors import Refused, RemoteFault
from mirror_core.model.figures import FigureKey
from mirror_core.model.files import Unwritable
from mirror_core.model.names import Offset, Partition, PartitionOffsets
from mirror_core.model.parity_verdict import ParityVerdict
from mirror_core.model.run import PlanFact, RunState, StepEvidence
from mirror_core.rights.acl_rules import build_denial
from mirror_core.runbook import fence_recheck, planned_steps, promotion_steps
from mirror_core.runbook.failover_conductor import is_drained_behind_fence
from mirror_core.runbook.fence_actions import LiftFile
from mirror_core.runbook.fence_recheck import PROBE_EVIDENCE_KEY, PromotionProbe
from mirror_core.runbook.planned_steps import PlannedSteps
from mirror_core.runbook.step_records import DrainResult, FenceResult
from mirror_core.state.journal import make_checkpoint
from mirror_core.state.point_of_no_return import PromotionCheck, is_past_no_return
from mirror_core.state.state_records import State, Tombstone
from tests.support.cluster_names import LINK
from tests.support.fence_files import FENCE
from tests.support.memory_state import MemoryLog, journal_of
from tests.support.mirror_views import RUN
from tests.support.sentences import format_sentence


@pytest.mark.parametrize(
    ("authorizer", "drained", "nothing_lost"),
    [
        ("True", True, True),
        ("True", False, False),
        ("False", True, False),
        ("fence_command", True, True),
        ("nothing", True, False),
    ],
)
def test_nothing_is_lost_only_when_all_was_copied_from_behind_a_fence(
    authorizer: str, drained: bool, nothing_lost: bool
) -> None:
    """Without an authorizer nobody kept applications from writing on, after the drain and until the source died."""
    bound = (PlanFact("authorizer of the source", authorizer),)
    run, state = replace(RUN, plan=replace(RUN.plan, bound_facts=bound)), State()
    if drained:
        kept = make_checkpoint(run.id, "drain", DrainResult(positions=PartitionOffsets()))
        state.checkpoints[run.id, "drain", DrainResult.__name__] = kept
    assert is_drained_behind_fence(state, run) is nothing_lost


IN_DOUBT = format_sentence("file_that_tells_whether_its_fence")


P0 = Partition("t", 0)
SILENT, PARTLY = PromotionProbe(silent_because="no answer"), PromotionProbe(unknowns=("broker 2: no answer",))
ALL = PromotionProbe(is_fenced=True, log_ends={P0: Offset(5)})
BARE = "denial gone"


@pytest.mark.parametrize(
    ("look", "authorizer", "lifted_ms", "refused"),
    [
        (SILENT, False, None, r"could not be fenced, .* --mode unplanned"),
        (SILENT, True, None, ""),
        (SILENT, True, 5, "was lifted by its file at"),
        (SILENT, True, "no file", IN_DOUBT),
        (PARTLY, False, None, r"in part \(broker 2: no answer\) and could not be fenced, .* --mode unplanned"),
        (PARTLY, True, None, ""),
        (PARTLY, True, "no file", IN_DOUBT),
        (ALL, True, "no file", ""),
        (ALL, False, None, ""),
        (ALL, True, 5, "was lifted by its file at"),
        (replace(PARTLY, unfenced_brokers=(BARE,)), True, None, "denial gone"),
        (replace(PARTLY, unfenced_brokers=(BARE,)), True, "no file", "denial gone"),
        (replace(PARTLY, log_ends={P0: Offset(6)}), True, None, "t-0 on east: log end 6, drained up to 5"),
        (replace(ALL, log_ends={P0: Offset(4)}), True, None, "t-0 on east: log end 4, drained up to 5"),
        (PromotionProbe(other_cluster_id="X"), True, None, "the address of east leads to cluster X now"),
    ],
)
def test_a_source_that_may_have_taken_writes_is_not_promoted_as_if_it_had_stood_still(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    look: PromotionProbe,
    authorizer: bool,
    lifted_ms: int | str | None,
    refused: str,
) -> None:
    journal, anything = journal_of(RUN.id, "fence", "promote"), cast("Any", SimpleNamespace(evidence_dir=tmp_path))
    journal.save_checkpoint("fence", FenceResult(ends=PartitionOffsets(), authorizer=authorizer))
    journal.save_checkpoint("begin", EMPTY_SCOPE)
    journal.save_checkpoint("drain", DrainResult(positions=PartitionOffsets.from_mapping({P0: Offset(5)})))
    monkeypatch.setattr(PlannedSteps, "check_approval", lambda self, what, source_needed: False)
    monkeypatch.setattr(fence_recheck, "probe_source", lambda link, denials, partitions: look)
    if not isinstance(lifted_ms, str):
        write_fence_file(
            fence_file_path(tmp_path / f"run-{RUN.id}", RUN.id), replace(FENCE, lifted_ms=lifted_ms), "advice"
        )
    steps = PlannedSteps(LINK, anything, anything, journal)
    with pytest.raises(Refused, match=refused) if refused else nullcontext():
        assert steps.check_before_promotion() is look


CLOSED, DENIED, OPEN = (
    FenceResult(ends=PartitionOffsets(), authorizer=authorizer, command=command)
    for authorizer, command in ((False, True), (True, False), (False, False))
)
CONFIRMED, UNCONFIRMED = (
    PromotionCheck(source_state=state, source_confirmed=state == "seen", rights_given=True)
    for state in ("seen", "silent: no answer")
)


@pytest.mark.parametrize(
    ("fence", "check", "look", "lost", "least"),
    [
        *((DENIED, CONFIRMED, look, 0, None) for look in (ALL, PARTLY, SILENT)),
        *((DENIED, check, look, None, 0) for check in (UNCONFIRMED, None) for look in (ALL, PARTLY, SILENT)),
        *((CLOSED, CONFIRMED, look, 0, None) for look in (ALL, PARTLY, SILENT)),
        *((CLOSED, check, look, None, 0) for check in (UNCONFIRMED, None) for look in (ALL, PARTLY, SILENT)),
        *((CLOSED, check, replace(ALL, log_ends={P0: Offset(7)}), 2, None) for check in (CONFIRMED, UNCONFIRMED)),
        *((CLOSED, check, replace(PARTLY, log_ends={P0: Offset(7)}), None, 2) for check in (CONFIRMED, UNCONFIRMED)),
        (OPEN, CONFIRMED, ALL, 0, None),
        (OPEN, CONFIRMED, replace(ALL, log_ends={P0: Offset(7)}), 2, None),
        *((OPEN, CONFIRMED, look, None, 0) for look in (PARTLY, SILENT, replace(ALL, log_ends={}))),
    ],
)
def test_a_planned_run_has_lost_nothing_only_where_promotion_saw_all_of_its_source(
    monkeypatch: pytest.MonkeyPatch,
    fence: FenceResult,
    check: PromotionCheck | None,
    look: PromotionProbe,
    lost: int | None,
    least: int | None,
) -> None:
    """Whoever has a copy of its file may have lifted a fence that promotion did not see."""
    journal = journal_of(RUN.id, "parity")
    journal.save_checkpoint("begin", EMPTY_SCOPE)
    journal.save_checkpoint("fence", fence)
    journal.save_checkpoint("drain", DrainResult(positions=PartitionOffsets.from_mapping({P0: Offset(5)})))
    if check is not None:
        journal.save_checkpoint("promote", check)
    journal.perform("parity", lambda: {FigureKey.PARITY_VERDICT: ParityVerdict.PASSED})
    monkeypatch.setattr(planned_steps, "probe_source", lambda link, denials, partitions: look)
    counted = PlannedSteps(LINK, cast("Any", None), cast("Any", journal.log), journal).count_lost()
    assert (counted.offsets, counted.least) == (lost, least)
    assert ("has taken anything since is unknown" in counted.basis) is (lost is None and not least)


def test_what_a_source_without_a_fence_took_is_counted_beside_what_had_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = journal_of(RUN.id, "parity")
    failed = Partition(P0.topic, 1)
    scope = FailoverScope(topics=(TopicScope(name=P0.topic, drained=(0,), as_is=(1,)),))
    journal.save_checkpoint("begin", scope)
    journal.save_checkpoint("fence", OPEN)
    journal.save_checkpoint("drain", DrainResult(positions=PartitionOffsets.from_mapping({P0: Offset(5)})))
    journal.save_checkpoint("promote", CONFIRMED)
    journal.perform("parity", lambda: {FigureKey.PARITY_VERDICT: ParityVerdict.PASSED})
    look = replace(ALL, log_ends={P0: Offset(9)})
    monkeypatch.setattr(planned_steps, "probe_source", lambda link, denials, partitions: look)
    counted = PlannedSteps(LINK, cast("Any", None), cast("Any", journal.log), journal).count_lost()
    assert (counted.offsets, counted.least) == (None, 4)
    assert str(failed) in counted.basis


@pytest.mark.parametrize("look", [ALL, PARTLY, SILENT])
def test_promotion_records_whether_it_saw_all_of_the_source(
    monkeypatch: pytest.MonkeyPatch, look: PromotionProbe
) -> None:
    journal = journal_of(RUN.id, "promote")
    journal.save_checkpoint("begin", EMPTY_SCOPE)
    steps = PlannedSteps(LINK, cast("Any", None), cast("Any", journal.log), journal)
    monkeypatch.setattr(PlannedSteps, "check_before_promotion", lambda self: replace(look, began=timing.Moment()))
    monkeypatch.setattr(PlannedSteps, "ensure_fenced", lambda self: {})
    monkeypatch.setattr(PlannedSteps, "_grant_rights", lambda self, before_grant: before_grant() or {})
    journal.perform("promote", steps.get_action("promote"))
    check = journal.load_checkpoint("promote", PromotionCheck)
    assert check == PromotionCheck(source_state=look.text, source_confirmed=look is ALL, rights_given=True)


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (ALL, "seen"),
        (PARTLY, "seen in part: broker 2: no answer"),
        (SILENT, "silent: no answer"),
        (PromotionProbe(other_cluster_id="X"), "silent: its address leads to cluster X"),
    ],
)
def test_the_evidence_says_who_kept_silent(look: PromotionProbe, words: str) -> None:
    assert look.text == words
    assert look.is_complete is (look is ALL)


def _gives_nothing() -> StepEvidence:
    raise RemoteFault("the destination is away")


def test_a_promotion_has_turned_when_it_may_have_given_something() -> None:
    journal = journal_of(RUN.id, "promote")
    log = cast("MemoryLog", journal.log)

    def said() -> bool:
        return is_past_no_return(log.state, journal.run)

    assert not said()
    journal.save_checkpoint("promote", PromotionCheck(source_state="seen"))
    assert not said()

    with pytest.raises(RemoteFault):
        journal.perform("promote", _gives_nothing)
    assert journal.is_begun("promote")
    assert not said(), "an abort is refused, and nothing was given"
    journal.save_checkpoint("promote", PromotionCheck(source_state="seen", rights_given=True))
    assert said()
    unreadable = make_checkpoint(RUN.id, "promote", PromotionCheck(source_state="seen"))
    log.put(replace(unreadable, value="{}"))
    assert said(), "what nobody can read may have been given"
    newer = '{"source_state": "seen", "rights_given": %s, "of": "a newer Mirrorbook"}'
    for given in (True, False):
        log.put(replace(unreadable, version=2, value=newer % str(given).lower()))
        assert said() is given, "also another version tells whether anything was given"
    log.put(Tombstone(unreadable))
    assert said(), "what may have been given is not known"
    log.put(replace(journal.run, state=RunState.ABORTED))
    assert not said()


def test_a_last_look_of_another_version_holds_up_no_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked again, or, where rights were given, gone on with."""
    journal = journal_of(RUN.id, "begin", "promote", "report")
    journal.save_checkpoint("begin", EMPTY_SCOPE)
    steps = PlannedSteps(LINK, cast("Any", None), cast("Any", journal.log), journal)
    monkeypatch.setattr(
        PlannedSteps, "check_before_promotion", lambda self: replace(ALL, fenced_broker_count=1, began=timing.Moment())
    )
    monkeypatch.setattr(PlannedSteps, "ensure_fenced", lambda self: {"fence": "applied"})

    def giving(*args: object, before_change: Callable[[], None], **known: object) -> tuple[()]:
        before_change()
        return ()

    monkeypatch.setattr(promotion_steps, "apply_promotion", giving)
    journal.perform("begin", dict)
    with pytest.raises(RemoteFault):
        journal.perform("promote", _gives_nothing)
    other = make_checkpoint(RUN.id, "promote", PromotionCheck(source_state="x"))
    for given, found in ((False, {PROBE_EVIDENCE_KEY: "seen"}), (True, {"fence": "applied"})):
        value = f'{{"source_state": "x", "rights_given": {str(given).lower()}}}'
        journal.log.put(replace(other, version=2, value=value))
        evidence = steps.get_action("promote")()
        assert {key: evidence[key] for key in evidence if key != "not_done"} == found


def test_whoever_slept_is_told_so_by_either_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The monotonic clock stands still while a machine is suspended, and the wall clock may be set back."""
    ticks, wall = 100.0, 1_000_000
    monkeypatch.setattr(timing, "time", SimpleNamespace(monotonic=lambda: ticks, time_ns=lambda: wall * 1_000_000))
    seen = timing.Moment()
    assert seen.age_s == 0
    wall += 60_000
    assert seen.age_s == 60
    ticks, wall = 140.0, 0
    assert seen.age_s == 40


def test_what_needs_no_file_to_be_lifted_by_needs_no_room_for_it(tmp_path: Path) -> None:
    """With a source that is lost, the fence is worth more than its file; one that stands already has had its file."""
    (tmp_path / "full").write_text("no folder")
    acts = cast("Any", SimpleNamespace(
        services=SimpleNamespace(evidence_dir=tmp_path / "full"), journal=journal_of(RUN.id), link=LINK,
        statuses=dict,
    ))  # fmt: skip
    lift = LiftFile(acts, needed=False)
    lift([build_denial("orders")])
    assert lift.text.startswith("no file to lift it by: ")
    with pytest.raises(Unwritable):
        LiftFile(acts)([build_denial("orders")])


@pytest.mark.parametrize("prints_command", [True, False])
def test_nobody_is_told_in_a_failback_to_open_a_cluster_whose_copy_is_half_made(
    tmp_path: Path, prints_command: bool
) -> None:
    printed = list[str]()
    acts = cast("Any", SimpleNamespace(
        services=SimpleNamespace(evidence_dir=tmp_path), journal=journal_of(RUN.id), link=LINK,
        print_line=printed.append, statuses=dict,
    ))  # fmt: skip
    lift = LiftFile(acts, prints_command=prints_command)
    lift([build_denial("orders")])
    assert (
        printed
        == [f"should {LINK.destination.name} die while {LINK.source.name} is fenced: {lift.text}"] * prints_command
    )
