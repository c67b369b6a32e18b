"""The source is dead: its mirror is promoted without it, kept within what was approved, and a fence is owed."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from confluent_kafka import Producer

from mirror_core.dataplane.epoch_results import raise_if_failed
from mirror_core.decide.fence_state import FenceDecision, FenceState
from mirror_core.decide.steps import list_step_names
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.describe import describe_mirror
from mirror_core.mirrors.fence_watcher import check_fence
from mirror_core.mirrors.mirror_facts import FactKey
from mirror_core.model.errors import MirrorError, Refused
from mirror_core.model.figures import FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import DesiredState, FailureKind, PartitionState
from mirror_core.model.names import Offset, Partition
from mirror_core.model.pending_fence import FenceAction, LateSplit
from mirror_core.model.run import Run, RunKind, RunMode, RunState, StepState
from mirror_core.model.source_observation import ObservedTopic, SourceObservation
from mirror_core.model.timing import now_ms
from mirror_core.runbook.failback_steps import load_reverse_link
from mirror_core.state.state_records import PartitionRecord
from mirror_core.state.writer import StateWriter, make_data_id
from mirror_core.sync.offset_commits import build_commit_denial
from tests.support.broker_faults import Harm, killed, suspended
from tests.support.cli_process import mirrorbook
from tests.support.failback_runs import failback_of, failed_over, go_home
from tests.support.failover_runs import acls, app_topic, commit, committed, denied
from tests.support.kafka_clients import TIMEOUT_S, Pair, produce, read_all, read_all_aiokafka
from tests.support.mirrored_topics import Mirrored, new_mirror, replicate
from tests.support.sentences import format_sentence
from tests.support.unplanned_runs import STEPS, begin
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def slow(step: str) -> ParameterSet:
    """The same at another step: for the night."""
    return pytest.param(step, marks=pytest.mark.slow)


def taken(mirrored: Mirrored, run: Run) -> list[tuple[str, StepState]]:
    return [(s.step, s.state) for s in mirrored.failover.read_status(run.id)[1]]


def test_a_source_that_is_back_is_given_up_by_no_approval_of_when_it_was_dead(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 10)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    failover = mirrored.failover
    with killed(pair.east):
        dead, silent = failover.decide_unplanned()
        assert silent
    produce(pair.east, topic, 5, user="app")
    with pytest.raises(Refused, match=format_sentence("source_answers_by_now", "east")):
        failover.begin(dead.plan.hash, RunMode.UNPLANNED, silent=silent)
    assert failover.find_active_run() is None
    assert not denied(pair.east, topic)
    assert failover.decide_unplanned()[1] is False


@pytest.mark.parametrize("harm", [killed, pytest.param(suspended, marks=pytest.mark.slow)])
def test_a_dead_source_is_given_up_and_every_copied_record_is_there(pair: Pair, tmp_path: Path, harm: Harm) -> None:
    topic = app_topic(pair, 2)
    group = f"g-{topic}"
    sent = produce(pair.east, topic, 200) + produce(pair.east, topic, 100, partition=1)
    commit(pair.east, group, topic, 42)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group,))
    mirrored.copy()
    mirror_commands.run_sync(mirrored.link)
    commit(pair.east, group, topic, 60)
    lost = produce(pair.east, topic, 7)
    with harm(pair.east):
        run = begin(mirrored.failover)
        assert denied(pair.west, topic)
        done = mirrored.failover.drive(run.id)
        assert done.state is RunState.DONE
        assert taken(mirrored, run) == [(name, StepState.DONE) for name in STEPS]
        assert not denied(pair.west, topic)
        assert denied(pair.west, topic, "mirror-data"), "a task of the past could write a promoted topic"
        assert {p: s.lmo for p, s in mirrored.statuses.items()} == {Partition(topic, 0): 200, Partition(topic, 1): 100}
        assert {s.state for s in mirrored.statuses.values()} == {PartitionState.STOPPED}
        assert mirrored.state.mirrors[mirrored.name].desired is DesiredState.STOPPED
        assert [r for r in read_all(pair.west, topic) if r.value != b"x"] == sorted(sent)
        assert [r for r in read_all_aiokafka(pair.west, topic) if r.value != b"x"] == sorted(sent)
        assert committed(pair.west, group, topic) == 42
        debt = mirrored.state.pending_fences[mirrored.name]
        assert (debt.action, debt.cluster, debt.run, debt.applied_at_ms) == (FenceAction.APPLY, "east", run.id, None)
        assert debt.trouble is not None
        assert (debt.trouble.code, debt.trouble.subject) == ("fence_unanswered", "east")
        with pytest.raises(Refused, match="only a failback leads back"):
            mirrored.failover.abort(run.id)
    assert len(read_all(pair.east, topic)) == len(sent) + len(lost)
    assert counted(mirrored, run, group) == {"lost_offsets": (0, None, None), "read_again_offsets": (0, None, None)}
    failback = failback_of(mirrored)
    home = failback.begin(failback.plan().hash)
    failback.run_step(home.id, "salvage")
    assert counted(mirrored, run, group) == {"lost_offsets": (0, 7, 7), "read_again_offsets": (0, 18, 0)}
    assert [c for c in mirrored.state.checkpoints.values() if c.run == run.id] == []
    failback.abort(home.id)


@pytest.mark.parametrize("fenced_by", ["watcher", "failback"])
def test_what_a_returned_source_took_unfenced_is_not_counted_as_lost(
    pair: Pair, tmp_path: Path, fenced_by: str
) -> None:
    topic = app_topic(pair, 2)
    produce(pair.east, topic, 30)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    produce(pair.east, topic, 7)
    with killed(pair.east):
        run = begin(mirrored.failover)
        assert mirrored.failover.drive(run.id).state is RunState.DONE
    produce(pair.east, topic, 5)
    produce(pair.east, topic, 4, partition=1)
    if fenced_by == "watcher":
        decision = check_fence(mirrored.link)
        first, second = Partition(topic, 0), Partition(topic, 1)
        assert decision.late_split == LateSplit(
            before={first: (Offset(30), Offset(37))},
            since={first: (Offset(37), Offset(42)), second: (Offset(0), Offset(4))},
            unknown={},
        )
        described = describe_mirror(mirrored.link, mirrored.state, now_ms()).facts[FactKey.LATE_WRITES].text
        parted = Finding(
            "late_ranges_parted",
            "east",
            taken=9,
            taken_ranges=f"{first} [37, 42), {second} [0, 4)",
            lost=7,
            lost_ranges=f"{first} [30, 37)",
        )
        assert str(parted) in described
    failback = failback_of(mirrored)
    home = failback.begin(failback.plan().hash)
    failback.run_step(home.id, "salvage")
    outcome = mirrored.state.runs[run.id].forecast_outcome
    assert outcome is not None
    assert (outcome.lost_offsets, outcome.taken_since_offsets) == (7, 9)
    status = mirrorbook("failover", "status", mirrored.name, "--config", str(mirrored.config.path)).stdout
    assert str(Finding("taken_since", offsets=9)) in status
    failback.abort(home.id)


def test_a_lost_record_dated_ahead_counts_as_lost_where_the_source_was_seen_with_it(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 30)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    in_half_an_hour_ms = now_ms() + 1_800_000
    producer = Producer(pair.east.client_config("admin"))
    for number in range(7):
        producer.produce(topic, b"%d" % number, partition=0, timestamp=in_half_an_hour_ms + number)
    assert producer.flush(TIMEOUT_S) == 0
    with StateWriter(mirrored.link.destination, make_data_id(mirrored.name)) as data:
        seen = ObservedTopic(topic=topic, ends=(37,), recovery_points=((0, 0, 30),))
        data.put(SourceObservation(mirror=mirrored.name, at_ms=data.now_ms(), topics=(seen,)))
    with killed(pair.east):
        run = begin(mirrored.failover)
        assert mirrored.failover.drive(run.id).state is RunState.DONE
    produce(pair.east, topic, 5)
    partition = Partition(topic, 0)
    assert check_fence(mirrored.link).late_split == LateSplit(
        before={partition: (Offset(30), Offset(37))}, since={partition: (Offset(37), Offset(42))}, unknown={}
    )


def counted(mirrored: Mirrored, run: Run, group: str) -> dict[str, tuple[object, object, object]]:
    """Foretold at the least, counted, error: as people see it over time."""
    said = mirrorbook("runs", "forecast", mirrored.name, "--config", str(mirrored.config.path), "--json")
    (found,) = [one for one in json.loads(said.stdout)["runs"] if one["run"] == run.id]
    wanted = ("lost_offsets", "read_again_offsets")
    return {
        row["key"]: (row["at_least"], row["counted"], row["error"])
        for row in found["rows"]
        if row["key"] in wanted and row["item"] in ("", group)
    }


@pytest.mark.slow
def test_a_source_that_wakes_up_behind_the_promotion_is_fenced_by_the_next_step(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    done = list_step_names(RunKind.FAILOVER, RunMode.UNPLANNED)
    with suspended(pair.east):
        run = begin(mirrored.failover)
        for name in done[: done.index("promote") + 1]:
            mirrored.failover.run_step(run.id, name)
    assert mirrored.state.pending_fences[mirrored.name].applied_at_ms is None
    wait_until(mirrored.failover.can_reach_source, timeout_s=TIMEOUT_S, why="east answers again")
    assert not denied(pair.east, topic)
    mirrored.failover.run_step(run.id, "switch")
    assert mirrored.state.pending_fences[mirrored.name].applied_at_ms
    assert denied(pair.east, topic)
    assert mirrored.failover.drive(run.id).state is RunState.DONE


@pytest.mark.parametrize("last", [slow("begin"), slow("settle"), "stand", slow("record_lmo")])
def test_an_unplanned_run_is_given_up_when_the_source_comes_back(pair: Pair, tmp_path: Path, last: str) -> None:
    topic = app_topic(pair)
    sent = produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    shared = {build_commit_denial("User:mirror-data")}  # stays while the ledger of another test's mirror has it, too
    before = acls(mirrored, "east"), acls(mirrored, "west") - shared
    failover = mirrored.failover
    with suspended(pair.east):
        run = begin(failover)
        for name in STEPS[: STEPS.index(last) + 1] if last in STEPS else ():
            failover.run_step(run.id, name)

    assert failover.abort(run.id).state is RunState.ABORTED

    assert (acls(mirrored, "east"), acls(mirrored, "west") - shared) == before
    assert mirrored.name not in mirrored.state.pending_fences
    assert not denied(pair.east, topic)
    sent += produce(pair.east, topic, 5)
    mirrored.copy()
    assert [r for r in read_all(pair.west, topic) if r.value != b"x"] == sent


def test_an_abort_that_the_dead_source_cannot_take_is_owed(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    failover = mirrored.failover
    run = begin(failover, RunMode.PLANNED)
    for name in ("prove", "fence"):
        failover.run_step(run.id, name)
    with killed(pair.east):
        aborted = failover.abort(run.id)
        assert aborted.state is RunState.ABORTED
        assert "does not answer" in aborted.note
        debt = mirrored.state.pending_fences[mirrored.name]
        assert (debt.action, debt.run, debt.applied_at_ms) == (FenceAction.LIFT, run.id, None)
        assert mirrored.state.mirrors[mirrored.name].desired is DesiredState.STARTED
    assert denied(pair.east, topic), "nobody has paid yet"
    # Another failover puts up the fence that was owed to be taken down: from then on it is its own.
    again = begin(failover, RunMode.PLANNED)
    for name in ("prove", "fence"):
        failover.run_step(again.id, name)
    assert mirrored.name not in mirrored.state.pending_fences
    failover.abort(again.id)
    assert not denied(pair.east, topic)


@pytest.mark.parametrize("reached", [(), pytest.param(("settle",), marks=pytest.mark.slow)])
def test_an_abort_of_what_has_fenced_nothing_owes_nothing(pair: Pair, tmp_path: Path, reached: tuple[str, ...]) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    with suspended(pair.east):
        run = begin(mirrored.failover)
        for name in reached:
            mirrored.failover.run_step(run.id, name)
        assert mirrored.failover.abort(run.id).note == ""
        assert mirrored.name not in mirrored.state.pending_fences, "replicate would be refused until the source answers"


PLANNED = list_step_names(RunKind.FAILOVER)


@pytest.mark.parametrize("behind", [slow("begin"), slow("prove"), slow("fence"), "drain", slow("final_sync")])
def test_a_planned_run_whose_source_dies_before_the_comparison_becomes_an_unplanned_one(
    pair: Pair, tmp_path: Path, behind: str
) -> None:
    topic = app_topic(pair)
    sent = produce(pair.east, topic, 30)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    mirror_commands.run_sync(mirrored.link)
    if behind in ("drain", "final_sync"):
        sent += produce(pair.east, topic, 5)  # the drain brings it over
    failover = mirrored.failover
    planned = begin(failover, RunMode.PLANNED)
    reached = PLANNED[: PLANNED.index(behind) + 1] if behind in PLANNED else ()
    for name in reached:
        failover.run_step(planned.id, name)
    with killed(pair.east):
        with pytest.raises(MirrorError):
            failover.drive(planned.id)
        plan = failover.decide(RunMode.UNPLANNED).plan
        assert [w for w in plan.warnings if (w.code, w.subject) == ("run_continued", planned.id)]
        assert plan.figures[FigureKey.SOURCE_DRAINED] is ("drain" in reached)
        run = begin(failover)
        before = mirrored.state.runs[planned.id]
        assert (run.continues, before.state) == (planned.id, RunState.SUPERSEDED)
        with pytest.raises(Refused, match=run.id):
            failover.drive(planned.id)
        assert failover.drive(run.id).state is RunState.DONE
        assert not denied(pair.west, topic)
    assert denied(pair.east, topic) is ("fence" in reached)
    assert [r for r in read_all(pair.west, topic) if r.value != b"x"] == sent


@pytest.mark.slow
@pytest.mark.parametrize("behind", ["parity", "record_lmo"])
def test_a_planned_run_whose_source_dies_after_the_comparison_goes_on(pair: Pair, tmp_path: Path, behind: str) -> None:
    topic = app_topic(pair)
    sent = produce(pair.east, topic, 30)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    failover = mirrored.failover
    run = begin(failover, RunMode.PLANNED)
    for name in PLANNED[: PLANNED.index(behind) + 1]:
        failover.run_step(run.id, name)
    with killed(pair.east):
        assert failover.drive(run.id).state is RunState.DONE
        assert not denied(pair.west, topic)
        assert [r for r in read_all(pair.west, topic) if r.value != b"x"] == sent
    assert denied(pair.east, topic)
    debt = mirrored.state.pending_fences[mirrored.name]
    assert (debt.action, debt.run) == (FenceAction.APPLY, run.id)
    assert debt.applied_at_ms is not None
    assert debt.log_ends.to_mapping() == {Partition(topic, 0): 30}


@pytest.mark.slow
def test_a_failed_partition_that_does_not_come_to_rest_holds_up_no_other_one(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair, 2)
    sent = produce(pair.east, topic, 30)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    bad = Partition(topic, 1)
    state, kind = PartitionState.FAILED, FailureKind.DIVERGED
    with StateWriter(mirrored.link.destination, make_data_id(mirrored.name)) as data:
        failed = replace(mirrored.statuses[bad], state=state, kind=kind, reason="somebody else has written")
        data.put(PartitionRecord(mirrored.name, failed))
    settings = {"transactional.id": f"tx-{topic}", "transaction.timeout.ms": 300_000}
    stranger = Producer({**pair.west.client_config("admin"), **settings})
    stranger.init_transactions(30)
    stranger.begin_transaction()
    stranger.produce(topic, b"of a transaction that hangs", partition=bad.index)
    assert stranger.flush(30) == 0
    try:
        with suspended(pair.east):
            assert mirrored.failover.drive(begin(mirrored.failover).id).state is RunState.DONE
    finally:
        stranger.abort_transaction(30)
    assert {p: s.lmo for p, s in mirrored.statuses.items()} == {Partition(topic, 0): 30, bad: 1}
    assert [r for r in read_all(pair.west, topic) if r.value != b"x" and r.partition == 0] == sent


@pytest.mark.slow
def test_after_a_homecoming_a_dead_source_is_given_up_like_the_first_time(pair: Pair, tmp_path: Path) -> None:
    """Who was demoted on west on the way home is remembered there: east, which knew it, is dead."""
    topic = app_topic(pair)
    sent = produce(pair.east, topic, 30)
    mirrored = failed_over(pair, tmp_path, topic)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    failback.drive(run.id)
    go_home(failback, run.id)
    sent += produce(pair.east, topic, 10)
    mirrored.copy()
    assert denied(pair.west, topic)
    with killed(pair.east):
        plan = mirrored.failover.plan(RunMode.UNPLANNED)
        assert topic in str(plan.rights), "what promotion gives is not in the plan"
        assert not [line for line in map(str, plan.warnings) if "no rights of applications are staged" in line]
        assert mirrored.failover.drive(begin(mirrored.failover).id).state is RunState.DONE
        assert not denied(pair.west, topic)
        assert [r for r in read_all(pair.west, topic) if r.value != b"x"] == sent


@pytest.mark.slow
def test_the_primary_that_dies_on_the_way_home_leaves_the_old_source_to_be_promoted(pair: Pair, tmp_path: Path) -> None:
    """Who was demoted on east is remembered there, too: west, which knew it, is dead."""
    topic = app_topic(pair)
    sent = produce(pair.east, topic, 30)
    mirrored = failed_over(pair, tmp_path, topic)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    assert failback.drive(run.id).state is RunState.RUNNING
    home = failback.make_reverse_failover()
    assert denied(pair.east, topic)
    with killed(pair.west):
        assert home.drive(begin(home).id).state is RunState.DONE
        assert not denied(pair.east, topic)
        assert [r for r in read_all(pair.east, topic) if r.value != b"x"] == sent


def test_the_primary_that_died_on_the_way_home_is_fenced_when_it_is_back_and_protects_again(
    pair: Pair, tmp_path: Path
) -> None:
    """What it alone holds is never overwritten in silence: its partition is FAILED, and to be saved by `recover`."""
    prefix = f"t-{secrets.token_hex(4)}-"
    ahead, even = app_topic(pair, prefix=prefix), app_topic(pair, prefix=prefix)
    for topic in (ahead, even):
        produce(pair.east, topic, 30)
    mirrored = failed_over(pair, tmp_path, f"{prefix}.*")
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    for step in ("salvage", "align", "demote", "create_reverse"):
        failback.run_step(run.id, step)
    raise_if_failed(replicate(load_reverse_link(mirrored.link)))
    produce(pair.west, ahead, 5)
    home = failback.make_reverse_failover()
    with killed(pair.west):
        assert home.drive(begin(home).id).state is RunState.DONE

    def fenced() -> FenceDecision | None:
        found = check_fence(home.link)
        return found if found.state is FenceState.APPLIED else None

    found = wait_until(fenced, timeout_s=TIMEOUT_S, why="west answers, and is fenced")
    assert found is not None
    assert found.late_split == LateSplit(before={Partition(ahead, 0): (Offset(30), Offset(35))}, since={}, unknown={})
    assert denied(pair.west, ahead)
    assert failback.drive(run.id).state is RunState.DONE
    assert denied(pair.west, ahead)
    status = mirrored.statuses[Partition(ahead, 0)]
    assert (status.state, status.kind, status.failed_at) == (PartitionState.FAILED, FailureKind.DIVERGED, 30)
    assert "35" in (status.reason or "")
    sent = produce(pair.east, even, 4)
    assert set(replicate(mirrored.link).failed) <= {Partition(ahead, 0)}
    assert read_all(pair.west, even)[-4:] == sent
