"""The last look before promotion: what any broker of the source can still say counts; what gave nothing is aborted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from mirror_core.decide.steps import list_step_names
from mirror_core.kafka.acl_requests import create_acls, delete_acls, wait_until_acls_absent, wait_until_acls_present
from mirror_core.kafka.topics import NewTopic, create_topics, delete_topics
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.fence_watcher import check_fence
from mirror_core.model import timing
from mirror_core.model.acl import Acl, Operation, Pattern, Permission, Resource
from mirror_core.model.errors import MissingPermission, Refused
from mirror_core.model.run import RunKind, RunMode, RunState
from mirror_core.runbook import unplanned_steps
from mirror_core.runbook.failover_conductor import list_refused_losses
from mirror_core.runbook.fence_recheck import PROBE_EVIDENCE_KEY
from mirror_core.sync import acl_sync
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.broker_faults import killed, suspended
from tests.support.cli_process import mirrorbook
from tests.support.cluster_admin import as_admin
from tests.support.emergency_unfence import lift_by_hand
from tests.support.failback_runs import failback_of
from tests.support.failover_runs import denied
from tests.support.kafka_clients import TIMEOUT_S, Pair, produce
from tests.support.mirrored_topics import Mirrored
from tests.support.scoped_failovers import copied, through
from tests.support.topic_equality import assert_same_offsets
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def denial(operation: Operation) -> Acl:
    """Of a right on the cluster, for the mirror's own user."""
    return Acl(
        resource=Resource.CLUSTER,
        name="kafka-cluster",
        pattern=Pattern.LITERAL,
        principal="User:mirror-control",
        operation=operation,
        permission=Permission.DENY,
    )


def take_right(cluster: SandboxCluster, operation: Operation) -> None:
    with as_admin(cluster) as client:
        create_acls(client, [denial(operation)])
        wait_until_acls_present(client, {denial(operation)})


def give_back(cluster: SandboxCluster, operation: Operation) -> None:
    with as_admin(cluster) as client:
        delete_acls(client, [denial(operation)])
        wait_until_acls_absent(client, {denial(operation)})


def up_to_promotion(mirrored: Mirrored, *, silent: bool = False) -> str:
    """An unplanned run that is about to promote. `silent`: its source was, when somebody gave it up."""
    plan = mirrored.failover.plan(RunMode.UNPLANNED)
    run = mirrored.failover.begin(plan.hash, RunMode.UNPLANNED, silent=silent).id
    done = list_step_names(RunKind.FAILOVER, RunMode.UNPLANNED)
    for name in done[: done.index("promote")]:
        mirrored.failover.run_step(run, name)
    return run


def give_nothing(pair: Pair, mirrored: Mirrored, run: str) -> None:
    """The promotion begins, and fails before it has given anybody a right."""
    take_right(pair.west, Operation.ALTER)
    with pytest.raises(MissingPermission, match="needs ALTER on the cluster"):
        mirrored.failover.run_step(run, "promote")
    give_back(pair.west, Operation.ALTER)


