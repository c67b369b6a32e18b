"""The last words that a task's log ends with, whatever became of its run: also of one that nobody began."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.decide.forecast_accuracy import ForecastKey, list_forecast_rows
from mirror_core.decide.steps import WriteLocation
from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.errors import Unreachable
from mirror_core.model.forecast import ForecastOutcome
from mirror_core.model.mirror import DesiredState, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition, PartitionOffsets
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.model.run import PlanStep, Run, RunKind, RunMode, RunState, StepRecord, StepState
from mirror_core.model.run_checkpoints import Checkpoint
from mirror_core.runbook import run_outcome
from mirror_core.runbook.run_outcome import (
    count_lost_behind_fence,
    explain_unread_home,
    explain_unseen_home,
    find_recorded_access,
    read_mirror_status,
    read_run_outcome,
    read_run_result,
)
from mirror_core.state.active_cluster import ActiveCluster
from mirror_core.state.state_records import State
from tests.support.cluster_names import LINK
from tests.support.loss_views import status
from tests.support.mirror_views import MIRROR, RUN
from tests.support.sentences import format_sentence

CONFIG = replace(LINK.config, clusters={one.name: one for one in (LINK.source, LINK.destination)})
HERE = replace(LINK, config=CONFIG)
BACK = replace(
    MIRROR, name=MirrorName("m-back"), source=MIRROR.destination, destination=MIRROR.source, failback_run="m-failback-1"
)


def a_run(
    run_id: str, kind: RunKind, state: RunState, at_ms: int, *, mirror: Mirror = MIRROR, homecoming: str = ""
) -> Run:
    ended = None if state is RunState.RUNNING else at_ms + 1
    plan = replace(RUN.plan, kind=kind, mode=RunMode.PLANNED, mirror=mirror.name)
    return replace(
        RUN, id=run_id, number=at_ms, plan=plan, state=state, started_ms=-at_ms, ended_ms=ended, failback_run=homecoming
    )


def a_state(mirror: Mirror, *runs: Run, done: tuple[str, ...] = ()) -> State:
    """`done`: steps of each of them."""
    found = State()
    found.mirrors[mirror.name] = mirror
    for run in runs:
        steps = tuple(PlanStep(name=name, action=name) for name in done)
        found.runs[run.id] = replace(run, plan=replace(run.plan, steps=steps))
        for at_ms, name in enumerate(done):
            found.steps[run.id, name] = StepRecord(
                run=run.id, step=name, state=StepState.DONE, attempt=1, started_ms=at_ms, ended_ms=at_ms
            )
    return found


def answers(monkeypatch: pytest.MonkeyPatch, east: State | None, west: State | None) -> None:
    """What both clusters' state topics hold; None: it does not answer."""

    def read(cluster: ClusterConfig, timeout_s: float) -> State:
        found = {"east": east, "west": west}[cluster.name]
        if found is None:
            raise Unreachable(f"cluster {cluster.name} does not answer")
        return found

    monkeypatch.setattr(run_outcome, "read_state", read)
    monkeypatch.setattr(run_outcome, "is_source_answering", lambda link: link.source.name != "east" or east is not None)
    monkeypatch.setattr(run_outcome, "may_be_fenced", lambda config, name: False)
    monkeypatch.setattr(run_outcome, "_has_denials", lambda link, topics: None)


def test_what_a_step_of_another_version_kept_hides_no_error_of_a_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run("m-failover-1", RunKind.FAILOVER, RunState.RUNNING, 1)
    west = a_state(MIRROR, run)
    partition = Partition("a", 0)
    west.partitions[MIRROR.name] = {partition: status(partition, "cut")}
    west.checkpoints[run.id, "begin", "FailoverScope"] = Checkpoint(
        run=run.id, step="begin", kind="FailoverScope", version=0, value="{}"
    )
    answers(monkeypatch, State(), west)
    [line] = read_run_outcome(HERE, run)
    assert "is of version 0" in line


