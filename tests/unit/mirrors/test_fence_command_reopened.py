"""A source that a command has closed is opened again by whoever gives the run up, or owed that; a late command is put
right; and what another mirror's failover keeps closed stays so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.decide.command_rules import MirrorCommand
from mirror_core.decide.failover_scope import EMPTY_SCOPE
from mirror_core.decide.fence_state import FenceNextAction, FenceState
from mirror_core.evidence.fence_file import fence_file_path, write_fence_file
from mirror_core.kafka.acl_requests import AuthorizerOff
from mirror_core.kafka.config import Config
from mirror_core.mirrors import fence_manual_commands, mirror_commands
from mirror_core.mirrors import fence_watcher as watcher
from mirror_core.model.errors import BadRequest, LostOwnership, MirrorError, Refused, Unreachable
from mirror_core.model.findings import Finding
from mirror_core.model.names import ClusterName, Offset, Partition, PartitionOffsets
from mirror_core.model.pending_fence import PendingFence
from mirror_core.model.run import Run, RunMode, RunState, StepRecord, StepState
from mirror_core.runbook import fence_actions, fence_recheck
from mirror_core.runbook.failback_steps import FailbackSteps
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.runbook.fence_actions import CommandFence, LiftFile, lift_fence_or_record
from mirror_core.runbook.fence_recheck import PromotionProbe, reapply_fence
from mirror_core.runbook.planned_steps import PlannedSteps
from mirror_core.runbook.run_services import StepContext
from mirror_core.runbook.step_records import DrainResult, FenceResult
from mirror_core.state.journal import Journal
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.point_of_no_return import PromotionCheck
from mirror_core.state.state_records import State, StateRecord
from mirror_core.sync import fence_command, fence_command_runner
from mirror_core.sync.fence_command import FenceCommandFailed, has_closed_source
from mirror_core.sync.fence_command_runner import CommandNotReconciled
from tests.support import reopened_clusters
from tests.support.fence_commands import MIRROR, TOPICS, acted, called, linked
from tests.support.fence_files import FENCE
from tests.support.memory_state import MemoryLog, journal_of
from tests.support.reopened_clusters import (
    CLOSED,
    EAST,
    NORTH,
    OWED,
    aborted,
    closed,
    log_of,
    other_mirror,
    third,
    topics_told,
)
from tests.support.sentences import format_sentence

link = reopened_clusters.link


@pytest.fixture(autouse=True)
def answering(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source answers, and nobody waits between two tries."""
    monkeypatch.setattr("mirror_core.sync.fence_command_runner.read_source_state", lambda link: ())
    for module in (fence_actions, watcher, fence_recheck):
        monkeypatch.setattr(module, "ClusterClient", lambda *a, **k: nullcontext(SimpleNamespace(name="east")))
        monkeypatch.setattr(module, "check_source_id", lambda *a: None)
    monkeypatch.setattr(watcher, "lift_fence", lambda *a: None)
    monkeypatch.setattr(fence_command, "compute_retry_pause_s", lambda tries: 0.0)


def bare(link: MirrorLink) -> MirrorLink:
    """The commands have left mirrorbook.yaml."""
    return replace(link, source=replace(link.source, ruling=link.source.ruling.without_commands()))


# -- what is owed is not forgotten ----------------------------------------------------------------------------------


def test_an_abort_opens_what_its_run_has_closed(link: MirrorLink) -> None:
    journal = closed()
    assert aborted(link, journal) == ""
    assert called(link) == ["unfence"]
    assert not log_of(journal).state.pending_fences


def test_what_an_abort_could_not_open_is_owed_as_closed_by_command(tmp_path: Path) -> None:
    journal = closed()
    note = aborted(linked(tmp_path, ends="exit 1", retries=0), journal)
    assert "east is still closed to applications: cluster east: unfence_command" in note
    assert log_of(journal).state.pending_fences[MIRROR.name].by_command


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Unreachable("no broker answers"), "east does not answer, and its fence is still there"),
        (BadRequest("authorizer: foreign"), "the fence on east is still there: authorizer: foreign. A watcher"),
    ],
)
def test_what_hinders_an_abort_is_said(
    link: MirrorLink, monkeypatch: pytest.MonkeyPatch, error: MirrorError, expected: str
) -> None:
    def check(*asked: object) -> None:
        raise error

    monkeypatch.setattr(fence_actions, "check_source_id", check)
    journal = closed()
    assert expected in aborted(link, journal)
    trouble = log_of(journal).state.pending_fences[MIRROR.name].trouble
    assert trouble == Finding("fence_unanswered" if error.retryable else "fence_attempt_failed", "east", reason=error)