@pytest.mark.parametrize("written", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_source_that_may_not_be_asked_for_everything_is_asked_for_the_rest(
    pair: Pair, tmp_path: Path, written: bool
) -> None:
    mirrored, topic = copied(pair, tmp_path)
    run = through(mirrored, "record_lmo")
    if written:
        lift_by_hand(mirrored, topic)
        assert not denied(pair.east, topic)
    take_right(pair.east, Operation.DESCRIBE)
    if written:
        with pytest.raises(Refused, match=f"{topic}-0 on east: log end 11, drained up to 10"):
            mirrored.failover.drive(run)
        assert denied(pair.west, topic), "promoted although the source was written behind the fence"
        give_back(pair.east, Operation.DESCRIBE)
        assert mirrored.failover.abort(run).state is RunState.ABORTED
        return
    assert mirrored.failover.drive(run).state is RunState.DONE
    seen = str(mirrored.state.steps[run, "promote"].evidence[PROBE_EVIDENCE_KEY])
    assert seen.startswith("seen in part: broker 1: "), seen


@pytest.mark.parametrize("seen", [True, False])
def test_a_planned_run_has_lost_nothing_where_its_promotion_saw_the_source_that_died_later(
    pair: Pair, tmp_path: Path, seen: bool
) -> None:
    mirrored, _ = copied(pair, tmp_path)
    run = through(mirrored, "promote" if seen else "record_lmo")
    with killed(pair.east):
        assert mirrored.failover.drive(run).state is RunState.DONE
    outcome = mirrored.state.runs[run].forecast_outcome
    assert outcome is not None
    assert outcome.lost_offsets == (0 if seen else None)
    shown = " ".join(mirrorbook("runs", "show", run, "--config", str(mirrored.config.path)).stdout.split())
    assert f"lost {'nothing' if seen else 'unknown'}" in shown.replace("lost: ", "lost "), shown
    failback = failback_of(mirrored)
    assert failback.drive(failback.begin(failback.plan().hash).id).state is RunState.RUNNING
    corrected = mirrored.state.runs[run].forecast_outcome
    assert corrected is not None
    assert corrected.lost_offsets == 0, "the old source came back without a record of its own"


def test_a_promotion_that_has_given_nothing_looks_again_and_can_be_aborted(pair: Pair, tmp_path: Path) -> None:
    mirrored, topic = copied(pair, tmp_path)
    run = through(mirrored, "record_lmo")
    give_nothing(pair, mirrored, run)
    assert (run, "promote") in mirrored.state.steps
    lift_by_hand(mirrored, topic)
    assert not denied(pair.east, topic)

    with pytest.raises(Refused, match=r"1 denial gone"):
        mirrored.failover.drive(run)
    assert denied(pair.west, topic), "promoted beside a source that takes writes"

    assert mirrored.failover.abort(run).state is RunState.ABORTED
    assert not denied(pair.east, topic)
    mirrored.copy()
    assert_same_offsets(pair, [topic])


def test_who_sleeps_between_the_last_look_and_the_first_right_looks_again(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrored, topic = copied(pair, tmp_path)
    mirror_commands.run_sync(mirrored.link)
    run = through(mirrored, "record_lmo")
    giving = acl_sync.apply_promotion

    def slept(*args: Any, **known: Any) -> Any:
        lift_by_hand(mirrored, topic)
        monkeypatch.setattr(timing, "now_ms", lambda: time.time_ns() // 1_000_000 + 3_600_000)
        return giving(*args, **known)

    monkeypatch.setattr("mirror_core.runbook.promotion_steps.apply_promotion", slept)
    with pytest.raises(Refused, match="east accepted writes behind the fence"):
        mirrored.failover.run_step(run, "promote")
    monkeypatch.undo()
    assert denied(pair.west, topic), "promoted beside a source that takes writes"
    assert mirrored.failover.abort(run).state is RunState.ABORTED


def confirm_what_stands(mirrored: Mirrored, run: str) -> None:
    losses = list_refused_losses(mirrored.state, mirrored.failover.read_status(run)[0])
    mirrored.failover.confirm_leave_behind(run, losses)


@pytest.mark.parametrize("by_a_word", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_unplanned_promotion_is_resumed_only_if_a_source_that_answers_can_be_fenced_or_by_a_word(
    pair: Pair, tmp_path: Path, by_a_word: bool
) -> None:
    mirrored, topic = copied(pair, tmp_path)
    mirror_commands.run_sync(mirrored.link)  # rights are staged
    with suspended(pair.east):
        run = up_to_promotion(mirrored)
        give_nothing(pair, mirrored, run)
    take_right(pair.east, Operation.ALTER)

    wait_until(mirrored.failover.can_reach_source, timeout_s=TIMEOUT_S, why="east answers again")
    with pytest.raises(Refused, match="east answers now and could not be fenced"):
        mirrored.failover.drive(run)
    assert denied(pair.west, topic), "promoted beside a source that takes writes"

    if by_a_word:
        confirm_what_stands(mirrored, run)
    else:
        give_back(pair.east, Operation.ALTER)
    assert mirrored.failover.drive(run).state is RunState.DONE
    assert (denied(pair.east, topic), denied(pair.west, topic)) == (not by_a_word, False)
    if by_a_word:
        give_back(pair.east, Operation.ALTER)
        check_fence(mirrored.link)
        assert denied(pair.east, topic), "the fence is pending, and nobody puts it up"


@pytest.mark.parametrize("begun", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_what_a_source_took_before_a_promotion_is_resumed_is_left_behind_only_by_a_word(
    pair: Pair, tmp_path: Path, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a run that was held up before its promotion had begun: the source had the same time to take writes."""
    mirrored, topic = copied(pair, tmp_path)
    mirror_commands.run_sync(mirrored.link)  # rights are staged
    with suspended(pair.east):
        run = up_to_promotion(mirrored)
        if begun:
            give_nothing(pair, mirrored, run)
    produce(pair.east, topic, 3)

    if not begun:
        monkeypatch.setattr(unplanned_steps, "UNDELAYED_PROMOTION_S", -1.0)
        monkeypatch.setattr("mirror_core.decide.run_status.STALLED_AFTER_MS", -1)
    found = check_fence(mirrored.link)
    assert [line for line in found.alarms if f"{topic}-0 [10, 13)" in line], found
    with pytest.raises(Refused, match="has not stopped for records"):
        confirm_what_stands(mirrored, run)
    for _ in range(2):  # once more when its fence stands already
        with pytest.raises(Refused, match=rf"{topic}-0 \[10, 13\)"):
            mirrored.failover.drive(run)
        assert denied(pair.west, topic), "three records were given up, and nobody was asked"
    assert denied(pair.east, topic)

    losses = list_refused_losses(mirrored.state, mirrored.failover.read_status(run)[0])
    with pytest.raises(Refused, match="what stays behind has changed since it was approved"):
        mirrored.failover.confirm_leave_behind(run, losses[:-1])
    resume = (
        "failover", "resume", mirrored.name, "--leave-behind", "--take-over", "--config", str(pair.config_path)
    )  # fmt: skip
    unasked = mirrorbook(*resume)
    assert unasked.returncode == 3, unasked.stdout + unasked.stderr
    assert f"{topic}-0 [10, 13)" in unasked.stdout
    assert denied(pair.west, topic), "nobody has said yes to these records"
    agreed = mirrorbook(*resume, "--yes")
    assert agreed.returncode == 0, agreed.stdout + agreed.stderr
    assert (denied(pair.east, topic), denied(pair.west, topic)) == (True, False)


def test_a_source_that_comes_back_before_the_promotion_is_given_up_by_no_approval_of_when_it_was_silent(
    pair: Pair, tmp_path: Path
) -> None:
    """Nothing has held the run up: it is seconds ago that somebody gave up a silent one."""
    mirrored, topic = copied(pair, tmp_path)
    mirror_commands.run_sync(mirrored.link)  # rights are staged
    produce(pair.east, topic, 3)
    with suspended(pair.east):
        run = up_to_promotion(mirrored, silent=True)
    with pytest.raises(Refused, match=rf"{topic}-0 \[10, 13\)(.|\n)*resume {mirrored.name} --leave-behind"):
        mirrored.failover.drive(run)
    assert denied(pair.east, topic)
    assert denied(pair.west, topic), "three records were given up that could be saved"

    with suspended(pair.east), pytest.raises(Refused, match="leave-behind"):
        mirrored.failover.drive(run)  # it has them, all the same
    with suspended(pair.east):  # it flaps, and whoever has the word is not held up by that
        confirm_what_stands(mirrored, run)
        assert mirrored.failover.drive(run).state is RunState.DONE
    assert (denied(pair.east, topic), denied(pair.west, topic)) == (True, False)


def test_a_mirror_topic_that_was_recreated_is_not_promoted_for_a_source_that_has_died(
    pair: Pair, tmp_path: Path
) -> None:
    mirrored, topic = copied(pair, tmp_path)
    run = through(mirrored, "record_lmo")
    with as_admin(pair.west) as west:
        delete_topics(west, [topic])
        wait_until(lambda: topic not in west.metadata([topic]).topics, timeout_s=TIMEOUT_S, why="it is gone")
        create_topics(west, [NewTopic(name=topic, partitions=1, replication_factor=1)])
    with suspended(pair.east), pytest.raises(Refused, match=f"topic {topic} was recreated on west"):
        mirrored.failover.drive(run)
    assert denied(pair.west, topic)
    mirrored.failover.abort(run)