def test_a_rejected_first_failover_leaves_applications_where_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, State(), a_state(MIRROR))
    (line,) = read_mirror_status(HERE, None)
    assert line == format_sentence("nothing_begun", "east", "west")


def test_applications_of_a_stopped_mirror_without_a_run_never_left_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, State(), a_state(replace(MIRROR, desired=DesiredState.STOPPED)))
    (line,) = read_mirror_status(HERE, None)
    assert line == format_sentence("nothing_begun_mirror_stopped", "east")


def test_a_rejected_run_is_closed_by_what_the_newest_one_left(monkeypatch: pytest.MonkeyPatch) -> None:
    first = a_run("m-failover-1", RunKind.FAILOVER, RunState.DONE, 10)
    answers(monkeypatch, State(), a_state(MIRROR, first))
    text = " ".join(read_mirror_status(HERE, None))
    assert text.startswith(format_sentence("nothing_begun_newest_run", "west"))
    assert "`mirrorbook failback plan m`" in text


def test_what_was_refused_for_a_run_that_holds_the_mirror_names_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    held = a_run("m-failover-1", RunKind.FAILOVER, RunState.RUNNING, 10)
    late = a_run("m-failback-1", RunKind.FAILBACK, RunState.DONE, 5)  # begun before it, by a clock that was ahead
    answers(monkeypatch, State(), a_state(MIRROR, held, late))
    text = " ".join(read_mirror_status(HERE, None))
    assert text.startswith(format_sentence("task_began_no_run"))


def test_a_run_that_was_begun_has_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, State(), a_state(MIRROR, a_run("m-failback-1", RunKind.FAILBACK, RunState.DONE, 10)))
    lines = read_mirror_status(HERE, "m-failback-1")
    assert "west is NOT being updated now." in lines[0]


def test_a_failback_whose_way_home_was_rejected_says_where_applications_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """`failover status m-back` would know no run."""
    run = a_run("m-failback-1", RunKind.FAILBACK, RunState.RUNNING, 10)
    answers(monkeypatch, a_state(BACK), a_state(MIRROR, run, done=("salvage", "catch_up")))
    text = " ".join(read_mirror_status(HERE, run.id))
    assert "`mirrorbook failback resume m` goes on" in text
    assert "Failover m-back has not begun: applications write on west." in text


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (RunState.DONE, "Applications write on east: point those there"),
        (RunState.ABORTED, "Applications write on west, as before."),
        (RunState.RUNNING, "`mirrorbook failover resume m-back` goes on"),
    ],
)
def test_a_failback_ends_with_the_words_of_its_way_home(
    monkeypatch: pytest.MonkeyPatch, state: RunState, words: str
) -> None:
    run = a_run("m-failback-1", RunKind.FAILBACK, RunState.RUNNING, 10)
    home = a_run("m-back-failover-2", RunKind.FAILOVER, state, 20, mirror=BACK, homecoming=run.id)
    older = a_run("m-back-failover-1", RunKind.FAILOVER, RunState.ABORTED, 5, mirror=BACK, homecoming="another")
    answers(monkeypatch, a_state(BACK, older, home), a_state(MIRROR, run, done=("salvage", "catch_up")))
    assert words in " ".join(read_mirror_status(HERE, run.id))