def test_without_the_command_in_the_configuration_nothing_is_said_to_be_lifted(link: MirrorLink) -> None:
    journal = closed()
    assert "mirrorbook.yaml has no unfence_command for it now" in aborted(bare(link), journal)
    assert log_of(journal).state.pending_fences, "nobody would open it any more"
    with pytest.raises(FenceCommandFailed, match="no unfence_command"):
        watcher._lift_fence(bare(link), cast("Any", journal.log), log_of(journal).state.pending_fences[MIRROR.name])
    assert log_of(journal).state.pending_fences


def next_run(link: MirrorLink, journal: Journal) -> Run:
    """A run that begins after the journal's was given up, with what is written together with it."""
    log = log_of(journal)
    log.put(replace(journal.run, state=RunState.ABORTED, ended_ms=2), OWED)
    later = replace(journal.run, id="b", state=RunState.RUNNING, ended_ms=None)
    run, more = Failover._complete_run(
        cast("Any", SimpleNamespace(link=link)),
        later,
        cast("Any", SimpleNamespace(scope=EMPTY_SCOPE)),
        cast("Any", log),
    )
    log.put(run, *more)
    return run


def test_a_later_run_that_is_given_up_opens_what_an_earlier_one_had_closed(link: MirrorLink) -> None:
    journal = closed()
    run = next_run(link, journal)
    assert lift_fence_or_record(link, cast("Any", journal.log), run) == ""
    assert called(link) == ["unfence"]


def test_a_run_that_takes_over_what_is_owed_notes_that_the_source_is_closed_in_the_same_breath(
    link: MirrorLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be killed before it calls the command itself."""
    journal = journal_of("b", "fence")
    journal.save_checkpoint("begin", EMPTY_SCOPE)
    journal.log.put(OWED)

    class Killed(BaseException):
        pass

    def killed(*asked: object) -> None:
        raise Killed

    steps = PlannedSteps(link, cast("Any", None), cast("Any", journal.log), journal)
    monkeypatch.setattr(PlannedSteps, "check_approval", lambda *a, **k: True)
    monkeypatch.setattr(PlannedSteps, "_refuse_if_strayed", lambda self: None)
    monkeypatch.setattr("mirror_core.runbook.planned_steps.ClusterClient", killed)
    with pytest.raises(Killed):
        steps.fence()
    state = log_of(journal).state
    assert not state.pending_fences
    assert has_closed_source(state, journal.run)


@pytest.mark.parametrize(
    ("debt", "gone", "refused"),
    [
        (OWED, None, True),
        (OWED, EAST, False),
        (replace(OWED, by_command=False), None, False),
        (CLOSED, None, False),
        (None, None, False),
    ],
)
def test_a_mirror_that_alone_knows_of_a_closed_cluster_is_not_deleted(
    link: MirrorLink,
    monkeypatch: pytest.MonkeyPatch,
    debt: PendingFence | None,
    gone: ClusterName | None,
    refused: bool,
) -> None:
    monkeypatch.setattr(mirror_commands, "list_failbacks", lambda link: ())
    monkeypatch.setattr(mirror_commands, "_list_standing_denials", lambda *asked: ())
    state = State(pending_fences={MIRROR.name: debt} if debt else {})
    reasons = map(str, mirror_commands._build_extra_checks(link, MirrorCommand.DELETE, gone)(state))
    assert any("`mirrorbook mirror watch m --once` has it called" in reason for reason in reasons) is refused


# -- a command that comes too late ----------------------------------------------------------------------------------


def lost_after(journal: Journal, writes: int) -> None:
    """Another has the mirror after this one's first writes."""
    put, left = journal.log.put, iter(range(writes))

    def fails(*records: StateRecord) -> None:
        if next(left, None) is None:
            raise LostOwnership("another has it")
        put(*records)

    cast("Any", journal.log).put = fails


def wanted(monkeypatch: pytest.MonkeyPatch, **state: Any) -> None:
    monkeypatch.setattr(
        fence_command_runner, "read_complete_state", lambda cluster: State(mirrors={MIRROR.name: MIRROR}, **state)
    )


LATE: dict[str, Callable[[MirrorLink, Journal], object]] = {
    "abort": aborted,
    "watcher": lambda link, journal: watcher._lift_fence(link, cast("Any", journal.log), OWED),
}


@pytest.mark.parametrize("who", LATE)
@pytest.mark.parametrize("retries", [0, 1])
def test_an_opening_that_failed_too_late_is_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str, retries: int
) -> None:
    """It may have opened the cluster all the same; meanwhile another run has failed over."""
    link, journal = linked(tmp_path, ends='[ "$MIRRORBOOK_ACTION" = fence ]', retries=retries), closed()
    journal.log.put(replace(journal.run, state=RunState.ABORTING), OWED)
    # An abort that is repeated writes before each try; a watcher once more, before it looks.
    lost_after(journal, 1 if who == "abort" else 2)
    wanted(monkeypatch, pending_fences={MIRROR.name: CLOSED})
    with pytest.raises(LostOwnership):
        LATE[who](link, journal)
    assert called(link) == ["unfence", "fence"]


@pytest.mark.parametrize("retries", [0, 1])
def test_a_closing_that_failed_too_late_is_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retries: int
) -> None:
    link, journal = (
        linked(tmp_path, ends='[ "$MIRRORBOOK_ACTION" = unfence ]', retries=retries),
        journal_of("r", "fence"),
    )
    lost_after(journal, 1)
    wanted(monkeypatch)
    acts = acted(link, tmp_path, journal)
    with pytest.raises(LostOwnership):
        CommandFence(acts, "fence", LiftFile(acts))(TOPICS)
    assert called(link) == ["fence", "unfence"]


def test_a_watcher_that_closed_too_late_and_in_vain_is_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, journal = linked(tmp_path, ends='[ "$MIRRORBOOK_ACTION" = unfence ]'), closed()
    monkeypatch.setattr(watcher, "list_fence_denials", lambda *asked: set())
    monkeypatch.setattr(watcher, "deny_all_writers", lambda *asked: AuthorizerOff("rules itself"))
    lost_after(journal, 1)
    wanted(monkeypatch)
    with pytest.raises(LostOwnership):
        watcher._apply_fence(link, cast("Any", journal.log), replace(CLOSED, applied_at_ms=None))
    assert called(link) == ["fence", "unfence"]


def test_what_a_watcher_could_not_put_right_calls_people(link: MirrorLink, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mirror is another's by then, who does not know of it: nothing is written."""

    def fails(*asked: object) -> None:
        raise CommandNotReconciled("see to it by its own means")

    journal = closed()
    journal.log.put(OWED)
    monkeypatch.setattr(watcher, "_observe_and_decide", lambda *asked: SimpleNamespace(action=FenceNextAction.LIFT))
    monkeypatch.setattr(watcher, "_lift_fence", fails)
    found = watcher._apply_decision(link, cast("Any", journal.log))
    assert found.alarms == (str(Finding("fence_attempt_failed", "east", reason="see to it by its own means")),)
    assert (found.state, found.is_silent) == (FenceState.LIFTING, False)
    assert log_of(journal).state.pending_fences[MIRROR.name] == OWED


def test_a_step_that_closes_its_old_source_too_late_is_put_right(
    link: MirrorLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journal_of("r", "demote")
    steps = FailbackSteps(link, cast("Any", None), cast("Any", journal.log), journal)
    lost_after(journal, 1)
    wanted(monkeypatch)
    with pytest.raises(LostOwnership):
        steps._make_command_fence(link, link.source)(TOPICS)
    assert called(link) == ["fence", "unfence"], "applications are at home by now"


# -- a fence by command that was lifted where nobody sees it --------------------------------------------------------


P0 = Partition("orders", 0)
STILL = PromotionProbe(log_ends={P0: Offset(5)})


@pytest.mark.parametrize(
    ("looks", "lifted_ms", "expected", "refused"),
    [
        ((STILL, STILL), None, ["fence"], ""),
        ((STILL, replace(STILL, log_ends={P0: Offset(6)})), None, ["fence"], "accepted writes behind the fence"),
        ((replace(STILL, log_ends={P0: Offset(6)}),), None, [], "accepted writes behind the fence"),
        ((PromotionProbe(silent_because="no answer"),), None, [], ""),
        ((STILL,), 5, [], "was lifted by its file"),
    ],
)
def test_before_a_planned_promotion_the_source_is_closed_once_more_and_looked_at_again(
    link: MirrorLink,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    looks: tuple[PromotionProbe, ...],
    lifted_ms: int | None,
    expected: list[str],
    refused: str,
) -> None:
    journal, seen = journal_of("r", "fence", "promote"), iter(looks)
    journal.save_checkpoint("begin", EMPTY_SCOPE)
    journal.save_checkpoint("fence", FenceResult(ends=PartitionOffsets(), authorizer=False, command=True))
    journal.save_checkpoint("drain", DrainResult(positions=PartitionOffsets.from_mapping({P0: Offset(5)})))
    write_fence_file(fence_file_path(tmp_path / "run-r", "r"), replace(FENCE, lifted_ms=lifted_ms), "advice")
    monkeypatch.setattr(PlannedSteps, "check_approval", lambda self, what, source_needed: False)
    monkeypatch.setattr(fence_recheck, "probe_source", lambda *asked: next(seen))
    services = cast("Any", SimpleNamespace(evidence_dir=tmp_path))
    steps = PlannedSteps(link, services, cast("Any", journal.log), journal)
    with pytest.raises(Refused, match=refused) if refused else nullcontext():
        assert steps.check_before_promotion() is looks[-1]
    assert called(link) == expected
    assert next(seen, None) is None


def promoting(link: MirrorLink, folder: Path, *, mode: RunMode = RunMode.PLANNED) -> StepContext:
    journal = journal_of("r", "promote")
    run = replace(journal.run, plan=replace(journal.run.plan, mode=mode))
    journal.log.put(run, CLOSED)
    acts = acted(link, folder, journal)
    journal.save_checkpoint("promote", PromotionCheck(source_state="", rights_given=True))
    return replace(acts, writer=cast("Any", journal.log))


@pytest.mark.parametrize(
    ("end", "told", "expected"),
    [(7, {}, ["fence"]), (9, {"fence": "applied", "fence_command": "done"}, ["fence", "fence"])],
)
def test_a_promotion_that_goes_on_has_its_source_closed_once_more(
    link: MirrorLink,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: int,
    told: dict[str, str],
    expected: list[str],
) -> None:
    """A copy of the fence's file may have opened it. What was written meanwhile is counted."""
    acts = promoting(link, tmp_path)
    monkeypatch.setattr(fence_recheck, "is_past_no_return", lambda state, run: True)
    monkeypatch.setattr(fence_recheck, "list_known_offsets", lambda *asked: {Partition("orders", 0): Offset(end)})
    monkeypatch.setattr(fence_recheck, "list_since_offsets", lambda *asked: {})
    monkeypatch.setattr(fence_recheck, "with_uncopied", lambda link, log, source, fence, recorded, before_deny: fence)
    monkeypatch.setattr(fence_recheck, "check_stillness", lambda *asked: {Partition("orders", 0): Offset(end)})
    monkeypatch.setattr(fence_recheck, "deny_all_writers", lambda *a, **k: AuthorizerOff("rules itself"))
    found = reapply_fence(acts, TOPICS, [Partition("orders", 0)])
    assert {k: found.get(k) for k in told} == told
    assert called(link) == expected
    assert log_of(acts.journal).state.pending_fences[MIRROR.name].log_ends.to_mapping() == {
        Partition("orders", 0): Offset(end)
    }


def test_a_silent_source_is_left_as_it_is(link: MirrorLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*asked: object) -> None:
        raise Unreachable("no broker answers")

    acts = promoting(link, tmp_path, mode=RunMode.UNPLANNED)
    monkeypatch.setattr(fence_recheck, "check_source_id", silent)
    assert "was not asked again" in str(reapply_fence(acts, TOPICS, [])["fence"])
    assert called(link) == []
    assert log_of(acts.journal).state.pending_fences[MIRROR.name] == CLOSED


@pytest.mark.parametrize("was_seen", [True, False])
def test_what_a_source_took_is_in_doubt_unless_its_fence_was_seen_just_before_it_fell_silent(
    link: MirrorLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_seen: bool
) -> None:
    def silent(*asked: object) -> None:
        raise Unreachable("no broker answers")

    acts = promoting(link, tmp_path)
    journal = cast("Any", acts.journal)
    journal.save_checkpoint("promote", PromotionCheck(source_state="seen", source_confirmed=True, rights_given=True))
    log = log_of(journal)
    log.put(replace(CLOSED, by_command=False))
    if was_seen:
        log.put(
            StepRecord(run=journal.run_id, step="promote", state=StepState.DONE, attempt=1, started_ms=log.now_ms())
        )
    monkeypatch.setattr(fence_recheck, "check_source_id", silent)
    reapply_fence(acts, TOPICS, [])
    assert journal.load_checkpoint("promote", PromotionCheck).source_confirmed is was_seen


@pytest.mark.parametrize("towards", ["west", "north"])
def test_topics_that_another_failover_keeps_closed_stay_so(
    link: MirrorLink, monkeypatch: pytest.MonkeyPatch, towards: str
) -> None:
    journal, there = closed(), MemoryLog()
    (log_of(journal) if towards == "west" else there).put(*other_mirror(CLOSED, towards=towards))
    third(monkeypatch, there.state)
    assert aborted(link, journal) == format_sentence("open_again_but_for_orders_another", "east")
    assert called(link) == ["unfence"]
    assert topics_told(link) == ["a.b"]
    assert MIRROR.name not in log_of(journal).state.pending_fences


@pytest.mark.parametrize(
    "records",
    [other_mirror(towards="north"), other_mirror(OWED, towards="north"), other_mirror(CLOSED, towards="west")],
)
def test_a_mirror_that_was_stopped_or_given_up_or_is_not_there_keeps_nothing_closed(
    link: MirrorLink, monkeypatch: pytest.MonkeyPatch, records: list[Any]
) -> None:
    journal, there = closed(), MemoryLog()
    there.put(*records)
    third(monkeypatch, there.state)
    assert aborted(link, journal) == ""
    assert topics_told(link) == sorted(TOPICS)


def test_where_all_of_them_are_another_failovers_nothing_is_called(
    link: MirrorLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, there = closed(), MemoryLog()
    there.put(*other_mirror(CLOSED, towards="north", topics=TOPICS))
    third(monkeypatch, there.state)
    assert "open again but for a.b, orders" in aborted(link, journal)
    assert called(link) == []


def test_nothing_is_opened_while_nobody_knows_whether_another_failover_needs_it(
    link: MirrorLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = closed()
    third(monkeypatch, Unreachable("cluster north: no answer"))
    note = aborted(link, journal)
    assert "east is still closed to applications" in note
    assert "is not known (north: cluster north: no answer)" in note
    assert called(link) == []
    assert log_of(journal).state.pending_fences[MIRROR.name].by_command


def test_who_puts_a_late_command_right_leaves_them_closed_too(
    link: MirrorLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = MemoryLog()
    there.put(*other_mirror(CLOSED, towards="north"))
    third(monkeypatch, there.state)
    wanted(monkeypatch)
    where = fence_command.build_command_target(link, EAST, "r", TOPICS)
    assert not fence_command_runner.reconcile_command(link, where)
    assert topics_told(link) == ["a.b"]


@pytest.mark.parametrize("told", [True, False])
def test_by_its_file_too_a_fence_is_lifted_but_for_what_another_failover_keeps_closed(
    link: MirrorLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    """Not while a cluster other than the file's destination is silent: applications may have moved there."""
    there, silent = MemoryLog(), Unreachable("no answer")
    there.put(*other_mirror(CLOSED, towards="north"))
    answer = there.state if told else silent
    asked = list[set[str]]()

    def states(config: Config) -> Iterator[tuple[ClusterName, State | MirrorError]]:
        asked.append({*config.clusters})
        yield NORTH, answer

    monkeypatch.setattr(fence_manual_commands, "read_states", states)
    monkeypatch.setattr(fence_manual_commands, "_read_destination", lambda config, fence: silent)
    fence = replace(
        FENCE,
        cluster=EAST,
        cluster_id="E",
        destination=ClusterName("west"),
        mirror=MIRROR.name,
        topics=TOPICS,
        command=True,
    )
    file = tmp_path / "unfence-r.json"
    if told:
        assert fence_manual_commands.lift_by_file(link.config, link.source, fence, file, lifted_by="test")
        assert topics_told(link) == ["a.b"]
    else:
        with pytest.raises(Refused, match="no answer from north: no answer"):
            fence_manual_commands.lift_by_file(link.config, link.source, fence, file, lifted_by="test")
        assert not called(link)
        assert not file.exists()
    assert all(clusters == {EAST} for clusters in asked), "not the dead destination"