def test_a_failback_that_is_not_so_far_asks_nobody_about_the_way_home(monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run("m-failback-1", RunKind.FAILBACK, RunState.RUNNING, 10)
    answers(monkeypatch, None, a_state(MIRROR, run, done=("salvage",)))
    text = " ".join(read_mirror_status(HERE, run.id))
    assert "Applications write on west." in text
    assert "m-back" not in text


def test_where_the_way_home_is_not_known_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run("m-failback-1", RunKind.FAILBACK, RunState.RUNNING, 10)
    answers(monkeypatch, None, a_state(MIRROR, run, done=("salvage", "catch_up")))
    text = " ".join(read_mirror_status(HERE, run.id))
    assert "east does not answer" in text
    assert "`mirrorbook failover status m-back`" in text


@pytest.mark.parametrize("run", [None, "m-failback-1"])
def test_a_destination_that_is_silent_is_said_to_be(monkeypatch: pytest.MonkeyPatch, run: str | None) -> None:
    answers(monkeypatch, State(), None)
    monkeypatch.setattr(run_outcome, "list_ways_past_fences", lambda *_: ())
    assert "west does not answer" in read_mirror_status(HERE, run)[0]


def recorded(east: State | None, west: State | None) -> tuple[object, object] | None:
    read = {name: state for name, state in (("east", east), ("west", west)) if state is not None}
    mirror = MIRROR if west is None else west.mirrors[MIRROR.name]
    access = find_recorded_access(mirror, {ClusterName(name): state for name, state in read.items()})
    return None if access is None else (access.writes, access.cluster)


def test_a_list_of_mirrors_says_where_applications_write_by_the_records_alone() -> None:
    stopped = replace(MIRROR, desired=DesiredState.STOPPED)
    moving = a_run("m-failover-1", RunKind.FAILOVER, RunState.RUNNING, 10)
    moved = a_run("m-failover-1", RunKind.FAILOVER, RunState.DONE, 10)
    assert recorded(None, a_state(MIRROR)) == (WriteLocation.SOURCE, "east"), "east's own records are not needed"
    assert recorded(None, a_state(MIRROR, moving)) == (WriteLocation.SOURCE, "east")
    assert recorded(None, a_state(MIRROR, moving, done=("prove", "fence"))) == (WriteLocation.NOWHERE, None)
    assert recorded(None, a_state(stopped, moved)) == (WriteLocation.DESTINATION, "west")
    assert recorded(None, a_state(stopped)) == (WriteLocation.SOURCE, "east"), "not started yet"
    assert recorded(State(), None) is None


def test_a_list_of_mirrors_follows_a_failback_to_its_failover_home() -> None:
    home = a_run("m-failback-1", RunKind.FAILBACK, RunState.RUNNING, 10)
    west = a_state(replace(MIRROR, desired=DesiredState.STOPPED), home, done=("salvage", "align", "catch_up"))
    back = a_run("m-back-failover-1", RunKind.FAILOVER, RunState.RUNNING, 20, mirror=BACK, homecoming=home.id)
    assert recorded(a_state(BACK), west) == (WriteLocation.DESTINATION, "west")
    assert recorded(a_state(BACK, back, done=("prove", "fence")), west) == (WriteLocation.NOWHERE, None)
    assert recorded(None, west) == (None, None)


def test_a_step_of_another_version_hides_no_other_mirror_of_a_list() -> None:
    run = a_run("m-failover-1", RunKind.FAILOVER, RunState.RUNNING, 10)
    assert recorded(None, a_state(MIRROR, run, done=("prove", "teleport"))) is None


@pytest.mark.parametrize("announced", [True, False])
def test_a_silent_home_is_told_by_the_announcement_that_the_way_home_can_read(announced: bool) -> None:
    announcement = ActiveCluster(
        mirror=MIRROR.name,
        active=MIRROR.destination,
        cluster_id="w",
        bootstrap_servers="localhost:1",
        since_ms=7,
        run="m-failover-2",
        generation=3,
    )
    finding = explain_unseen_home(BACK, announcement if announced else None)
    assert (finding.subject, finding.values["source"], finding.values["destination"]) == ("m", "east", "west")
    assert (finding.values["active"], finding.values["run"]) == (("west", "m-failover-2") if announced else ("", ""))


@pytest.mark.parametrize(("fenced_run", "lost"), [("m-failover-1", 437), ("m-failover-0", None)])
def test_what_the_watcher_has_found_behind_the_fence_is_the_loss_of_its_run(fenced_run: str, lost: int | None) -> None:
    partition = Partition("a", 0)
    outcome = ForecastOutcome(lost_offsets=None, lost_basis="not seen", reread_basis="")
    run = replace(a_run("m-failover-1", RunKind.FAILOVER, RunState.DONE, 10), forecast_outcome=outcome)
    run = replace(run, plan=replace(run.plan, mode=RunMode.UNPLANNED))
    state = a_state(MIRROR, run)
    state.partitions[MIRROR.name] = {
        partition: PartitionStatus(
            partition=partition,
            state=PartitionState.STOPPED,
            source_topic_id="s",
            destination_topic_id="d",
            lmo=Offset(100),
        )
    }
    fence = PendingFence(
        mirror=MIRROR.name,
        cluster=MIRROR.source,
        action=FenceAction.APPLY,
        run=fenced_run,
        since_ms=1,
        applied_at_ms=2,
        log_ends=PartitionOffsets.from_mapping({partition: Offset(600)}),
        uncopied=(),
    )
    state.pending_fences[MIRROR.name] = fence.add_since_offsets({partition: Offset(537)})
    result = read_run_result(HERE, state, state.runs[run.id])
    assert result is not None
    assert result.loss is not None
    assert (result.loss.offsets, result.loss.taken_since) == (lost, 63 if lost else 0)
    rows = list_forecast_rows(count_lost_behind_fence(state, state.runs[run.id]), ())
    assert [row.counted for row in rows if row.key is ForecastKey.LOST_OFFSETS] == [lost], "as in the run's result"


def test_what_is_counted_of_copies_is_the_least_that_was_lost_beside_topics_without_one() -> None:
    a, b, c = (Partition(topic, 0) for topic in "abc")
    outcome = ForecastOutcome(lost_offsets=None, lost_basis="not seen", reread_basis="")
    run = replace(a_run("m-failover-1", RunKind.FAILOVER, RunState.DONE, 10), forecast_outcome=outcome)
    run = replace(run, plan=replace(run.plan, mode=RunMode.UNPLANNED))
    state = a_state(MIRROR, run)
    statuses = {p: replace(status(p), state=PartitionState.STOPPED, lmo=Offset(100)) for p in (a, b, c)}
    statuses[b] = replace(statuses[b], lmo=None, destination_topic_id="")
    state.partitions[MIRROR.name] = statuses
    state.pending_fences[MIRROR.name] = PendingFence(
        mirror=MIRROR.name,
        cluster=MIRROR.source,
        action=FenceAction.APPLY,
        run=run.id,
        since_ms=1,
        applied_at_ms=2,
        log_ends=PartitionOffsets.from_mapping({a: Offset(600), b: Offset(36)}),
        since_offsets=PartitionOffsets.from_mapping({a: Offset(537)}),
    )
    counted = count_lost_behind_fence(state, run).forecast_outcome
    assert counted is not None
    assert (counted.lost_offsets, counted.least_lost_offsets, counted.taken_since_offsets) == (None, 437, 63)


@pytest.mark.parametrize(
    ("is_silent", "has_file", "is_fenced", "said"),
    [
        (True, True, None, ["NOBODY CAN WRITE m", "unfence, for m-back"]),
        (True, False, True, ["NOBODY CAN WRITE m"]),
        (True, False, False, ["west is not fenced for failover m-back"]),
        (True, False, None, []),
        (False, True, True, []),
    ],
)
def test_a_failback_whose_old_source_is_silent_says_whether_applications_can_write(
    monkeypatch: pytest.MonkeyPatch, is_silent: bool, has_file: bool, is_fenced: bool | None, said: list[str]
) -> None:
    answers(monkeypatch, None if is_silent else State(), State())
    monkeypatch.setattr(run_outcome, "may_be_fenced", lambda config, name: has_file)
    monkeypatch.setattr(run_outcome, "_has_denials", lambda link, topics: is_fenced)
    monkeypatch.setattr(run_outcome, "list_ways_past_fences", lambda config, name: [f"unfence, for {name}"])
    assert [line.split(":")[0] for line in explain_unread_home(HERE, a_state(MIRROR))] == said
